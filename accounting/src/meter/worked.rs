//! The meter of an engine that divides its time by itself and has a busy counter.
//!
//! In: the context-switch log, the busy counter's time of each window, and readings of whether the
//! engine worked while a tenant was resident. Out: for each window the time that each tenant
//! *worked*, and the time that it was *resident*.
//!
//! # Invariants
//! - *Worked* is at most *resident*, and the window balances (law 1): time in which a tenant was
//!   resident and did not work is idle time of the engine.
//! - With one tenant resident, the idle time is exact: resident time less the counter's busy time,
//!   without switches. A switch counts as busy.
//! - With several, the idle time of the window is split by readings, and the window is marked.
//! - The counter includes the time of copies. While copies run, the readings show which part of its
//!   residency each tenant was idle, and the window is marked. A tenant that is alone stays
//!   resident while it is idle, and a tenant beside others does not, so each case has its own
//!   readings.
//! - Without the counter, or with a hole in the log, *resident* replaces *worked*.

use super::{EventMeter, Meter, Observation};
use crate::poll::Reading;
use crate::state::SwitchEvent;
use crate::units::{EngineId, Nanos, TenantId};
use crate::usage::{EngineUsage, Signals, TenantUsage, Usage};
use crate::window::Window;
use std::collections::BTreeMap;

/// Readings of a tenant that are remembered per case: 20 s of reads every 20 ms.
const READINGS_MAX: u32 = 1_024;

/// Weight, as a part of residency, by which idle time is split if no reading shows any.
const UNEXPLAINED: f64 = 1e-9;

/// What else happens while a tenant is resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Copies run: the counter includes their time.
    pub copies: bool,
    /// Other tenants that may run have work: the hardware takes the engine from an idle one.
    pub beside: bool,
}

/// How often a resident tenant was read, and how often without work.
#[derive(Clone, Copy, Debug, Default)]
struct IdleReadings {
    idle: u32,
    all: u32,
}

impl IdleReadings {
    fn add(&mut self, works: bool) {
        if self.all >= READINGS_MAX {
            (self.idle, self.all) = (self.idle / 2, self.all / 2);
        }
        self.all += 1;
        self.idle += u32::from(!works);
    }

    /// The part of its residency, in nanoseconds, in which a tenant is expected to have been idle.
    fn idle_of(self, resident: Nanos) -> f64 {
        resident.0 as f64 * f64::from(self.idle) / f64::from(self.all.max(1))
    }
}

/// What one window was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worked {
    /// The window's usage, in which a tenant's time is what it worked.
    pub usage: Usage,
    /// The time that each tenant worked and was resident; `waited` is zero.
    pub readings: Vec<Reading>,
    /// Idle time of several tenants was split by readings.
    pub split: bool,
}

/// The meter of one engine.
#[derive(Debug)]
pub struct WorkedMeter {
    engine: EngineId,
    log: EventMeter,
    idle: BTreeMap<(TenantId, Case), IdleReadings>,
}

impl WorkedMeter {
    /// A meter of `engine`.
    pub fn new(engine: EngineId) -> Self {
        Self {
            engine,
            log: EventMeter::new([engine]),
            idle: BTreeMap::new(),
        }
    }

    /// Takes a record of the log.
    pub fn switched(&mut self, event: SwitchEvent) {
        self.log.observe(Observation::Switch(event));
    }

    /// The log has a hole after its last record.
    pub fn lost(&mut self) {
        self.log.restart(self.engine);
    }

    /// A tenant was resident when the engine's status was read; `works`: the engine worked.
    pub fn read(&mut self, tenant: TenantId, works: bool, case: Case) {
        self.idle.entry((tenant, case)).or_default().add(works);
    }

    /// Drops the readings of a tenant.
    pub fn forget(&mut self, tenant: TenantId) {
        self.idle.retain(|(of, _), _| *of != tenant);
    }

    /// What `window` was used for.
    pub fn close(&mut self, window: Window, busy: Option<Nanos>, case: Case) -> Worked {
        let mut usage = self.log.close(window);
        let mut readings = Vec::new();
        let mut split = false;
        if let Some(engine) = usage.engines.first_mut() {
            let whole = engine.unobserved_ns == Nanos::ZERO;
            let busy = busy.filter(|_| whole);
            let idle = busy.map(|busy| self.split_idle(engine, busy, case));
            let counted = idle.is_some();
            if counted {
                usage.signals = Signals::EventsAndCounters;
            }
            let idle = idle.unwrap_or_default();
            let any_idle = idle.values().any(|idle| *idle > Nanos::ZERO);
            split = any_idle && (engine.tenants.len() > 1 || case.copies);
            for used in &mut engine.tenants {
                let resident = used.used_ns;
                let idle = idle.get(&used.tenant).copied().unwrap_or_default();
                used.used_ns = resident.saturating_sub(idle);
                engine.idle_ns += resident.saturating_sub(used.used_ns);
                if split {
                    engine.error_bound_ns += idle;
                }
                readings.push(Reading {
                    tenant: used.tenant,
                    worked: counted.then_some(used.used_ns),
                    resident: whole.then_some(resident),
                    waited: Nanos::ZERO,
                });
            }
        }
        Worked {
            usage,
            readings,
            split,
        }
    }

    /// The idle time of each tenant within its residency.
    fn split_idle(
        &self,
        engine: &EngineUsage,
        busy: Nanos,
        case: Case,
    ) -> BTreeMap<TenantId, Nanos> {
        let expected = |used: &TenantUsage| {
            let readings = self.idle.get(&(used.tenant, case)).copied();
            readings.unwrap_or_default().idle_of(used.used_ns)
        };
        let resident = engine.used_ns();
        let worked = busy.saturating_sub(engine.switching_ns);
        let mut left = resident.saturating_sub(worked).0;
        let mut parts: Vec<(TenantId, u64, f64)> = engine
            .tenants
            .iter()
            .map(|used| (used.tenant, used.used_ns.0, expected(used)))
            .collect();
        if case.copies {
            // The counter includes at least the kernels.
            let expected: f64 = parts.iter().map(|(.., weight)| weight).sum();
            // CAST: at most the resident time.
            left = left.max(expected as u64).min(resident.0);
        }
        // Idle time that readings do not explain belongs to all tenants, by residency.
        for (_, resident, weight) in &mut parts {
            *weight += *resident as f64 * UNEXPLAINED;
        }
        // A tenant cannot have been idle for longer than it was resident: smallest room first.
        let room = |resident: u64, weight: f64| resident as f64 / weight.max(f64::MIN_POSITIVE);
        parts.sort_by(|a, b| room(a.1, a.2).total_cmp(&room(b.1, b.2)));
        let mut weights: f64 = parts.iter().map(|(.., weight)| weight).sum();
        let mut idle = BTreeMap::new();
        let last = parts.len().saturating_sub(1);
        for (index, (tenant, resident, weight)) in parts.into_iter().enumerate() {
            let part = if index < last { weight / weights } else { 1.0 };
            // CAST: at most `left`.
            let own = ((left as f64 * part).round() as u64)
                .min(resident)
                .min(left);
            idle.insert(tenant, Nanos(own));
            left -= own;
            weights -= weight;
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::EngineState;
    use crate::units::Moment;
    use proptest::prelude::*;

    const ENGINE: EngineId = EngineId(0);
    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    /// A meter that took these states, each with the moment, in us, at which it began.
    fn meter(states: &[(u64, EngineState)]) -> WorkedMeter {
        let mut meter = WorkedMeter::new(ENGINE);
        for (seq, (at_us, state)) in (0..).zip(states) {
            meter.switched(SwitchEvent {
                at: Moment(at_us * 1_000),
                engine: ENGINE,
                seq,
                state: *state,
            });
        }
        meter
    }

    fn window(to_us: u64) -> Window {
        Window::starting(Moment(0), Nanos::from_us(to_us))
    }

    fn worked_us(worked: &Worked, tenant: TenantId) -> (u64, u64) {
        let of = |reading: &&Reading| reading.tenant == tenant;
        let reading = worked.readings.iter().find(of).unwrap();
        (
            reading.worked.unwrap().0 / 1_000,
            reading.resident.unwrap().0 / 1_000,
        )
    }

    #[test]
    fn one_resident_tenant_worked_what_the_counter_has_without_switches() {
        let states = [(0, EngineState::Switching), (100, EngineState::Running(A))];
        let worked =
            meter(&states).close(window(1_000), Some(Nanos::from_us(400)), Case::default());
        assert_eq!(worked_us(&worked, A), (300, 900));
        assert!(!worked.split);
        let engine = &worked.usage.engines[0];
        assert_eq!(engine.idle_ns, Nanos::from_us(600));
        assert_eq!(engine.accounted_ns(), Nanos::from_us(1_000));
    }

    #[test]
    fn idle_time_of_two_is_split_by_readings_and_marked() {
        let states = [(0, EngineState::Running(A)), (500, EngineState::Running(B))];
        let mut meter = meter(&states);
        for _ in 0..10 {
            meter.read(A, true, Case::default());
            meter.read(B, false, Case::default());
        }
        let worked = meter.close(window(1_000), Some(Nanos::from_us(800)), Case::default());
        assert_eq!(worked_us(&worked, A), (500, 500));
        assert_eq!(worked_us(&worked, B), (300, 500));
        assert!(worked.split);
        assert!(worked.usage.engines[0].error_bound_ns >= Nanos::from_us(200));
    }

    #[test]
    fn idle_time_beyond_a_residency_is_of_the_others() {
        let states = [(0, EngineState::Running(A)), (900, EngineState::Running(B))];
        let mut meter = meter(&states);
        meter.read(A, true, Case::default());
        meter.read(B, false, Case::default());
        let worked = meter.close(window(1_000), Some(Nanos::from_us(500)), Case::default());
        assert_eq!(worked_us(&worked, B), (0, 100));
        assert_eq!(worked_us(&worked, A), (500, 900));
    }

    #[test]
    fn a_tenant_that_copies_is_charged_what_readings_show() {
        let mut meter = meter(&[(0, EngineState::Running(A))]);
        let alone = Case {
            copies: true,
            beside: false,
        };
        for reading in 0..100 {
            meter.read(A, reading % 10 == 0, alone);
            meter.read(
                A,
                true,
                Case {
                    beside: true,
                    ..alone
                },
            );
        }
        let worked = meter.close(window(1_000), Some(Nanos::from_us(990)), alone);
        assert_eq!(worked_us(&worked, A), (100, 1_000));
        assert!(worked.split);
    }

    #[test]
    fn without_the_counter_resident_stands_for_worked() {
        let mut meter = meter(&[(0, EngineState::Running(A))]);
        let worked = meter.close(window(1_000), None, Case::default());
        assert_eq!(worked.readings[0].worked, None);
        assert_eq!(worked.readings[0].resident, Some(Nanos::from_us(1_000)));
        let used = worked.usage.engines[0].tenants[0].used_ns;
        assert_eq!(
            (used, worked.usage.signals),
            (Nanos::from_us(1_000), Signals::Events)
        );
    }

    #[test]
    fn with_a_hole_in_the_log_nothing_is_known() {
        let mut meter = meter(&[(0, EngineState::Running(A))]);
        meter.lost();
        let worked = meter.close(window(1_000), Some(Nanos::ZERO), Case::default());
        assert!(
            worked
                .readings
                .iter()
                .all(|reading| reading.resident.is_none())
        );
        assert_eq!(
            worked.usage.engines[0].accounted_ns(),
            Nanos::from_us(1_000)
        );
    }

    proptest! {
        /// With any readings, a window balances and no tenant worked longer than it was resident.
        #[test]
        fn windows_balance(
            states in prop::collection::vec((0_u64..50, 0_u32..5), 1..40),
            readings in prop::collection::vec((0_u32..4, any::<bool>()), 0..100),
            busy in prop::option::of(0_u64..4_000),
            copies in any::<bool>(),
        ) {
            let case = Case { copies, beside: false };
            let mut at_us = 0;
            let states: Vec<_> = states
                .iter()
                .map(|(after_us, state)| {
                    at_us += after_us;
                    let state = match state {
                        0 => EngineState::Idle,
                        1 => EngineState::Switching,
                        tenant => EngineState::Running(TenantId(*tenant)),
                    };
                    (at_us, state)
                })
                .collect();
            let mut meter = meter(&states);
            for (tenant, works) in readings {
                meter.read(TenantId(tenant), works, case);
            }
            let window = Window::starting(Moment(0), Nanos::from_us(2_000));
            let worked = meter.close(window, busy.map(Nanos::from_us), case);
            let engine = &worked.usage.engines[0];
            prop_assert_eq!(engine.accounted_ns(), window.length());
            for reading in &worked.readings {
                prop_assert!(reading.worked <= reading.resident);
            }
            if let (Some(busy), Nanos::ZERO) = (busy, engine.unobserved_ns) {
                let resident: Nanos = worked.readings.iter().filter_map(|r| r.resident).sum();
                let kernels = Nanos::from_us(busy).saturating_sub(engine.switching_ns).min(resident);
                let off = engine.used_ns().0.abs_diff(kernels.0);
                let fits = off <= 64 || copies && engine.used_ns() <= kernels;
                prop_assert!(fits, "{} {}", engine.used_ns(), kernels);
            }
        }
    }
}
