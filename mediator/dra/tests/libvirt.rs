//! The example of a domain, by our own program and by libvirt where it is installed.

use std::fs;
use std::process::{Command, Output};

use turnstile_dra::domain::with_devices;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../package/libvirt/domain.xml");
const SOCKET: &str = "/run/turnstile/vms/11111111-2222-3333-4444-555555555555/vfio-user.sock";

/// Whether nothing of the device is missing in a domain.
fn is_whole(xml: &str) -> bool {
    with_devices(xml, &[SOCKET.to_owned()]).unwrap() == xml
}

/// The example, and a domain to which the program added the device.
fn domains() -> [(&'static str, String); 2] {
    let example = fs::read_to_string(EXAMPLE).unwrap();
    let begin = example.find("  <qemu:commandline>").unwrap();
    let end = example.find("</domain>").unwrap();
    let backing = example.find("  <memoryBacking>").unwrap()..example.find("  <features>").unwrap();
    let mut plain = example.clone();
    plain.replace_range(begin..end, "");
    plain.replace_range(backing, "");
    assert!(!is_whole(&plain));
    let added = with_devices(&plain, &[SOCKET.to_owned()]).unwrap();
    [("example", example), ("added", added)]
}

/// Runs a program; none if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(arguments).output();
    if output.is_err() {
        println!("SKIPPED: {program} is not installed");
    }
    output.ok()
}

#[test]
fn example_lacks_nothing_of_the_device() {
    for (name, domain) in domains() {
        assert!(is_whole(&domain), "{name}");
        assert_eq!(domain.matches(SOCKET).count(), 1, "{name}");
    }
}

#[test]
fn domains_fit_the_schema_of_libvirt() {
    let folder = tempfile::tempdir().unwrap();
    for (name, domain) in domains() {
        let path = folder.path().join(name);
        fs::write(&path, domain).unwrap();
        let path = path.display().to_string();
        let Some(output) = run("virt-xml-validate", &[&path, "domain"]) else {
            return;
        };
        assert!(output.status.success(), "{name}: {output:?}");
    }
    // The check finds what is wrong.
    let path = folder.path().join("wrong");
    fs::write(&path, domains()[0].1.replace("memfd", "memory")).unwrap();
    let path = path.display().to_string();
    let output = run("virt-xml-validate", &[&path, "domain"]).unwrap();
    assert!(!output.status.success());
}

#[test]
fn libvirt_keeps_the_device_of_a_domain_that_it_defines() {
    let emulator = "/usr/bin/qemu-system-x86_64";
    if !fs::exists(emulator).unwrap() {
        println!("SKIPPED: {emulator} is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // As another user QEMU may not open /dev/kvm, and libvirt reads its capabilities each time.
    fs::create_dir(folder.path().join("etc")).unwrap();
    let config = "user = \"root\"\ngroup = \"root\"\n";
    fs::write(folder.path().join("etc/qemu.conf"), config).unwrap();
    let mut commands = String::new();
    for (name, domain) in domains() {
        let path = folder.path().join(name);
        // The processor need not have KVM.
        let domain = domain.replace("type='kvm'", "type='qemu'");
        fs::write(&path, domain.replace("turnstile-example", name)).unwrap();
        let define = format!("define --validate {}; ", path.display());
        commands += &format!("{define}dumpxml --inactive {name}; ");
        commands += &format!("domxml-to-native qemu-argv --domain {name}; ");
    }
    // The driver in the process of virsh: no daemon runs.
    let connection = format!("qemu:///embed?root={}", folder.path().display());
    let Some(output) = run("virsh", &["-q", "-c", &connection, &commands]) else {
        return;
    };
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    if error.contains("failed to connect") {
        println!("SKIPPED: libvirt lacks its driver of QEMU, or the user libvirt-qemu: {error}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // What QEMU is started with.
    let path = format!("\"path\":\"{SOCKET}\"");
    let arguments = text.lines().filter(|line| line.contains(" -machine "));
    let arguments: Vec<&str> = arguments.collect();
    assert_eq!(arguments.len(), domains().len(), "{text}");
    for of_qemu in [
        "{\"qom-type\":\"memory-backend-memfd\",\"id\":\"pc.ram\",\"share\":true,",
        "\"driver\":\"vfio-user-pci\"",
        &path,
    ] {
        assert!(
            arguments.iter().all(|line| line.contains(of_qemu)),
            "{of_qemu}: {text}"
        );
    }
    let mut kept = text
        .split_inclusive("</domain>")
        .filter_map(|part| part.find("<domain").map(|begin| &part[begin..]));
    for (name, _) in domains() {
        let kept = kept.next().expect("a domain");
        assert!(
            kept.contains(&format!("<name>{name}</name>")) && is_whole(kept),
            "{kept}"
        );
    }
}
