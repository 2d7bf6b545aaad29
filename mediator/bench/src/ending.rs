//! Processes that end by themselves, or are killed.

use std::io;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How a process ended, if it does within `limit`.
///
/// # Errors
/// As wait(2).
pub(super) fn ended_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a process that is to end, and kills it after `limit`.
pub(super) fn end(child: &mut Child, limit: Duration) {
    if !matches!(ended_within(child, limit), Ok(Some(_))) {
        let _ = child.kill();
        let _ = child.wait();
    }
}
