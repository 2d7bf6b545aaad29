//! Reads a generated table.
//!
//! ```text
//! release VERSION HEADERS run|headers
//! escape HEX NAME BYTES...
//! class HEX NAME BYTES NOTE...        control HEX BYTES|any NOTE...        uvm DECIMAL NAME BYTES NOTE...
//! number NAME HEX        structure NAME BYTES FIELD@AT...
//! ```
//!
//! A note is `answer`, `buffer@AT:COUNT_AT:BYTES` (`^` behind it: the count squared), `null@AT`,
//! `client@AT`, `fd@AT:WIDTH`, `status@AT` or `base@AT`.

use super::{Embedded, Layout, Release, Structure, Tried};
use std::collections::BTreeMap;

/// The table of a text; `None` if a line has another form.
pub(super) fn table(text: &str) -> Option<Release> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let head: Vec<&str> = lines.next()?.split(' ').collect();
    let ["release", version, headers, tried] = head[..] else {
        return None;
    };
    let mut release = Release {
        text: text.to_owned(),
        version: version.to_owned(),
        headers: headers.to_owned(),
        tried: match tried {
            "run" => Tried::Run,
            "headers" => Tried::HeadersOnly,
            _ => return None,
        },
        escapes: BTreeMap::new(),
        classes: BTreeMap::new(),
        controls: BTreeMap::new(),
        uvm: BTreeMap::new(),
        numbers: BTreeMap::new(),
        structures: BTreeMap::new(),
    };
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match &words[..] {
            ["escape", number, _, bytes @ ..] => {
                let bytes = bytes
                    .iter()
                    .map(|word| word.parse().ok())
                    .collect::<Option<_>>()?;
                release
                    .escapes
                    .insert(u8::from_str_radix(number, 16).ok()?, bytes);
            }
            ["class", number, _, bytes, notes @ ..] => {
                release
                    .classes
                    .insert(u32::from_str_radix(number, 16).ok()?, layout(bytes, notes)?);
            }
            ["control", number, bytes, notes @ ..] => {
                release
                    .controls
                    .insert(u32::from_str_radix(number, 16).ok()?, layout(bytes, notes)?);
            }
            ["uvm", number, _, bytes, notes @ ..] => {
                release
                    .uvm
                    .insert(number.parse().ok()?, layout(bytes, notes)?);
            }
            ["number", name, value] => {
                let value = u32::from_str_radix(value, 16).ok()?;
                release.numbers.insert((*name).to_owned(), value);
            }
            ["structure", name, bytes, fields @ ..] => {
                let structure = structure(bytes, fields)?;
                release.structures.insert((*name).to_owned(), structure);
            }
            _ => return None,
        }
    }
    Some(release)
}

fn structure(bytes: &str, fields: &[&str]) -> Option<Structure> {
    let field = |text: &&str| {
        let (name, at) = text.split_once('@')?;
        Some((name.to_owned(), at.parse().ok()?))
    };
    Some(Structure {
        bytes: bytes.parse().ok()?,
        fields: fields.iter().map(field).collect::<Option<_>>()?,
    })
}

fn layout(bytes: &str, notes: &[&str]) -> Option<Layout> {
    let mut layout = Layout {
        bytes: match bytes {
            "any" => None,
            bytes => Some(bytes.parse().ok()?),
        },
        ..Layout::default()
    };
    for note in notes {
        let (kind, text) = note.split_once('@').unwrap_or((note, ""));
        let squared = text.ends_with('^');
        let numbers = text
            .trim_end_matches('^')
            .split(':')
            .map(|part| part.parse().ok())
            .collect::<Option<Vec<usize>>>();
        let numbers = numbers.unwrap_or_default();
        match (kind, &numbers[..]) {
            ("answer", []) => layout.answered = true,
            ("empty", []) => layout.empty = true,
            ("buffer", &[at, count_at, element_bytes]) => layout.buffers.push(Embedded {
                at,
                count_at,
                element_bytes,
                squared,
            }),
            ("null", &[at]) => layout.nulls.push(at),
            ("client", &[at]) => layout.clients.push(at),
            ("fd", &[at, width @ (4 | 8)]) => layout.descriptors.push((at, width)),
            ("status", &[at]) => layout.status = Some(at),
            ("base", &[at]) => layout.base = Some(at),
            _ => return None,
        }
    }
    Some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_another_form_makes_no_table() {
        let good = "release 1.2 1.1 run\ncontrol 127 176 buffer@160:128:4^ client@4\n";
        let table = table(good).unwrap();
        let layout = &table.controls[&0x127];
        assert!(layout.buffers[0].squared && layout.clients == [4]);
        for bad in [
            "",
            "release 1 1 maybe",
            "release 1 1 run\nclass",
            "release 1 1 run\nuvm 1 A 8 fd@1",
            "release 1 1 run\nnumber A 0x1",
            "release 1 1 run\nstructure A 8 b",
        ] {
            assert!(super::table(bad).is_none(), "{bad}");
        }
    }
}
