//! The right of one process to write a ledger's file, and whether the file is still in its place.
//!
//! Two locks (`flock`) make the right: one on the file `ledger-lock` beside the ledger, which has
//! the holder's process id in it, and one on the ledger itself. The first one covers the name, the
//! second one the file under another name. SQLite's own locks are of another kind (`fcntl`), so
//! readers and backups are not disturbed. But the kernel drops those of a process when the process
//! closes any descriptor of the file: [`super::Sqlite`] closes its connection before the claim.

use std::fs::{File, Metadata, OpenOptions, TryLockError, canonicalize, metadata, remove_file};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// Where a claimed file is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In its place, with its log.
    Same,
    /// In its place, but its log or the log's index was removed or replaced.
    OtherLog,
    /// The place is empty.
    Missing,
    /// Another file is in its place.
    OtherFile,
}

/// Device and number of a file.
type Inode = (u64, u64);

/// The right to write a ledger's file, held until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    /// The ledger.
    file: File,
    /// The file `ledger-lock`.
    lock: File,
    /// The ledger's log and its index (`ledger-wal`, `ledger-shm`), once SQLite has made them.
    log: [Option<Inode>; 2],
}

/// What SQLite has beside a ledger that is open.
const LOG: [&str; 2] = ["-wal", "-shm"];

fn inode(data: &Metadata) -> Inode {
    (data.dev(), data.ino())
}

/// A path with this text behind its last part.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens a file to write, and makes it if there is none: readable by its owner and group, while
/// SQLite would make it readable by all.
fn made(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o640).open(path)
}

/// The inode of what is at a path; none if nothing is.
fn inode_at(path: &Path) -> Result<Option<Inode>, StoreError> {
    match metadata(path) {
        Ok(data) => Ok(Some(inode(&data))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::Output(error)),
    }
}

impl Claim {
    /// Claims the ledger at `path`, which is made if there is none.
    ///
    /// # Errors
    /// If another process has it, or if the files cannot be opened.
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        let file = made(path).map_err(|error| super::connection::store_error(path, error))?;
        let path = canonicalize(path)?;
        let lock = Self::lock(&path, made(&beside(&path, "-lock"))?)?;
        Self::over(path, file, lock)
    }

    /// Claims the file that is in the place of this claim's file now; it is made if there is none.
    pub(super) fn next(&self) -> Result<Self, StoreError> {
        // What belongs to the file that is gone, and is still open, is no log of the next one:
        // SQLite would take it for one.
        for (suffix, own) in LOG.iter().zip(self.log) {
            let at = beside(&self.path, suffix);
            if own.is_some() && inode_at(&at)? == own {
                remove_file(at)?;
            }
        }
        let file = made(&self.path)?;
        let at = beside(&self.path, "-lock");
        let own = inode(&self.lock.metadata()?);
        let lock = if inode_at(&at)? == Some(own) {
            self.lock.try_clone()?
        } else {
            Self::lock(&self.path, made(&at)?)?
        };
        Self::over(self.path.clone(), file, lock)
    }

    fn over(path: PathBuf, file: File, lock: File) -> Result<Self, StoreError> {
        locked(&file).map_err(|error| held(&path, &lock, error))?;
        Ok(Self {
            path,
            file,
            lock,
            log: [None; 2],
        })
    }

    /// Takes the lock of a name, and writes this process's id into its file.
    fn lock(path: &Path, mut lock: File) -> Result<File, StoreError> {
        locked(&lock).map_err(|error| held(path, &lock, error))?;
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(lock)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn log_now(&self) -> Result<[Option<Inode>; 2], StoreError> {
        let [log, index] = LOG.map(|suffix| inode_at(&beside(&self.path, suffix)));
        Ok([log?, index?])
    }

    /// Notes which log SQLite writes.
    pub(super) fn note_log(&mut self) -> Result<(), StoreError> {
        self.log = self.log_now()?;
        Ok(())
    }

    /// Where the file is now.
    pub(super) fn place(&self) -> Result<Place, StoreError> {
        let own = inode(&self.file.metadata()?);
        Ok(match inode_at(&self.path)? {
            None => Place::Missing,
            Some(found) if found != own => Place::OtherFile,
            Some(_) if self.log_now()? != self.log => Place::OtherLog,
            Some(_) => Place::Same,
        })
    }
}

fn locked(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}

/// The error of a lock that was not had.
fn held(path: &Path, lock: &File, error: TryLockError) -> StoreError {
    match error {
        TryLockError::Error(error) => StoreError::Output(error),
        TryLockError::WouldBlock => {
            let mut pid = String::new();
            let read = (&*lock)
                .rewind()
                .and_then(|()| lock.take(20).read_to_string(&mut pid));
            let pid = pid.trim();
            let holder = match read {
                Ok(_) if !pid.is_empty() => format!("process {pid}"),
                _ => "another process".to_owned(),
            };
            StoreError::Held {
                what: format!("ledger {}", path.display()),
                holder,
                remedy: "name another file (ledger.path, --ledger)",
            }
        }
    }
}
