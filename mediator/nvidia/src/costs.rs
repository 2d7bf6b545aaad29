//! What watching and holding cost the daemon: times, wall clock, processor.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of the calling thread, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // CAST: none is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What one kind of work cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// How often it was done.
    pub(super) count: u64,
    /// How long it took.
    pub(super) wall_ns: u64,
    /// Processor time in it.
    pub(super) cpu_ns: u64,
}

/// One piece of work under way.
#[derive(Debug)]
pub(super) struct Work {
    begin: Instant,
    /// None if it never waits.
    cpu_ns: Option<u64>,
}

impl Work {
    /// It begins, on this thread.
    pub(super) fn begin() -> Self {
        Self {
            begin: Instant::now(),
            cpu_ns: Some(thread_cpu_ns()),
        }
    }

    /// The same of some microseconds in which nothing is waited for: to ask the kernel for the processor time would take as long.
    pub(super) fn brief() -> Self {
        Self {
            begin: Instant::now(),
            cpu_ns: None,
        }
    }
}

impl Cost {
    /// A piece of work of this kind ends, on the thread on which it began.
    pub(super) fn add(&mut self, work: &Work) {
        self.count += 1;
        // CAST: 584 years.
        let wall_ns = work.begin.elapsed().as_nanos() as u64;
        self.wall_ns += wall_ns;
        self.cpu_ns += match work.cpu_ns {
            Some(cpu_ns) => thread_cpu_ns().saturating_sub(cpu_ns),
            None => wall_ns,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sleep_costs_no_processor_time_and_work_does() {
        let (mut slept, mut worked) = (Cost::default(), Cost::default());
        let work = Work::begin();
        std::thread::sleep(Duration::from_millis(20));
        slept.add(&work);
        let work = Work::begin();
        let begin_ns = thread_cpu_ns();
        while thread_cpu_ns() < begin_ns + 5_000_000 {
            std::hint::spin_loop();
        }
        worked.add(&work);
        worked.add(&work);
        assert!(
            slept.wall_ns >= 20_000_000 && slept.cpu_ns < 5_000_000,
            "{slept:?}"
        );
        let brief = Work::brief();
        let before = worked;
        worked.add(&brief);
        assert!(
            worked.cpu_ns - before.cpu_ns == worked.wall_ns - before.wall_ns,
            "{worked:?}"
        );
        assert!(
            worked.count == 3 && worked.cpu_ns >= 10_000_000,
            "{worked:?}"
        );
    }
}
