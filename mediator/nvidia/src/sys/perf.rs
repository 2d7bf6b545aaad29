//! What the kernel tells of another program's threads: that one writes to an address, that one comes to a processor or leaves it (perf_event_open(2)). The program is not stopped, and nothing of it is read.

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

/// PERF_TYPE_SOFTWARE and PERF_COUNT_SW_DUMMY, which counts nothing. SOURCE: the same.
const SOFTWARE: (u32, u64) = (1, 9);
/// PERF_TYPE_BREAKPOINT. SOURCE: the same.
const BREAKPOINT: u32 = 5;
/// HW_BREAKPOINT_W, and HW_BREAKPOINT_LEN_4. SOURCE: `linux/hw_breakpoint.h`.
const WRITES: u32 = 2;
const WORD: u64 = 4;
/// Disabled at first; without what the kernel does. SOURCE: `linux/perf_event.h`: bits 0 and 5 of the flags.
const DISABLED: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// A record for each switch of the thread; it is told of so many bytes instead of events. SOURCE: the same: bits 26 and 14.
const SWITCHES: u64 = 1 << 26;
const WATERMARK: u64 = 1 << 14;
/// PERF_RECORD_SWITCH, which is a header alone: what, which way, and how long it is. SOURCE: the same.
const SWITCH: u32 = 14;
const SWITCH_BYTES: u64 = 8;
/// PERF_RECORD_MISC_SWITCH_OUT, and _PREEMPT: it would have gone on. SOURCE: the same.
const OUT: u16 = 1 << 13;
const PREEMPTED: u16 = 1 << 14;
/// PERF_FLAG_FD_CLOEXEC. SOURCE: the same.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
/// PERF_EVENT_IOC_ENABLE and PERF_EVENT_IOC_DISABLE. SOURCE: the same. (PERF_EVENT_IOC_REFRESH would end by itself after the first, and never come again: Linux 6.18 leaves a breakpoint
/// stopped that was stopped by its limit; measured: 1 of 200.)
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
/// What is told is written to a page behind one of the kernel's, which says how many bytes there were (`data_head`). It is overwritten, whether or not somebody reads it. SOURCE: the same.
const PAGE: usize = 4096;
const RING_BYTES: usize = 2 * PAGE;
const HEAD_AT: usize = 1024;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// On a processor, or about to be again.
    Runs,
    /// It waits for something.
    Sleeps,
}

/// One kind of thing that one thread does, told by a descriptor that becomes readable.
#[derive(Debug)]
pub(crate) struct ThreadEvent {
    event: File,
    ring: SharedPages,
}

impl ThreadEvent {
    /// That a thread writes to a word of its memory.
    ///
    /// # Errors
    /// The kernel's: no right to watch it, no such thread, no breakpoint left.
    pub(crate) fn writes(thread: u32, address: u64) -> io::Result<Self> {
        Self::open(
            thread,
            &Attributes {
                kind: BREAKPOINT,
                breakpoint: WRITES,
                address,
                length: WORD,
                flags: DISABLED | EXCLUDE_KERNEL,
                sample_period: 1,
                ..Attributes::default()
            },
        )
    }

    /// That a thread comes to a processor, and that it leaves it, from now on.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn switches(thread: u32) -> io::Result<Self> {
        let (kind, config) = SOFTWARE;
        Self::open(
            thread,
            &Attributes {
                kind,
                config,
                flags: SWITCHES | WATERMARK,
                ..Attributes::default()
            },
        )
    }

    /// Where the thread is, by the last of its switches; none before the first.
    pub(crate) fn whereabouts(&self) -> Option<Whereabouts> {
        let head = u64::from_le_bytes(self.ring.read(HEAD_AT)?);
        // CAST: less than a page.
        let last = (head.checked_sub(SWITCH_BYTES)? % PAGE as u64) as usize;
        let record = self.ring.read::<8>(PAGE + last)?;
        whereabouts(record)
    }

    fn open(thread: u32, of: &Attributes) -> io::Result<Self> {
        let attributes = Attributes {
            // CAST: 72.
            size: size_of::<Attributes>() as u32,
            wakeup_events: 1, // or bytes
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
        Ok(Self { event, ring })
    }

    /// It is told from now on, or not any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn set(&self, on: bool) -> io::Result<()> {
        let request = if on { ENABLE } else { DISABLE };
        // SAFETY: neither request takes an argument that is an address.
        let result = unsafe { libc::ioctl(self.event.as_raw_fd(), request as _, 0) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Where a thread is after this record.
fn whereabouts(record: [u8; 8]) -> Option<Whereabouts> {
    let [a, b, c, d, low, high, ..] = record;
    let misc = u16::from_le_bytes([low, high]);
    (u32::from_le_bytes([a, b, c, d]) == SWITCH).then_some(
        if misc & OUT != 0 && misc & PREEMPTED == 0 {
            Whereabouts::Sleeps
        } else {
            Whereabouts::Runs
        },
    )
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
    fn a_thread_that_wakes_and_waits_is_told() {
        let (thread, word, write) = writer();
        let event = match ThreadEvent::switches(thread) {
            Ok(event) => event,
            Err(error) => return println!("skipped: no events of threads here: {error}"),
        };
        for value in 1..=600 {
            // It wakes, writes, and waits for the next: more often than there is room for.
            write.send(value).unwrap();
            assert!(is_told(&event, 900), "{value}");
            let begin = std::time::Instant::now();
            while word.load(Ordering::SeqCst) != value
                || event.whereabouts() != Some(Whereabouts::Sleeps)
            {
                // TIMEOUT: it has nothing else to do.
                assert!(begin.elapsed().as_secs() < 20, "{value}");
                thread::yield_now();
            }
            is_told(&event, 0);
        }
        // The last one may have woken it once more than it had to.
        let begin = std::time::Instant::now();
        while is_told(&event, 30) {
            // TIMEOUT: as above.
            assert!(begin.elapsed().as_secs() < 20, "nothing happens");
        }
    }

    #[test]
    fn a_record_says_where_the_thread_is() {
        let record = |kind: u8, misc: u16| {
            let [low, high] = misc.to_le_bytes();
            whereabouts([kind, 0, 0, 0, low, high, 8, 0])
        };
        assert_eq!(record(14, 2), Some(Whereabouts::Runs));
        assert_eq!(record(14, 2 | OUT), Some(Whereabouts::Sleeps));
        assert_eq!(record(14, OUT | PREEMPTED), Some(Whereabouts::Runs));
        assert_eq!(record(2, OUT), None, "records were lost");
    }

    #[test]
    fn no_such_thread_is_an_error() {
        assert!(ThreadEvent::switches(0x7fff_fff0).is_err());
    }
}
