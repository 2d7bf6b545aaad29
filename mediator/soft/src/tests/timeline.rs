//! A log as a timeline: what each engine did for how long.

use std::collections::BTreeMap;

use turnstile_accounting::{EngineState, Moment, SwitchEvent, TenantId};

use crate::ENGINES;

/// Nanoseconds of one engine.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) idle: u64,
    pub(super) switching: u64,
    pub(super) running: BTreeMap<TenantId, u64>,
    pub(super) fault: u64,
}

impl Totals {
    pub(super) fn of(&self, tenant: TenantId) -> u64 {
        self.running.get(&tenant).copied().unwrap_or(0)
    }

    pub(super) fn sum(&self) -> u64 {
        self.idle + self.switching + self.fault + self.running.values().sum::<u64>()
    }
}

/// Adds up a complete log. Panics if the log is no timeline: it has a gap, a step back, or a record
/// that changes nothing.
pub(super) fn totals(events: &[SwitchEvent], end: Moment) -> [Totals; ENGINES] {
    let mut all: [Totals; ENGINES] = Default::default();
    for (engine, totals) in all.iter_mut().enumerate() {
        let log: Vec<_> = events
            .iter()
            .filter(|e| usize::from(e.engine.0) == engine)
            .collect();
        assert_eq!(
            (log[0].at, log[0].seq, log[0].state),
            (Moment(0), 0, EngineState::Idle)
        );
        for (i, event) in log.iter().enumerate() {
            let next = log.get(i + 1);
            if let Some(next) = next {
                assert_eq!(next.seq, event.seq + 1);
                assert!(
                    next.at >= event.at && next.state != event.state,
                    "{event:?} {next:?}"
                );
            }
            let length = next.map_or(end, |next| next.at).0 - event.at.0;
            match event.state {
                EngineState::Idle => totals.idle += length,
                EngineState::Switching => totals.switching += length,
                EngineState::Running(tenant) => {
                    *totals.running.entry(tenant).or_default() += length
                }
                EngineState::Fault(_) => totals.fault += length,
            }
        }
    }
    all
}
