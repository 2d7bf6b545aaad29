//! A process beside the launcher that holds the filter's other end as well.
//!
//! A call that a filter sends to a supervisor fails when there is none. The keeper prevents that a
//! killed launcher ends its program. It waits until the launcher's end of a pipe closes, and then
//! answers calls itself: it refuses what a tenant may not do, and lets all else continue without a
//! report. It ends when no filtered process is left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};

use super::LaunchError;
use turnstile_nvidia::notify::Listener;

/// Keeps `listener` until no process needs it; `launcher` closes when the launcher is gone.
///
/// # Errors
/// If the listener is none.
fn keep(launcher: BorrowedFd<'_>, listener: OwnedFd) -> Result<(), LaunchError> {
    let mut listener = Listener::from_fd(listener)?;
    let mut alone = false;
    let mut seen = Vec::new();
    loop {
        let mut fds = [
            // Waits for its hanging up in any case.
            PollFd::new(
                &listener,
                if alone {
                    PollFlags::IN
                } else {
                    PollFlags::empty()
                },
            ),
            PollFd::from_borrowed_fd(launcher, PollFlags::IN),
        ];
        let watched = if alone { &mut fds[..1] } else { &mut fds[..] };
        match poll(watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(LaunchError::Host(error.into())),
        }
        let [calls, ended] = fds.map(|fd| fd.revents());
        if calls.contains(PollFlags::IN) {
            listener.next(&mut seen)?;
            seen.clear();
        } else if !calls.is_empty() {
            return Ok(());
        }
        alone |= !ended.is_empty();
    }
}

/// The keeper as a process: the pipe is its standard input, the listener its standard output.
///
/// # Errors
/// As [`keep`].
pub(crate) fn serve() -> Result<(), LaunchError> {
    let listener = io::stdout().as_fd().try_clone_to_owned();
    keep(io::stdin().as_fd(), listener.map_err(LaunchError::Host)?)
}
