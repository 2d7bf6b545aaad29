//! A domain of libvirt with the device, which libvirt has no element for.
//!
//! - In: the XML of a domain, and sockets of VMs. Out: the same XML with guest memory that can be
//!   shared, and one `vfio-user-pci` device for each socket as arguments of QEMU.
//! - Invariants: what is not changed stays byte for byte; a second time changes nothing. XML with a
//!   document type or an entity of its own is refused. The result was read again.
//! - Callers: the program `turnstile-domain`.

use std::collections::BTreeSet;
use std::ops::Range;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};

/// Longest XML: a domain has some tens of KiB.
const XML_BYTES_MAX: usize = 1 << 20;
/// Most elements, attributes and texts of it.
const NODES_MAX: u32 = 1 << 16;
/// Longest path of a socket. SOURCE: unix(7), less the zero at its end.
const PATH_BYTES_MAX: usize = 107;
/// SOURCE: libvirt, docs/drvqemu: arguments of QEMU.
const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
const PREFIX: &str = "qemu";
/// Device of QEMU since 10.1.
const DEVICE: &str = "vfio-user-pci";
/// Slots for the device on the bus `pcie.0`: libvirt gives its own devices lower ones.
const SLOTS: Range<u64> = 0x10..0x18;

/// Why a domain does not get the device.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// It is too long.
    #[error("The domain's XML has {0} bytes; at most {XML_BYTES_MAX} are read")]
    Long(usize),
    /// It is no XML, or such that libvirt does not write.
    #[error("The domain's XML cannot be read; document types and their entities are refused")]
    Xml(#[from] roxmltree::Error),
    /// It is another document.
    #[error("The root of the XML is {0}, and not domain")]
    Root(String),
    /// The prefix has another meaning.
    #[error("The prefix {PREFIX} is bound to {0}, and not to {QEMU}")]
    Prefix(String),
    /// Another machine has no such bus.
    #[error("The machine is {0}; the device needs q35 (<type machine='q35'>)")]
    Machine(String),
    /// Memory of a kind that cannot be shared.
    #[error("memoryBacking has {0}; the device needs the source memfd, shared, without huge pages")]
    Memory(String),
    /// There is no socket.
    #[error("There is no socket; name one by --socket, the annotation or the claim's variables")]
    NoSocket,
    /// A socket has no path that QEMU takes.
    #[error("{0:?} is no socket: an absolute path of at most {PATH_BYTES_MAX} bytes")]
    Socket(String),
    /// There is no place for a device.
    #[error("Slots {:#x} to {:#x} of the bus pcie.0 are taken", SLOTS.start, SLOTS.end - 1)]
    Slots,
    /// What was written is not found again.
    #[error("The domain's XML has a form that cannot be changed")]
    Unchanged,
}

/// A change: text in place of a range of bytes.
type Change = (Range<usize>, String);

/// Adds devices with these sockets to a domain that lacks them.
///
/// # Errors
/// If the XML cannot be read, or the domain cannot have the device.
pub fn with_devices(xml: &str, sockets: &[String]) -> Result<String, DomainError> {
    if sockets.is_empty() {
        return Err(DomainError::NoSocket);
    }
    for socket in sockets {
        let is_path = socket.starts_with('/') && !socket.contains(char::is_control);
        if !is_path || socket.len() > PATH_BYTES_MAX {
            return Err(DomainError::Socket(socket.clone()));
        }
    }
    let mut changes = changes(xml, sockets)?;
    if changes.is_empty() {
        return Ok(xml.to_owned());
    }
    changes.sort_by_key(|(range, _)| range.start);
    let mut changed = xml.to_owned();
    // From the end: what is before keeps its place.
    for (range, text) in changes.into_iter().rev() {
        changed.replace_range(range, &text);
    }
    match self::changes(&changed, sockets)?.is_empty() {
        true => Ok(changed),
        false => Err(DomainError::Unchanged),
    }
}

fn changes(xml: &str, sockets: &[String]) -> Result<Vec<Change>, DomainError> {
    if xml.len() > XML_BYTES_MAX {
        return Err(DomainError::Long(xml.len()));
    }
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: NODES_MAX,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(xml, options)?;
    let domain = document.root_element();
    if !is(domain, "domain") {
        return Err(DomainError::Root(domain.tag_name().name().to_owned()));
    }
    let machine = child(domain, "os").and_then(|os| child(os, "type")?.attribute("machine"));
    match machine {
        Some(machine) if machine.contains("q35") => {}
        other => return Err(DomainError::Machine(other.unwrap_or("unknown").to_owned())),
    }

    let mut changes = Vec::new();
    let mut of_domain = String::new();
    let lacking = lacking_memory(domain)?;
    match child(domain, "memoryBacking") {
        None => of_domain += &format!("<memoryBacking>{lacking}</memoryBacking>"),
        Some(_) if lacking.is_empty() => {}
        Some(backing) => changes.push(add(xml, backing, "memoryBacking", &lacking)),
    }
    let command_line = elements(domain).find(|one| one.has_tag_name((QEMU, "commandline")));
    let arguments = lacking_arguments(domain, command_line, sockets)?;
    if !arguments.is_empty() {
        let name = format!("{PREFIX}:commandline");
        match command_line {
            None => of_domain += &format!("<{name}>{arguments}</{name}>"),
            Some(line) => changes.push(add(xml, line, &name, &arguments)),
        }
        match domain.lookup_namespace_uri(Some(PREFIX)) {
            Some(QEMU) => {}
            Some(other) => return Err(DomainError::Prefix(other.to_owned())),
            None => {
                let at = domain.range().start + "<domain".len();
                changes.push((at..at, format!(" xmlns:{PREFIX}='{QEMU}'")));
            }
        }
    }
    if !of_domain.is_empty() {
        changes.push(add(xml, domain, "domain", &of_domain));
    }
    Ok(changes)
}

fn elements<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> + use<'a, 'i> {
    node.children().filter(Node::is_element)
}

/// Whether an element has this name, in no namespace.
fn is(node: Node<'_, '_>, name: &str) -> bool {
    node.tag_name().namespace().is_none() && node.tag_name().name() == name
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    elements(node).find(|one| is(*one, name))
}

/// Adds elements at the end of an element with this name.
fn add(xml: &str, node: Node<'_, '_>, name: &str, elements: &str) -> Change {
    let range = node.range();
    match node.has_children() {
        // Its own end is the last one in it.
        true => {
            let end = xml[range.clone()].rfind("</").unwrap_or(range.len());
            let at = range.start + end;
            (at..at, elements.to_owned())
        }
        false => (range, format!("<{name}>{elements}</{name}>")),
    }
}

/// What `memoryBacking` lacks.
fn lacking_memory(domain: Node<'_, '_>) -> Result<String, DomainError> {
    let mut lacking = String::new();
    let backing = child(domain, "memoryBacking");
    if backing.is_some_and(|backing| child(backing, "hugepages").is_some()) {
        return Err(DomainError::Memory("huge pages".into()));
    }
    for (element, attribute, needed) in [("source", "type", "memfd"), ("access", "mode", "shared")]
    {
        let found = backing.and_then(|backing| child(backing, element)?.attribute(attribute));
        match found {
            None => lacking += &format!("<{element} {attribute}='{needed}'/>"),
            Some(found) if found == needed => {}
            Some(other) => return Err(DomainError::Memory(format!("the {element} {other}"))),
        }
    }
    let of_cells = domain
        .descendants()
        .find_map(|one| one.attribute("memAccess"));
    match of_cells {
        Some(access) if access != "shared" => Err(DomainError::Memory(format!(
            "a cell with memAccess {access}"
        ))),
        _ => Ok(lacking),
    }
}

/// A number as libvirt writes it: decimal, or hexadecimal after `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Arguments for those of the sockets that no argument has.
fn lacking_arguments(
    domain: Node<'_, '_>,
    command_line: Option<Node<'_, '_>>,
    sockets: &[String],
) -> Result<String, DomainError> {
    let values = command_line.into_iter().flat_map(elements);
    let values = values.filter_map(|argument| argument.attribute("value"));
    let devices: Vec<Value> = values
        .filter_map(|value| serde_json::from_str(value).ok())
        .collect();
    let own = devices.iter().filter(|device| device["driver"] == DEVICE);
    let mut known: BTreeSet<&str> = own
        .filter_map(|device| device["socket"]["path"].as_str())
        .collect();
    let of_devices = devices
        .iter()
        .filter_map(|device| number(device["addr"].as_str()?));
    let addresses = domain.descendants().filter(|one| is(*one, "address"));
    let on_bus = addresses.filter(|one| one.attribute("bus").and_then(number) == Some(0));
    let of_domain = on_bus.filter_map(|one| number(one.attribute("slot")?));
    let taken: BTreeSet<u64> = of_devices.chain(of_domain).collect();
    let mut free = SLOTS.filter(|slot| !taken.contains(slot));
    let mut lacking = String::new();
    for socket in sockets {
        if !known.insert(socket) {
            continue;
        }
        let slot = free.next().ok_or(DomainError::Slots)?;
        let device = json!({
            "driver": DEVICE,
            "id": format!("turnstile-{slot:x}"),
            "bus": "pcie.0",
            "addr": format!("{slot:#x}"),
            "socket": { "type": "unix", "path": socket },
        });
        let escapes = [("&", "&amp;"), ("<", "&lt;"), ("'", "&apos;")];
        let value = escapes.iter().fold(device.to_string(), |text, (from, to)| {
            text.replace(from, to)
        });
        lacking += &format!("<{PREFIX}:arg value='-device'/><{PREFIX}:arg value='{value}'/>");
    }
    Ok(lacking)
}
