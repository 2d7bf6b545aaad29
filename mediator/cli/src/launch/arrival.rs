//! Uses inotify to learn that a socket's file was made: a daemon starts, and no polling is needed.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;

/// Bytes of events per read; what does not fit stays for the next time. A name has at most 255
/// letters.
const EVENTS_BYTES: usize = 4096;
/// Events per turn: a process that makes more does not keep the launcher from its program.
const EVENTS_MAX: u32 = 64;

/// Result of reading events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketEvent {
    /// Nothing that matters.
    Nothing,
    /// The file was made.
    Created,
    /// The folder is gone: no further events.
    Unwatched,
}

/// The folder of a socket, watched.
#[derive(Debug)]
pub(super) struct Arrival {
    inotify: OwnedFd,
    name: OsString,
}

impl AsFd for Arrival {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Arrival {
    /// Watches for the file of this socket.
    ///
    /// # Errors
    /// If there is no such folder, or the user watches too much already.
    pub(super) fn of(socket: &Path) -> io::Result<Self> {
        let name = socket.file_name().ok_or(Errno::INVAL)?.to_owned();
        let folder = match socket.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        add_watch(&inotify, folder, wanted)?;
        Ok(Self { inotify, name })
    }

    /// Reads the events since the last call.
    pub(super) fn read_events(&self) -> SocketEvent {
        let mut latest = SocketEvent::Nothing;
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        for _ in 0..EVENTS_MAX {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return SocketEvent::Unwatched,
            };
            if event.events().contains(ReadFlags::IGNORED) {
                return SocketEvent::Unwatched;
            }
            let named = event.file_name().map(std::ffi::CStr::to_bytes);
            // After an overflow the lost events are not known.
            let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            if lost || named == Some(self.name.as_bytes()) {
                latest = SocketEvent::Created;
            }
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn only_the_socket_file_causes_an_event() {
        let folder = tempfile::tempdir().unwrap();
        let arrival = Arrival::of(&folder.path().join("d.sock")).unwrap();
        assert_eq!(arrival.read_events(), SocketEvent::Nothing);
        File::create(folder.path().join("other")).unwrap();
        assert_eq!(arrival.read_events(), SocketEvent::Nothing);
        File::create(folder.path().join("d.sock")).unwrap();
        assert_eq!(arrival.read_events(), SocketEvent::Created);
        assert_eq!(arrival.read_events(), SocketEvent::Nothing, "once");
        let made = folder.path().join("made");
        File::create(&made).unwrap();
        fs::rename(made, folder.path().join("d.sock")).unwrap();
        assert_eq!(
            arrival.read_events(),
            SocketEvent::Created,
            "one that is moved there"
        );
    }

    #[test]
    fn removed_folder_is_reported_and_missing_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("run");
        let socket = inner.join("d.sock");
        assert!(Arrival::of(&socket).is_err());
        fs::create_dir(&inner).unwrap();
        let arrival = Arrival::of(&socket).unwrap();
        fs::remove_dir(&inner).unwrap();
        assert_eq!(arrival.read_events(), SocketEvent::Unwatched);
    }

    #[test]
    fn one_poll_reads_a_bounded_number_of_events() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("d.sock");
        let arrival = Arrival::of(&socket).unwrap();
        for name in 0..2 * EVENTS_MAX {
            File::create(folder.path().join(name.to_string())).unwrap();
        }
        File::create(&socket).unwrap();
        let events: Vec<SocketEvent> = (0..40).map(|_| arrival.read_events()).collect();
        assert_eq!(events[0], SocketEvent::Nothing);
        assert!(
            events.contains(&SocketEvent::Created),
            "what is behind comes later"
        );
    }
}
