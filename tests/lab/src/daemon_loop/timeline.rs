//! The sum of the engines' own log, independent of the meters: the time of each tenant on each
//! engine.

use turnstile_accounting::{EngineState, Moment, Nanos, SwitchEvent};
use turnstile_soft::{COMPUTE, ENGINES};

use super::laws::BrokenLaw;

/// One engine's time until now.
#[derive(Clone, Copy, Debug, Default)]
struct EngineTime {
    state: Option<EngineState>,
    since: Moment,
    next_seq: u64,
    running: Nanos,
    others: Nanos,
}

/// The compute engine's service by tenant and by window, and the sums of all engines.
#[derive(Debug)]
pub(super) struct Timeline {
    engines: [EngineTime; ENGINES],
    now: Moment,
    /// Ids are 1, 2, and so on, in the order of this list.
    service: Vec<Nanos>,
    idle: Nanos,
    switching: Nanos,
    window_ns: Nanos,
    windows: Vec<Vec<Nanos>>,
    before_window: Vec<Nanos>,
    hash: u64,
}

impl Timeline {
    pub(super) fn new(tenants: usize, window_ns: Nanos) -> Self {
        Self {
            engines: Default::default(),
            now: Moment(0),
            service: vec![Nanos::ZERO; tenants],
            idle: Nanos::ZERO,
            switching: Nanos::ZERO,
            window_ns,
            windows: Vec::new(),
            before_window: vec![Nanos::ZERO; tenants],
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Takes the next record of the log.
    pub(super) fn take(&mut self, event: SwitchEvent) -> Result<(), BrokenLaw> {
        // Without `..`: the hash covers each field.
        let SwitchEvent {
            at,
            engine,
            seq,
            state,
        } = event;
        self.advance(at)?;
        let time = &mut self.engines[usize::from(engine.0)];
        if seq != time.next_seq {
            return Err(BrokenLaw::Log {
                engine,
                seq,
                expected: time.next_seq,
            });
        }
        time.next_seq += 1;
        time.state = Some(state);
        let state = match state {
            EngineState::Idle => 0,
            EngineState::Switching => 1,
            EngineState::Running(tenant) => 2 | u64::from(tenant.0) << 8,
            EngineState::Fault(tenant) => 3 | u64::from(tenant.0) << 8,
        };
        self.note(&[at.0, u64::from(engine.0), seq, state]);
        Ok(())
    }

    /// Advances to `to`; the engines do not change.
    pub(super) fn advance(&mut self, to: Moment) -> Result<(), BrokenLaw> {
        if to < self.now {
            return Err(BrokenLaw::Backwards { from: self.now, to });
        }
        while let Some(end) = Some(self.window_end()).filter(|end| *end <= to) {
            self.pass(end);
            let now = self.service.iter().zip(&self.before_window);
            self.windows
                .push(now.map(|(now, before)| *now - *before).collect());
            self.before_window.clone_from(&self.service);
        }
        self.pass(to);
        Ok(())
    }

    fn window_end(&self) -> Moment {
        Moment(self.window_ns.0 * (self.windows.len() as u64 + 1))
    }

    fn pass(&mut self, to: Moment) {
        for (index, engine) in self.engines.iter_mut().enumerate() {
            let length = to.since(engine.since);
            engine.since = to;
            match engine.state {
                Some(EngineState::Running(tenant)) => {
                    engine.running += length;
                    let place = (tenant.0 as usize).wrapping_sub(1);
                    if index == COMPUTE
                        && let Some(service) = self.service.get_mut(place)
                    {
                        *service += length;
                    }
                }
                Some(state) => {
                    engine.others += length;
                    if index == COMPUTE && state == EngineState::Idle {
                        self.idle += length;
                    } else if index == COMPUTE && state == EngineState::Switching {
                        self.switching += length;
                    }
                }
                // Before its first record an engine's time belongs to no tenant, and conservation
                // fails.
                None => {}
            }
        }
        self.now = to;
    }

    /// Adds numbers to the hash that identifies the run (FNV-1a).
    pub(super) fn note(&mut self, numbers: &[u64]) {
        for byte in numbers.iter().flat_map(|number| number.to_le_bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Law 1, of the log itself.
    pub(super) fn check(&self) -> Result<(), BrokenLaw> {
        for (index, engine) in self.engines.iter().enumerate() {
            let accounted_ns = engine.running + engine.others;
            if accounted_ns.0 != self.now.0 {
                return Err(BrokenLaw::Conservation {
                    engine: index,
                    accounted_ns,
                    wall_ns: Nanos(self.now.0),
                });
            }
        }
        Ok(())
    }

    /// Engine time of each tenant until now.
    pub(super) fn service(&self) -> &[Nanos] {
        &self.service
    }

    /// Whether the compute engine has nothing to execute, and does not switch.
    pub(super) fn is_idle(&self) -> bool {
        self.engines[COMPUTE].state == Some(EngineState::Idle)
    }

    /// The tenant that the compute engine executes (its index), if any.
    pub(super) fn runs(&self) -> Option<usize> {
        match self.engines[COMPUTE].state {
            Some(EngineState::Running(tenant)) => Some(tenant.0 as usize - 1),
            _ => None,
        }
    }

    pub(super) const fn idle_ns(&self) -> Nanos {
        self.idle
    }

    pub(super) const fn switching_ns(&self) -> Nanos {
        self.switching
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    /// Service by `[window][tenant]`, of the windows that are over.
    pub(super) fn windows(&self) -> &[Vec<Nanos>] {
        &self.windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_accounting::{EngineId, TenantId};

    fn event(at: u64, engine: u8, seq: u64, state: EngineState) -> SwitchEvent {
        SwitchEvent {
            at: Moment(at),
            engine: EngineId(engine),
            seq,
            state,
        }
    }

    fn idle_timeline() -> Timeline {
        let mut timeline = Timeline::new(1, Nanos(100));
        for engine in 0..3 {
            timeline
                .take(event(0, engine, 0, EngineState::Idle))
                .unwrap();
        }
        timeline
    }

    #[test]
    fn a_complete_log_adds_up_by_window() {
        let mut timeline = idle_timeline();
        timeline
            .take(event(30, 0, 1, EngineState::Running(TenantId(1))))
            .unwrap();
        timeline.advance(Moment(250)).unwrap();
        timeline.check().unwrap();
        assert_eq!(timeline.windows(), [[Nanos(70)], [Nanos(100)]]);
        assert_eq!(timeline.service(), [Nanos(220)]);
    }

    #[test]
    fn hash_covers_every_field_of_a_record() {
        let running = |tenant| EngineState::Running(TenantId(tenant));
        let fault = |tenant| EngineState::Fault(TenantId(tenant));
        let hash = |at, engine, seq, state| {
            let mut timeline = idle_timeline();
            timeline.engines[usize::from(engine)].next_seq = seq;
            timeline.take(event(at, engine, seq, state)).unwrap();
            timeline.hash()
        };
        let hashes = [
            hash(30, 0, 1, running(1)),
            hash(31, 0, 1, running(1)),
            hash(30, 1, 1, running(1)),
            hash(30, 0, 2, running(1)),
            hash(30, 0, 1, running(2)),
            hash(30, 0, 1, fault(1)),
            hash(30, 0, 1, fault(2)),
            hash(30, 0, 1, EngineState::Idle),
            hash(30, 0, 1, EngineState::Switching),
        ];
        let different: std::collections::BTreeSet<u64> = hashes.into();
        assert_eq!(different.len(), hashes.len(), "{hashes:x?}");
    }

    #[test]
    fn a_hole_a_step_back_and_a_late_beginning_break_the_law() {
        let mut timeline = idle_timeline();
        assert!(
            timeline
                .take(event(30, 0, 2, EngineState::Switching))
                .is_err()
        );
        let mut timeline = idle_timeline();
        timeline.advance(Moment(40)).unwrap();
        assert!(
            timeline
                .take(event(30, 0, 1, EngineState::Switching))
                .is_err()
        );
        let mut timeline = Timeline::new(1, Nanos(100));
        timeline.take(event(10, 0, 0, EngineState::Idle)).unwrap();
        assert!(timeline.check().is_err());
    }
}
