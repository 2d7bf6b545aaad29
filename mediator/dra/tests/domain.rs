//! The program that adds the device to a domain of libvirt, with domains as KubeVirt and libvirt
//! write them, and with hostile ones.

use std::process::{Command, Output};

use roxmltree::Document;
use serde_json::{Value, json};
use turnstile_dra::domain::{DomainError, with_devices};

const SOCKET: &str = "/run/turnstile/vms/1/vfio-user.sock";
const OTHER: &str = "/run/turnstile/vms/2/vfio-user.sock";
const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// A domain of a virt-launcher pod, with these attributes of its root and further elements.
fn domain(attributes: &str, elements: &str) -> String {
    format!(
        "<domain type=\"kvm\"{attributes}>\n\t<name>team_vm</name>\n\
         \t<memory unit=\"b\">1073741824</memory>\n\
         \t<os><type arch=\"x86_64\" machine=\"q35\">hvm</type></os>\n\
         \t<!-- kept: &entities; and <tags> of a comment -->\n{elements}\
         \t<devices><disk type='file'><source file='/a&amp;b'/></disk></devices>\n</domain>\n"
    )
}

fn changed(xml: &str, sockets: &[&str]) -> Result<String, DomainError> {
    let sockets: Vec<String> = sockets.iter().map(|&socket| socket.to_owned()).collect();
    with_devices(xml, &sockets)
}

/// The devices in a domain's arguments of QEMU.
fn devices(xml: &str) -> Vec<Value> {
    let document = Document::parse(xml).unwrap();
    let of_qemu = |name| {
        let all = document.descendants().collect::<Vec<_>>();
        all.into_iter()
            .filter(move |one| one.has_tag_name((QEMU, name)))
    };
    assert_eq!(of_qemu("commandline").count(), 1, "{xml}");
    let values: Vec<&str> = of_qemu("arg")
        .map(|one| one.attribute("value").unwrap())
        .collect();
    let is_device = |pair: &&[&str]| pair[0] == "-device";
    let pairs = values.chunks(2).filter(is_device);
    pairs
        .map(|pair| serde_json::from_str(pair[1]).unwrap())
        .collect()
}

fn device(socket: &str, slot: &str) -> Value {
    json!({
        "driver": "vfio-user-pci", "id": format!("turnstile-{}", &slot[2..]), "bus": "pcie.0",
        "addr": slot, "socket": { "type": "unix", "path": socket },
    })
}

/// Source and access of a domain's memory.
fn memory(xml: &str) -> Vec<(String, String)> {
    let document = Document::parse(xml).unwrap();
    let backing = document
        .descendants()
        .find(|one| one.has_tag_name("memoryBacking"));
    let children = backing.unwrap().children().filter(|one| one.is_element());
    let text = |one: roxmltree::Node<'_, '_>| {
        let value = one
            .attributes()
            .next()
            .map_or("", |attribute| attribute.value());
        (one.tag_name().name().to_owned(), value.to_owned())
    };
    children.map(text).collect()
}

fn shared() -> Vec<(String, String)> {
    [("source", "memfd"), ("access", "shared")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

#[test]
fn domain_gets_shared_memory_and_a_device_and_keeps_all_else() {
    let before = domain("", "");
    let after = changed(&before, &[SOCKET, OTHER]).unwrap();
    assert_eq!(
        devices(&after),
        [device(SOCKET, "0x10"), device(OTHER, "0x11")]
    );
    assert_eq!(memory(&after), shared());
    // Without what was added it is the same text.
    let begin = after.find("<memoryBacking>").unwrap();
    let end = after.find("</domain>").unwrap();
    let mut rest = after.clone();
    rest.replace_range(begin..end, "");
    let rest = rest.replace(&format!(" xmlns:qemu='{QEMU}'"), "");
    assert_eq!(rest, before);
    // A second time, and for sockets that are there in another order.
    assert_eq!(changed(&after, &[SOCKET, OTHER]).unwrap(), after);
    assert_eq!(changed(&after, &[OTHER, SOCKET, OTHER]).unwrap(), after);
    let third = changed(&after, &["/it's <a> & \"b\".sock"]).unwrap();
    assert_eq!(devices(&third)[2], device("/it's <a> & \"b\".sock", "0x12"));
}

#[test]
fn domain_with_the_namespace_and_arguments_keeps_them() {
    let line = "<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='{\"driver\":\"edu\",\
                \"addr\":\"0x10\"}'/><qemu:env name='A' value='1'/></qemu:commandline>";
    let root = format!(" xmlns:qemu=\"{QEMU}\"");
    let after = changed(&domain(&root, line), &[SOCKET]).unwrap();
    let edu = json!({ "driver": "edu", "addr": "0x10" });
    let document = Document::parse(&after).unwrap();
    assert!(
        document
            .descendants()
            .any(|one| one.has_tag_name((QEMU, "env")))
    );
    assert_eq!(after.matches("xmlns:qemu").count(), 1);
    assert!(after.contains(line.trim_end_matches("</qemu:commandline>")));
    let arguments = after
        .split("<qemu:env name='A' value='1'/>")
        .nth(1)
        .unwrap();
    assert!(
        arguments.contains("vfio-user-pci") && arguments.contains("0x11"),
        "{after}"
    );
    assert_eq!(
        devices(&after.replace("<qemu:env name='A' value='1'/>", ""))[0],
        edu
    );
    // An empty one, of another prefix.
    let root = format!(" xmlns:q=\"{QEMU}\"");
    let after = changed(&domain(&root, "<q:commandline/>"), &[SOCKET]).unwrap();
    assert_eq!(devices(&after), [device(SOCKET, "0x10")]);
}

#[test]
fn domain_with_memory_backing_keeps_it_or_is_refused() {
    let backing = |inner: &str| {
        let backing = format!("<memoryBacking>{inner}</memoryBacking>");
        changed(&domain("", &backing), &[SOCKET])
    };
    let nosharepages = [("nosharepages".to_owned(), String::new())];
    let after = backing("<nosharepages/>").unwrap();
    assert_eq!(memory(&after), [&nosharepages[..], &shared()].concat());
    for whole in [
        "",
        " <source type='memfd'/>\n",
        "<access mode='shared'/><source type='memfd'/>",
    ] {
        let mut found = memory(&backing(whole).unwrap());
        found.sort_by(|one, other| other.cmp(one));
        assert_eq!(found, shared(), "{whole}");
    }
    for (other, text) in [
        ("<source type='anonymous'/>", "the source anonymous"),
        (
            "<source type='file'/><access mode='shared'/>",
            "the source file",
        ),
        ("<access mode='private'/>", "the access private"),
        (
            "<hugepages><page size='2' unit='M'/></hugepages>",
            "huge pages",
        ),
    ] {
        let refused = backing(other).unwrap_err().to_string();
        assert!(
            refused.contains(text) && refused.contains("memfd"),
            "{refused}"
        );
    }
    let cell = "<cpu><numa><cell id='0' memory='1' memAccess='private'/></numa></cpu>";
    let refused = changed(&domain("", cell), &[SOCKET]).unwrap_err();
    assert!(
        refused.to_string().contains("memAccess private"),
        "{refused}"
    );
}

#[test]
fn slots_that_the_domain_has_are_left_and_eight_devices_are_taken() {
    let address = "<address type='pci' domain='0x0000' bus='0x00' slot='0x10' function='0x0'/>";
    let after = changed(&domain("", address), &[SOCKET]).unwrap();
    assert_eq!(devices(&after), [device(SOCKET, "0x11")]);
    let sockets: Vec<String> = (0..9).map(|number| format!("/{number}.sock")).collect();
    let sockets: Vec<&str> = sockets.iter().map(String::as_str).collect();
    let after = changed(&domain("", ""), &sockets[..8]).unwrap();
    assert_eq!(devices(&after).len(), 8);
    assert!(matches!(
        changed(&domain("", ""), &sockets),
        Err(DomainError::Slots)
    ));
    assert!(matches!(changed(&after, &sockets), Err(DomainError::Slots)));
}

#[test]
fn hostile_xml_is_refused() {
    let refused = |xml: &str| changed(xml, &[SOCKET]).unwrap_err();
    let entities = "<!DOCTYPE domain [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]>";
    let files = "<!DOCTYPE domain [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>";
    let unclosed = domain("", "").replace("</domain>", "");
    let of_unknown = domain("", "<title>&secret;</title>");
    for xml in [
        &(entities.to_owned() + &domain("", "<title>&b;</title>")),
        &(files.to_owned() + &domain("", "<title>&a;</title>")),
        &of_unknown,
        &unclosed,
        &(domain("", "") + "<domain/>"),
        &domain("", "<a></b>"),
        &domain(" a='1' a='2'", ""),
        &domain("", "<unbound:a/>"),
        "",
        "no XML",
    ] {
        assert!(matches!(refused(xml), DomainError::Xml(_)), "{xml}");
    }
    assert!(matches!(refused("<network/>"), DomainError::Root(name) if name == "network"));
    let foreign = domain(" xmlns='urn:other'", "");
    assert!(matches!(refused(&foreign), DomainError::Root(_)));
    let prefix = domain(" xmlns:qemu='urn:other'", "");
    assert!(matches!(refused(&prefix), DomainError::Prefix(uri) if uri == "urn:other"));
    // Depth costs no stack.
    let deep = |depth: usize| domain("", &("<a>".repeat(depth) + &"</a>".repeat(depth)));
    changed(&deep(30_000), &[SOCKET]).unwrap();
    assert!(matches!(refused(&deep(100_000)), DomainError::Xml(_)));
    assert!(matches!(
        refused(&" ".repeat(2 << 20)),
        DomainError::Long(_)
    ));
    let many = domain("", &"<a/>".repeat(100_000));
    assert!(matches!(refused(&many), DomainError::Xml(_)));
    // A section of characters that looks like the end of an element.
    let section = "<memoryBacking><![CDATA[</memoryBacking>]]></memoryBacking>";
    let after = changed(&domain("", section), &[SOCKET]).unwrap();
    assert_eq!(memory(&after), shared());
    let other = domain("", "").replace("q35", "pc-i440fx-9.2");
    assert!(matches!(refused(&other), DomainError::Machine(name) if name == "pc-i440fx-9.2"));
    for socket in [
        "",
        "relative.sock",
        "/line\nfeed",
        &format!("/{}", "x".repeat(107)),
    ] {
        let refused = changed(&domain("", ""), &[socket]);
        assert!(matches!(refused, Err(DomainError::Socket(_))), "{socket}");
    }
    assert!(matches!(
        changed(&domain("", ""), &[]),
        Err(DomainError::NoSocket)
    ));
}

/// The program as KubeVirt's sidecar calls it.
fn program(vmi: &Value, domain: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_turnstile-domain"));
    program.args(["--vmi", &vmi.to_string(), "--domain", domain]);
    program
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn sidecar_takes_sockets_of_options_of_the_vmi_and_of_claims() {
    let named = json!({ "metadata": { "annotations": {
        "turnstile.dev/sockets": format!("{SOCKET}, {OTHER}"),
    } } });
    let claims = [
        ("TURNSTILE_CLAIM_SOCKET_GPU_1", OTHER),
        ("TURNSTILE_CLAIM_SOCKET_GPU_0", SOCKET),
        ("TURNSTILE_CLAIM_NAME_GPU_0", "/a"),
    ];
    let before = domain("", "");
    let both = changed(&before, &[SOCKET, OTHER]).unwrap();
    let output = program(&named, &before).output().unwrap();
    assert_eq!(printed(&output), both);
    let output = program(&json!({}), &before).envs(claims).output().unwrap();
    assert_eq!(printed(&output), both);
    let of_option = changed(&before, &["/option.sock"]).unwrap();
    let mut program_with = program(&named, &before);
    let output = program_with
        .args(["--socket", "/option.sock"])
        .envs(claims)
        .output();
    assert_eq!(printed(&output.unwrap()), of_option);
    // Errors leave standard output empty: the sidecar takes it as the domain.
    for (vmi, domain, text) in [
        (
            json!({}),
            &before,
            "Error: There is no socket; name one by --socket",
        ),
        (
            named,
            &before.replace("q35", "virt"),
            "Error: The machine is virt; the device needs q35",
        ),
    ] {
        let output = program(&vmi, domain).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with(text), "{error}");
    }
}
