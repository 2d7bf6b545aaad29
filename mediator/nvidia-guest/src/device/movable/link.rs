//! The connection to the daemon, through the launcher: a confined process cannot connect itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use turnstile_preload_wire::descriptors::send;
use turnstile_preload_wire::socket::ProcessLine;
use turnstile_preload_wire::{ToDaemon, ToLibrary, VERSION};

/// TIMEOUT: a daemon answers within a period; a launcher that passes nothing on counts as none.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The launcher's socket, which takes connections for the daemon.
#[derive(Debug)]
pub(super) struct Link {
    launcher: OwnedFd,
}

impl Link {
    pub(super) const fn new(launcher: OwnedFd) -> Self {
        Self { launcher }
    }

    /// Connects and greets. Returns the connection, and what the VM may have at most.
    ///
    /// # Errors
    /// If the launcher is gone. `None` if there is no daemon, or another version.
    pub(super) fn connect(&self) -> io::Result<Option<(Arc<ProcessLine>, u64)>> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        send(&self.launcher, &[0], &[theirs.as_fd()], SendFlags::empty())?;
        drop(theirs);
        let line = ProcessLine::new(ours)?;
        let hello = ToDaemon::Hello { version: VERSION };
        if !line.say(&hello, None) || !line.has_message(ANSWER_LIMIT) {
            return Ok(None);
        }
        Ok(match line.next() {
            Ok(Some((
                ToLibrary::Welcome {
                    version: VERSION,
                    limit_bytes,
                },
                _,
            ))) => Some((Arc::new(line), limit_bytes)),
            _ => None,
        })
    }
}
