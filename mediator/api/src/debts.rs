//! What accounts and tenants are ahead by, in a file beside the settings.
//!
//! It is written each second and at the daemon's end, and read by the next daemon. It is not
//! flushed to the disk: after a crash of the host no tenant runs on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use turnstile_daemon::{Fleet, KeptDebt};

use super::state_file::StateFile;

const EVERY: Duration = Duration::from_secs(1);

/// More than all debts of a daemon take.
const BYTES_MAX: u64 = 16 << 20;

/// The file of debts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebtFile(PathBuf);

impl DebtFile {
    /// The file beside that of the settings.
    pub fn beside(state: &StateFile) -> Self {
        let mut name = state.path().file_name().unwrap_or_default().to_owned();
        name.push(".debts");
        Self(state.path().with_file_name(name))
    }

    /// What an earlier daemon wrote; nothing where the file is missing or damaged.
    pub fn load(&self) -> Vec<KeptDebt> {
        let mut text = String::new();
        let read =
            File::open(&self.0).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        let parsed = read.and_then(|_| Ok(serde_json::from_str(&text)?));
        parsed.unwrap_or_else(|error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!(
                    "{}: no tenant's lag is taken over: {error}",
                    self.0.display()
                );
            }
            Vec::new()
        })
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn save(&self, fleet: &Fleet) -> io::Result<()> {
        let text = serde_json::to_vec(&fleet.debts())?;
        let folder = self
            .0
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(&text)?;
        file.persist(&self.0)?;
        Ok(())
    }

    /// Writes debts each second, for ever. A failure is logged once.
    pub(super) async fn keep(self, fleet: Arc<Fleet>) {
        let mut clock = tokio::time::interval(EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed = false;
        loop {
            clock.tick().await;
            let (file, fleet) = (self.clone(), fleet.clone());
            let saved = tokio::task::spawn_blocking(move || file.save(&fleet)).await;
            match saved {
                Ok(Err(error)) if !failed => {
                    log::warn!("Lags of tenants are not kept over a restart: {error}");
                    failed = true;
                }
                Ok(Err(_)) => {}
                Ok(Ok(())) => failed = false,
                // The runtime ends.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn damaged_file_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let file = DebtFile::beside(&StateFile::new(folder.path().join("state.json")));
        assert!(file.load().is_empty());
        fs::write(folder.path().join("state.json.debts"), "[{").unwrap();
        assert!(file.load().is_empty());
        let text = r#"[{"engine":0,"account":"uid-0","tenant":"a","ahead_ns":7}]"#;
        fs::write(folder.path().join("state.json.debts"), text).unwrap();
        assert_eq!(file.load()[0].ahead_ns, 7);
    }
}
