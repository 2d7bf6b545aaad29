//! Engine events made from a seed: the load of a GPU without a GPU, the same on every run.
//!
//! Tests of exports use it, the benchmark writes it, and the crash test compares it with a ledger
//! that was killed many times. Each period is independent: its events do not depend on the periods
//! before it.

use crate::meter::{EventMeter, Meter, Observation};
use crate::state::{EngineState, SwitchEvent};
use crate::units::{EngineId, Moment, Nanos, TenantId};
use crate::usage::Usage;
use crate::window::Window;

/// The compute engine.
pub const COMPUTE: EngineId = EngineId(0);
/// The copy engine.
pub const COPY: EngineId = EngineId(1);
/// The engines, and whether each computes.
pub const ENGINES: [(EngineId, bool); 2] = [(COMPUTE, true), (COPY, false)];

/// Bytes that the copy engine moves in a nanosecond.
pub const COPY_RATE: u64 = 16;

/// A GPU's events, period by period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// The source of all numbers.
    pub seed: u64,
    /// Tenants, numbered from 1 on.
    pub tenants: u32,
    /// Length of a period.
    pub period_ns: Nanos,
}

/// A part of a synthetic period: one engine in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which engine.
    pub engine: EngineId,
    /// When it begins.
    pub at: Moment,
    /// Its length.
    pub length_ns: Nanos,
    /// The state.
    pub state: EngineState,
}

/// SplitMix64, which has good output for any seed.
/// SOURCE: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014).
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Synthetic {
    /// The window of a period.
    pub fn window(&self, period: u64) -> Window {
        Window::starting(Moment(period * self.period_ns.0), self.period_ns)
    }

    /// What the engines did in a period, in order of time for each engine, without gaps.
    pub fn parts(&self, period: u64) -> Vec<Part> {
        let window = self.window(period);
        let mut random = self.seed ^ mix(&mut period.wrapping_add(1).clone());
        let mut parts = Vec::new();
        for (engine, _) in ENGINES {
            let mut at = window.from();
            while at < window.to() {
                let most = window.to().since(at).0;
                let length = 1 + mix(&mut random) % self.period_ns.0.div_ceil(2).max(1);
                let length_ns = Nanos(length.min(most));
                // CAST: below the number of tenants, a u32
                let tenant =
                    TenantId(1 + (mix(&mut random) % u64::from(self.tenants.max(1))) as u32);
                let state = match mix(&mut random) % 16 {
                    0 => EngineState::Switching,
                    1..=3 => EngineState::Idle,
                    4 => EngineState::Fault(tenant),
                    _ => EngineState::Running(tenant),
                };
                parts.push(Part {
                    engine,
                    at,
                    length_ns,
                    state,
                });
                at = at + length_ns;
            }
        }
        parts
    }

    /// A tenant's engine time in a period, added up from its parts alone.
    pub fn ran_ns(&self, period: u64, engine: EngineId, tenant: TenantId) -> Nanos {
        let own =
            |part: &&Part| part.engine == engine && part.state == EngineState::Running(tenant);
        self.parts(period)
            .iter()
            .filter(own)
            .map(|part| part.length_ns)
            .sum()
    }

    /// Bytes of a tenant's copies in a period, added up from its parts alone.
    pub fn copied_bytes(&self, period: u64, tenant: TenantId) -> u64 {
        self.ran_ns(period, COPY, tenant).0 * COPY_RATE
    }

    /// A source of usages: these events, read by the event meter that also reads a GPU's.
    pub fn metered(self) -> Metered {
        let meter = EventMeter::new(ENGINES.map(|engine| engine.0));
        Metered {
            events: self,
            meter,
            seq: [0; 2],
        }
    }
}

/// Synthetic events behind an event meter.
#[derive(Debug)]
pub struct Metered {
    events: Synthetic,
    meter: EventMeter,
    seq: [u64; 2],
}

impl Metered {
    /// What the meter reports of a period, and what was copied in it; `period` has to ascend.
    pub fn usage(&mut self, period: u64) -> Usage {
        for part in self.events.parts(period) {
            let seq = &mut self.seq[usize::from(part.engine.0)];
            let (at, engine, state) = (part.at, part.engine, part.state);
            self.meter.observe(Observation::Switch(SwitchEvent {
                at,
                engine,
                seq: *seq,
                state,
            }));
            *seq += 1;
        }
        let tenants = (1..=self.events.tenants).map(TenantId);
        let copied = |tenant| (tenant, self.events.copied_bytes(period, tenant));
        Usage {
            copied: Some(tenants.map(copied).collect()),
            ..self.meter.close(self.events.window(period))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_the_same_alone_and_in_a_row_and_the_meter_sees_it() {
        let events = Synthetic {
            seed: 7,
            tenants: 3,
            period_ns: Nanos::from_ms(10),
        };
        let mut metered = events.metered();
        let usages: Vec<Usage> = (0..50).map(|period| metered.usage(period)).collect();
        let alone = events.metered().usage(31);
        assert_eq!(alone.engines[0].used_ns(), usages[31].engines[0].used_ns());
        for (period, usage) in usages.iter().enumerate() {
            for (engine, seen) in usage.engines.iter().enumerate() {
                assert_eq!(seen.accounted_ns(), events.period_ns);
                for part in &seen.tenants {
                    let expected = events.ran_ns(period as u64, ENGINES[engine].0, part.tenant);
                    assert_eq!(part.used_ns, expected);
                }
            }
        }
        let other = Synthetic { seed: 8, ..events };
        assert_ne!(other.parts(0), events.parts(0));
    }
}
