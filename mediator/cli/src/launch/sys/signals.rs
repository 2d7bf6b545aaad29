//! Signals as a file, with their origin.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null_mut;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) struct Received {
    /// Which.
    pub(in crate::launch) number: i32,
    /// The kernel sent it (the terminal's keys do so), to all of a process group.
    pub(in crate::launch) by_kernel: bool,
}

/// Some signals of this thread, read from a file.
#[derive(Debug)]
pub(in crate::launch) struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Signals {
    /// Takes these signals from now on; threads that begin later do not get them either.
    ///
    /// # Errors
    /// The kernel's.
    pub(in crate::launch) fn take(numbers: &[i32]) -> io::Result<Self> {
        // SAFETY: a set of signals is an array of integers, of which zero bytes are a value.
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { zeroed() };
        // SAFETY: the calls read and write only the two sets and the signal's action. The default
        // action of SIGCHLD harms nothing here. It may have been inherited as ignored, and then no
        // child could be waited for.
        let fd = unsafe {
            libc::sigemptyset(&raw mut set);
            for number in numbers {
                libc::sigaddset(&raw mut set, *number);
            }
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let errno = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor, which has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, before })
    }

    /// The next signal, if one has arrived.
    pub(in crate::launch) fn next(&self) -> Option<Received> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let bytes = size_of_val(&info);
        // SAFETY: the kernel writes at most as many bytes as the structure has.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), bytes) };
        if usize::try_from(got).is_ok_and(|got| got == bytes) {
            // SAFETY: the kernel wrote all of it; it is of integers.
            let info = unsafe { info.assume_init() };
            return Some(Received {
                // CAST: signals are 1 to 64.
                number: info.ssi_signo as i32,
                by_kernel: info.ssi_code == libc::SI_KERNEL,
            });
        }
        None
    }

    /// Makes `command` begin with the signals that were blocked before, not with these.
    pub(in crate::launch) fn give_back_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: the call reads the set, which the closure owns.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) }
            {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        };
        // SAFETY: it runs between fork and exec and makes one system call, without allocating or
        // taking a lock.
        unsafe { command.pre_exec(restore) };
    }
}
