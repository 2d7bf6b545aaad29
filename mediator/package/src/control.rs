//! The control file of a Debian package, in the terms of RPM.

use std::collections::BTreeMap;

use rpm::Dependency;

/// The control file lacks something, or has what RPM has no name for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A field is missing.
    #[error("The control file lacks the field {0}")]
    Missing(&'static str),
    /// An architecture without a name in RPM.
    #[error("RPM's name of the architecture {0} is not known")]
    Architecture(String),
    /// A dependency without a name in RPM.
    #[error("RPM's name of the package {0} is not known; add it to NAMES")]
    Dependency(String),
}

/// Packages by their names in Debian and in Fedora.
const NAMES: [(&str, &str); 3] = [
    ("libc6", "glibc"),
    ("libgcc-s1", "libgcc"),
    ("systemd", "systemd"),
];

const ARCHITECTURES: [(&str, &str); 2] = [("amd64", "x86_64"), ("arm64", "aarch64")];

/// What RPM takes of a control file.
pub(crate) struct Control {
    pub(crate) name: String,
    pub(crate) architecture: &'static str,
    pub(crate) summary: String,
    pub(crate) description: String,
    pub(crate) homepage: String,
    pub(crate) maintainer: String,
    pub(crate) requires: Vec<Dependency>,
    pub(crate) recommends: Vec<&'static str>,
}

impl Control {
    pub(crate) fn parse(text: &str) -> Result<Self, ControlError> {
        let fields = fields(text);
        let field = |name| fields.get(name).ok_or(ControlError::Missing(name));
        let architecture = field("Architecture")?;
        let known = ARCHITECTURES.iter().find(|(deb, _)| deb == architecture);
        let (_, architecture) =
            known.ok_or_else(|| ControlError::Architecture(architecture.clone()))?;
        let description = field("Description")?;
        let (summary, description) = description.split_once('\n').unwrap_or((description, ""));
        let list = |name| fields.get(name).map_or("", String::as_str).split(", ");
        let list = |name| list(name).filter(|entry| !entry.is_empty());
        Ok(Self {
            name: field("Package")?.clone(),
            architecture,
            summary: summary.to_owned(),
            description: description.to_owned(),
            homepage: field("Homepage")?.clone(),
            maintainer: field("Maintainer")?.clone(),
            requires: list("Depends").map(dependency).collect::<Result<_, _>>()?,
            recommends: list("Recommends").map(name).collect::<Result<_, _>>()?,
        })
    }
}

/// The fields; lines of one that go on are joined by ends of lines.
fn fields(text: &str) -> BTreeMap<&str, String> {
    let mut fields: BTreeMap<&str, String> = BTreeMap::new();
    let mut last = "";
    for line in text.lines() {
        if let Some(more) = line.strip_prefix(' ') {
            let field = fields.entry(last).or_default();
            field.push('\n');
            field.push_str(more);
        } else if let Some((name, value)) = line.split_once(": ") {
            fields.insert(name, value.to_owned());
            last = name;
        }
    }
    fields
}

fn name(deb: &str) -> Result<&'static str, ControlError> {
    let known = NAMES.iter().find(|(known, _)| *known == deb);
    let unknown = || ControlError::Dependency(deb.to_owned());
    Ok(known.ok_or_else(unknown)?.1)
}

/// A dependency, as `libc6 (>= 2.34)`.
fn dependency(deb: &str) -> Result<Dependency, ControlError> {
    let Some((package, version)) = deb.split_once(" (>= ") else {
        return Ok(Dependency::any(name(deb)?));
    };
    Ok(Dependency::greater_eq(
        name(package)?,
        version.trim_end_matches(')'),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = include_str!("../debian/control-guest");
    const HOST: &str = include_str!("../debian/control");

    #[test]
    fn both_control_files_have_names_in_rpm() {
        for text in [GUEST, HOST] {
            let text = text.replace("@ARCHITECTURE@", "amd64");
            let control = Control::parse(&text).unwrap();
            assert_eq!(control.architecture, "x86_64");
            let glibc = Dependency::greater_eq("glibc", "2.34");
            assert!(control.requires.contains(&glibc), "{:?}", control.requires);
            assert!(!control.summary.contains('\n') && control.description.contains('\n'));
        }
    }

    #[test]
    fn what_rpm_has_no_name_for_is_refused() {
        let text = GUEST.replace("@ARCHITECTURE@", "amd64");
        let refused = |from: &str, to: &str| Control::parse(&text.replace(from, to)).err();
        let unknown = Some(ControlError::Dependency("libfoo".into()));
        assert_eq!(refused("libgcc-s1", "libfoo (>= 2)"), unknown);
        let unknown = Some(ControlError::Architecture("m68k".into()));
        assert_eq!(refused("amd64", "m68k"), unknown);
        assert_eq!(
            refused("Homepage", "Home"),
            Some(ControlError::Missing("Homepage"))
        );
    }
}
