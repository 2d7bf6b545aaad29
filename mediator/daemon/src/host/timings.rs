//! Switch times and wake-up latencies, from the engines' log as it is read.

use std::collections::BTreeMap;

use turnstile_accounting::{EngineState, Moment, SwitchEvent, TenantId};

use crate::histogram::Histogram;
use turnstile_mediation::COMPUTE;

/// Records of the compute engine's log since the accounting thread's last report to the host.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    switching_from: Option<Moment>,
    switches: Vec<turnstile_accounting::Nanos>,
    ran: Vec<(TenantId, Moment)>,
}

/// Limit of kept residencies and switches; a log of one period has fewer.
const SEEN_MAX: usize = 4_096;

impl Seen {
    /// Whether nothing was seen.
    pub(crate) const fn is_empty(&self) -> bool {
        self.switches.is_empty() && self.ran.is_empty()
    }

    pub(crate) fn event(&mut self, event: &SwitchEvent) {
        if event.engine != COMPUTE {
            return;
        }
        let full = self.switches.len() >= SEEN_MAX || self.ran.len() >= SEEN_MAX;
        if let (Some(from), false) = (self.switching_from.take(), full) {
            self.switches.push(event.at.since(from));
        }
        match event.state {
            EngineState::Switching => self.switching_from = Some(event.at),
            EngineState::Running(tenant) if !full => self.ran.push((tenant, event.at)),
            EngineState::Running(_) | EngineState::Idle | EngineState::Fault(_) => {}
        }
    }
}

/// The host's switch times and latencies.
#[derive(Debug, Default)]
pub(crate) struct Timings {
    switches: Histogram,
    /// When each waiting tenant became runnable.
    woken: BTreeMap<TenantId, Moment>,
    latencies: BTreeMap<TenantId, Histogram>,
}

impl Timings {
    /// A doorbell write trapped, of a tenant that is not on the engine.
    pub(crate) fn woke(&mut self, tenant: TenantId, now: Moment) {
        self.woken.entry(tenant).or_insert(now);
    }

    pub(crate) fn forget(&mut self, tenant: TenantId) {
        self.woken.remove(&tenant);
        self.latencies.remove(&tenant);
    }

    /// Takes over what was seen in the log.
    pub(crate) fn take(&mut self, seen: &mut Seen) {
        for length in seen.switches.drain(..) {
            self.switches.observe(length);
        }
        for (tenant, at) in seen.ran.drain(..) {
            if let Some(woken) = self.woken.get(&tenant).copied()
                && woken <= at
            {
                self.woken.remove(&tenant);
                let latency = self.latencies.entry(tenant).or_default();
                latency.observe(at.since(woken));
            }
        }
    }

    /// Lengths of the compute engine's switches.
    pub(crate) const fn switches(&self) -> Histogram {
        self.switches
    }

    /// From a tenant's waking up to its being on the engine.
    pub(crate) fn latency(&self, tenant: TenantId) -> Histogram {
        self.latencies.get(&tenant).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_accounting::{EngineId, Nanos};

    const A: TenantId = TenantId(1);

    fn event(at: u64, state: EngineState) -> SwitchEvent {
        SwitchEvent {
            at: Moment(at),
            engine: COMPUTE,
            seq: 0,
            state,
        }
    }

    #[test]
    fn a_wait_goes_from_waking_up_to_the_engine() {
        let (mut seen, mut timings) = (Seen::default(), Timings::default());
        timings.woke(A, Moment(100));
        timings.woke(A, Moment(300));
        // Before the wake-up: an earlier residency.
        for (at, state) in [
            (50, EngineState::Running(A)),
            (90, EngineState::Switching),
            (1_090, EngineState::Idle),
            (2_000, EngineState::Switching),
            (2_100, EngineState::Running(A)),
            (9_000, EngineState::Running(A)),
        ] {
            seen.event(&event(at, state));
        }
        seen.event(&SwitchEvent {
            engine: EngineId(1),
            ..event(9_999, EngineState::Switching)
        });
        timings.take(&mut seen);
        assert_eq!(timings.switches().count(), 2);
        assert_eq!(timings.switches().sum(), Nanos(1_100));
        let latency = timings.latency(A);
        assert_eq!((latency.count(), latency.sum()), (1, Nanos(2_000)));
        timings.forget(A);
        assert_eq!(timings.latency(A).count(), 0);
    }
    #[test]
    fn records_beyond_those_of_a_usual_period_are_not_kept() {
        let (mut seen, mut timings) = (Seen::default(), Timings::default());
        timings.woke(A, Moment(0));
        for at in 0..2 * SEEN_MAX as u64 {
            seen.event(&event(at, EngineState::Switching));
        }
        seen.event(&event(u64::MAX, EngineState::Running(A)));
        timings.take(&mut seen);
        assert_eq!(timings.switches().count(), SEEN_MAX as u64);
        assert_eq!(timings.latency(A).count(), 0, "no room for it");
        for at in 0..2 * SEEN_MAX as u64 {
            seen.event(&event(at, EngineState::Running(A)));
        }
        assert_eq!(seen.ran.len(), SEEN_MAX);
    }
}
