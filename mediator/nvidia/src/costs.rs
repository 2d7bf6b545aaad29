//! What observing and holding cost the daemon: number of times, wall-clock time, processor time.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of the calling thread, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // CAST: none is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Cost of one kind of work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Number of times.
    pub(super) count: u64,
    /// Wall-clock time.
    pub(super) wall_ns: u64,
    /// Processor time.
    pub(super) cpu_ns: u64,
}

/// One piece of work in progress.
#[derive(Debug)]
pub(super) struct Work {
    begin: Instant,
    /// None for work that never waits.
    cpu_ns: Option<u64>,
}

impl Work {
    /// Begins work on this thread.
    pub(super) fn begin() -> Self {
        Self {
            begin: Instant::now(),
            cpu_ns: Some(thread_cpu_ns()),
        }
    }

    /// The same for some microseconds without waiting: reading the processor time would take as
    /// long.
    pub(super) fn brief() -> Self {
        Self {
            begin: Instant::now(),
            cpu_ns: None,
        }
    }
}

impl Cost {
    /// Ends a piece of work of this kind, on the thread on which it began.
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
