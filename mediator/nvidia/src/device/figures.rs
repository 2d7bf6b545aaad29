//! What sharing takes, in numbers: for `turnstile bench` and who looks for a cause.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::{Shared, lock};

impl Shared {
    /// All of them by name; times in nanoseconds.
    pub(super) fn figures(&self) -> BTreeMap<&'static str, u64> {
        let (calls, gates) = (self.hands.calls(), self.hands.work());
        let (reads, losses, dropped) = {
            let watched = lock(&self.watched);
            (watched.reads, watched.log.losses(), watched.log.dropped())
        };
        let mut figures = self.programs.figures();
        figures.extend([
            ("suspend_calls", calls.count),
            ("suspend_calls_failed", calls.failed),
            ("suspend_calls_ns", calls.total_ns),
            ("log_records", reads.records),
            ("log_records_missing", losses.missing),
            ("log_records_dropped", dropped),
        ]);
        let (status, asking) = (*lock(&self.status), *lock(&self.asking));
        // CAST: channels of a GPU are few.
        let read = lock(&self.userds).count() as u64;
        figures.insert("channels_read", read);
        let heard = self.heard.load(Ordering::Relaxed);
        figures.insert("hosts_heard", heard);
        let (naps, looks) = (&self.naps, &self.looks);
        figures.insert("naps", naps.load(Ordering::Relaxed));
        figures.insert("looks", looks.load(Ordering::Relaxed));
        let ushering = lock(&self.ushering);
        figures.extend([
            ("usher_takes", ushering.takes),
            ("usher_arrivals", ushering.arrivals),
        ]);
        drop(ushering);
        let counters = *lock(&self.counting);
        let age_known = self.age_known.get();
        figures.extend([
            ("age_known", u64::from(age_known == Some(&true))),
            ("age_looked_for", u64::from(age_known.is_none())),
        ]);
        for (cost, names) in [
            (gates, ["gate_works", "gate_works_ns", "gate_works_cpu_ns"]),
            (reads.log, ["log_reads", "log_reads_ns", "log_reads_cpu_ns"]),
            (
                counters,
                ["counter_reads", "counter_reads_ns", "counter_reads_cpu_ns"],
            ),
            (
                status,
                ["status_reads", "status_reads_ns", "status_reads_cpu_ns"],
            ),
            (
                asking,
                ["channel_asks", "channel_asks_ns", "channel_asks_cpu_ns"],
            ),
        ] {
            let values = [cost.count, cost.wall_ns, cost.cpu_ns];
            figures.extend(names.into_iter().zip(values));
        }
        figures
    }
}
