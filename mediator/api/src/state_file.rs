//! Operators' settings in a file. It is replaced as a whole, so that a crash leaves the old or the
//! new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use turnstile_daemon::accounts::Entry;
use turnstile_daemon::config::without_mark;
use turnstile_daemon::declared::KeptVm;
use turnstile_daemon::{AccountsConfig, DaemonConfig, Settings};

/// Of the file's format. Version 1, which has no accounts, is read as well.
const VERSION: u32 = 2;

/// A file is not larger: some 4,096 tenants with everything set, and as many names of the longest
/// form as the book of accounts keeps.
const BYTES_MAX: u64 = 16 << 20;

/// Where settings are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    path: PathBuf,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// What was set of tenants, by name.
    pub tenants: BTreeMap<String, Settings>,
    /// Accounts that the API made, by name.
    pub accounts: BTreeMap<String, Entry>,
    /// Tenant names, and the accounts that they belong to.
    pub names: BTreeMap<String, String>,
    /// GPUs that are closed to further tenants.
    pub cordoned: BTreeSet<String>,
    /// GPUs that are removed.
    pub removed: BTreeSet<String>,
    /// Declared VMs, in the order of their declaration.
    pub vms: Vec<KeptVm>,
}

impl Kept {
    /// The configuration of a daemon that goes on with what was kept.
    #[must_use]
    pub fn resumed(self, config: DaemonConfig) -> DaemonConfig {
        let Self {
            tenants,
            accounts,
            names,
            cordoned,
            removed,
            vms,
        } = self;
        DaemonConfig {
            settings: tenants,
            vms,
            cordoned,
            removed,
            accounts: AccountsConfig {
                made: accounts,
                names,
                ..config.accounts
            },
            ..config
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    tenants: BTreeMap<String, Settings>,
    /// Version 1 has neither.
    #[serde(default)]
    accounts: BTreeMap<String, Entry>,
    #[serde(default)]
    names: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    cordoned: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    vms: Vec<KeptVm>,
}

/// Why settings cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// It cannot be read.
    #[error("The state file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It is not one.
    #[error("{} is no state file of this version; mend it, or move it away", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It is of another version, or far too large.
    #[error("{} is no state file of version {VERSION}: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// It cannot be written.
    #[error("The state file {} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl StateFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The one at this path, which need not be there yet.
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// What was kept; nothing if there is no file yet.
    ///
    /// # Errors
    /// If it cannot be read, or is no state file of this version.
    pub fn load(&self) -> Result<Kept, StateFileError> {
        let path = self.path.clone();
        let mut text = String::new();
        let read =
            File::open(&path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
            Err(source) => return Err(StateFileError::Read { path, source }),
            Ok(_) => {}
        }
        if text.len() as u64 > BYTES_MAX {
            let what = format!("larger than {BYTES_MAX} bytes");
            return Err(StateFileError::Foreign { path, what });
        }
        let content: Content = match serde_json::from_str(without_mark(&text)) {
            Ok(content) => content,
            Err(source) => return Err(StateFileError::Content { path, source }),
        };
        if !(1..=VERSION).contains(&content.version) {
            let what = format!("its version is {}", content.version);
            return Err(StateFileError::Foreign { path, what });
        }
        Ok(Kept {
            tenants: content.tenants,
            accounts: content.accounts,
            names: content.names,
            cordoned: content.cordoned,
            removed: content.removed,
            vms: content.vms,
        })
    }

    /// Keeps these; when it has returned, they are on the disk.
    pub(super) fn save(&self, kept: &Kept) -> Result<(), StateFileError> {
        self.replace(kept).map_err(|source| StateFileError::Write {
            path: self.path.clone(),
            source,
        })
    }

    fn replace(&self, kept: &Kept) -> io::Result<()> {
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let content = Content {
            version: VERSION,
            tenants: kept.tenants.clone(),
            accounts: kept.accounts.clone(),
            names: kept.names.clone(),
            cordoned: kept.cordoned.clone(),
            removed: kept.removed.clone(),
            vms: kept.vms.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&content)?;
        text.push(b'\n');
        // What is not read back any more would keep the daemon from starting.
        if text.len() as u64 > BYTES_MAX {
            let what = format!("it would be larger than {BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        // Readable by its owner alone, as temporary files are.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        fs::File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_accounting::Nanos;
    use turnstile_policies::{Cap, Weight};

    #[test]
    fn what_was_kept_is_read_back_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state.json"));
        assert_eq!(file.load().unwrap(), Kept::default());
        let mut kept = Kept::default();
        kept.names.insert("a".to_owned(), "gold".to_owned());
        for weight in [7, 300] {
            let set = Settings {
                weight: Weight::new(weight).ok(),
                cap: Cap::new(Nanos(5_000), Nanos(9_000)).ok(),
                ..Settings::default()
            };
            kept.tenants.insert("a".to_owned(), set.clone());
            let entry = Entry {
                patterns: vec!["a*".parse().unwrap()],
                cap: set.cap,
                ..Entry::default()
            };
            kept.accounts.insert("gold".to_owned(), entry);
            file.save(&kept).unwrap();
            assert_eq!(file.load().unwrap(), kept);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_of_version_1_has_no_accounts() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state.json"));
        fs::write(
            &file.path,
            "{\"version\":1,\"tenants\":{\"a\":{\"weight\":7}}}",
        )
        .unwrap();
        let kept = file.load().unwrap();
        assert_eq!(kept.tenants["a"].weight, Weight::new(7).ok());
        assert!(kept.accounts.is_empty() && kept.names.is_empty());
    }

    #[test]
    fn byte_order_mark_of_an_editor_is_no_part_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state.json"));
        let text = "{\"version\":1,\"tenants\":{\"a\":{\"weight\":7}}}";
        fs::write(&file.path, format!("\u{feff}{text}")).unwrap();
        let kept = file.load().unwrap();
        assert_eq!(kept.tenants["a"].weight, Weight::new(7).ok());
    }

    #[test]
    fn a_file_that_is_none_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state.json"));
        for text in [
            "",
            "{}",
            "{\"version\":1,\"tenants\":{\"a\":{\"weight\":0}}}",
            "{\"version\":3,\"tenants\":{}}",
        ] {
            fs::write(&file.path, text).unwrap();
            assert!(file.load().is_err(), "{text}");
        }
        let nowhere = StateFile::new(folder.path().join("missing/state.json"));
        assert!(matches!(
            nowhere.save(&Kept::default()),
            Err(StateFileError::Write { .. })
        ));
    }
    #[test]
    fn what_would_not_be_read_back_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state.json"));
        let of = |name: String| Kept {
            tenants: BTreeMap::from([(name, Settings::default())]),
            ..Kept::default()
        };
        let kept = of("a".to_owned());
        file.save(&kept).unwrap();
        // CAST: 16 MiB
        let name = "b".repeat(BYTES_MAX as usize);
        let refused = file.save(&of(name)).unwrap_err();
        assert!(matches!(refused, StateFileError::Write { .. }));
        assert_eq!(file.load().unwrap(), kept);
    }
}
