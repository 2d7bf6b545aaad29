//! What the kernel tells of another program's threads: that one writes to an address, that one leaves its processor (perf_event_open(2)). The program is not stopped, and nothing of it is read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::map::SharedPages;

/// `struct perf_event_attr` as far as it is used. SOURCE: `linux/perf_event.h`: PERF_ATTR_SIZE_VER1.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    address: u64,
    length: u64,
}

/// PERF_TYPE_SOFTWARE and PERF_COUNT_SW_CONTEXT_SWITCHES. SOURCE: the same.
const SOFTWARE: (u32, u64) = (1, 3);
/// PERF_TYPE_BREAKPOINT. SOURCE: the same.
const BREAKPOINT: u32 = 5;
/// HW_BREAKPOINT_W, and HW_BREAKPOINT_LEN_4. SOURCE: `linux/hw_breakpoint.h`.
const WRITES: u32 = 2;
const WORD: u64 = 4;
/// Disabled at first; without what the kernel does. SOURCE: `linux/perf_event.h`: bits 0 and 5 of the flags.
const DISABLED: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// PERF_FLAG_FD_CLOEXEC. SOURCE: the same.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
/// PERF_EVENT_IOC_ENABLE and PERF_EVENT_IOC_DISABLE. SOURCE: the same. (PERF_EVENT_IOC_REFRESH would end by itself after the first, and never come again: Linux 6.18 leaves a breakpoint
/// stopped that was stopped by its limit; measured: 1 of 200.)
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
/// What is told is written to a page behind one of the kernel's; nobody reads it, so that it is overwritten.
const RING_BYTES: usize = 2 * 4096;

/// One kind of thing that one thread does, told by a descriptor that becomes readable.
#[derive(Debug)]
pub(in crate::gpu::nvidia) struct ThreadEvent {
    event: File,
    _ring: SharedPages,
}

impl ThreadEvent {
    /// That a thread writes to a word of its memory.
    ///
    /// # Errors
    /// The kernel's: no right to watch it, no such thread, no breakpoint left.
    pub(in crate::gpu::nvidia) fn writes(thread: u32, address: u64) -> io::Result<Self> {
        Self::open(
            thread,
            &Attributes {
                kind: BREAKPOINT,
                breakpoint: WRITES,
                address,
                length: WORD,
                flags: DISABLED | EXCLUDE_KERNEL,
                ..Attributes::default()
            },
        )
    }

    /// That a thread leaves its processor.
    ///
    /// # Errors
    /// The kernel's.
    pub(in crate::gpu::nvidia) fn leaves(thread: u32) -> io::Result<Self> {
        let (kind, config) = SOFTWARE;
        Self::open(
            thread,
            &Attributes {
                kind,
                config,
                flags: DISABLED,
                ..Attributes::default()
            },
        )
    }

    fn open(thread: u32, of: &Attributes) -> io::Result<Self> {
        let attributes = Attributes {
            // CAST: 72.
            size: size_of::<Attributes>() as u32,
            sample_period: 1,
            wakeup_events: 1,
            ..*of
        };
        let (any_processor, no_group) = (-1_i32, -1_i32);
        // SAFETY: the kernel reads the attributes, whose size they tell, during the call alone.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                // CAST: numbers of threads are positive and far smaller.
                thread as libc::pid_t,
                any_processor,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, for nobody else. CAST: a descriptor.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        // The descriptor tells nothing without.
        let ring = SharedPages::of_file(&event, RING_BYTES)?;
        Ok(Self { event, _ring: ring })
    }

    /// It is told from now on, or not any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(in crate::gpu::nvidia) fn set(&self, on: bool) -> io::Result<()> {
        let request = if on { ENABLE } else { DISABLE };
        // SAFETY: neither request takes an argument that is an address.
        let result = unsafe { libc::ioctl(self.event.as_raw_fd(), request as _, 0) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsFd for ThreadEvent {
    /// Readable when it was told since that was last asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;

    fn is_told(event: &ThreadEvent, within_ms: i64) -> bool {
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        let within = Timespec {
            tv_sec: 0,
            tv_nsec: within_ms * 1_000_000,
        };
        poll(&mut fds, Some(&within)).unwrap() > 0
    }

    /// A thread that writes when it is told to, and what it writes to.
    fn writer() -> (u32, &'static AtomicU32, mpsc::Sender<u32>) {
        let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        let (write, writes) = mpsc::channel::<u32>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32)
                .unwrap();
            for value in writes {
                word.store(value, Ordering::SeqCst);
            }
        });
        (told.recv().unwrap(), word, write)
    }

    #[test]
    fn attributes_are_laid_out_as_the_kernel_has_them() {
        assert_eq!(size_of::<Attributes>(), 72);
        assert_eq!(std::mem::offset_of!(Attributes, flags), 40);
        assert_eq!(std::mem::offset_of!(Attributes, address), 56);
    }

    #[test]
    fn a_thread_that_writes_is_told_each_time_it_is_listened_for() {
        let (thread, word, write) = writer();
        let event = match ThreadEvent::writes(thread, std::ptr::from_ref(word) as u64) {
            Ok(event) => event,
            Err(error) => return println!("skipped: no breakpoints here: {error}"),
        };
        for round in 1..=3 {
            event.set(true).unwrap();
            assert!(!is_told(&event, 0), "{round}: nothing was written yet");
            write.send(round).unwrap();
            assert!(is_told(&event, 900), "{round}");
            event.set(false).unwrap();
            is_told(&event, 0);
            write.send(round + 10).unwrap();
            assert!(!is_told(&event, 30), "{round}: nobody listens");
        }
    }

    #[test]
    fn a_thread_that_waits_is_told() {
        let (thread, _, write) = writer();
        let event = match ThreadEvent::leaves(thread) {
            Ok(event) => event,
            Err(error) => return println!("skipped: no events of threads here: {error}"),
        };
        event.set(true).unwrap();
        // It wakes, writes, and waits for the next.
        write.send(1).unwrap();
        assert!(is_told(&event, 900));
    }

    #[test]
    fn no_such_thread_is_an_error() {
        assert!(ThreadEvent::leaves(0x7fff_fff0).is_err());
    }
}
