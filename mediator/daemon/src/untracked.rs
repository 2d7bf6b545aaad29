//! Logs, once each, processes that use the GPU and belong to no tenant.

use std::collections::BTreeSet;

use turnstile_accounting::{Moment, Nanos};

use turnstile_gpu::Untracked;

/// Interval of the check.
const EVERY: Nanos = Nanos::from_ms(1000);
/// Processes remembered. Beyond that, a process may be logged again.
const KEPT_MAX: usize = 4096;

/// Processes that were logged.
#[derive(Debug, Default)]
pub(super) struct UntrackedLog {
    next: Option<Moment>,
    pids: BTreeSet<u32>,
}

impl UntrackedLog {
    /// Checks, if the interval has passed.
    pub(super) fn check(&mut self, now: Moment, untracked: impl FnOnce() -> Vec<Untracked>) {
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + EVERY);
        for process in self.news(&untracked()) {
            log::warn!(
                "Process {} ({}) uses the GPU and belongs to no tenant: its time is charged to no tenant and it is never held; start it with turnstile run",
                process.pid,
                process.name.escape_default()
            );
        }
    }

    fn news<'a>(&mut self, untracked: &'a [Untracked]) -> Vec<&'a Untracked> {
        if self.pids.len() + untracked.len() > KEPT_MAX {
            self.pids.clear();
        }
        let news = |process: &&Untracked| self.pids.insert(process.pid);
        untracked.iter().take(KEPT_MAX).filter(news).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Untracked {
        Untracked {
            pid,
            name: "python3".into(),
            switches: 5,
        }
    }

    #[test]
    fn a_process_is_logged_once() {
        let mut log = UntrackedLog::default();
        let (one, two) = (process(1), process(2));
        assert_eq!(log.news(std::slice::from_ref(&one)), [&one]);
        assert_eq!(log.news(&[one.clone(), two.clone()]), [&two]);
        assert!(log.news(&[one, two]).is_empty());
    }

    #[test]
    fn processes_are_checked_each_second() {
        let (mut log, mut checks) = (UntrackedLog::default(), 0);
        for ms in 0..3000 {
            log.check(Moment(0) + Nanos::from_ms(ms), || {
                checks += 1;
                Vec::new()
            });
        }
        assert_eq!(checks, 3);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut log = UntrackedLog::default();
        let many: Vec<Untracked> = (0..3 * KEPT_MAX as u32).map(process).collect();
        for some in many.chunks(1000) {
            log.news(some);
            assert!(log.pids.len() <= KEPT_MAX);
        }
        log.news(&many);
        assert!(log.pids.len() <= KEPT_MAX);
    }
}
