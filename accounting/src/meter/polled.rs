//! The polled meter: LoGA's accounting thread without the thread (A1.2).
//!
//! Between two samples the engine is taken to be as in the earlier one. A switch is noticed up to
//! one sample late at both ends of a command, which cancels on average. Two rules complete it. The
//! interval open at the end of the phase is closed there. A phase with the same occupant in all
//! samples is charged to that occupant as a whole.

use super::{Meter, Observation};
use crate::state::Sample;
use crate::units::{EngineId, Moment, Nanos, TenantId};
use crate::usage::{Anomalies, EngineUsage, Signals, Usage};
use crate::window::Window;

/// Accounts poll phases; [`super::Unobserved`] accounts the time between them.
#[derive(Debug)]
pub struct PolledMeter {
    engines: Vec<PolledEngine>,
    anomalies: Anomalies,
    /// Engine time of other occupants that may lie between two equal samples of the phase.
    hidden_ns: Nanos,
}

/// The phase in progress on one engine.
#[derive(Debug)]
struct PolledEngine {
    engine: EngineId,
    samples: Vec<Sample>,
}

impl PolledMeter {
    /// A meter of `engines`; LoGA has one, the compute engine.
    pub fn new(engines: impl IntoIterator<Item = EngineId>) -> Self {
        let mut engines: Vec<_> = engines
            .into_iter()
            .map(|engine| PolledEngine {
                engine,
                samples: Vec::new(),
            })
            .collect();
        engines.sort_by_key(|e| e.engine);
        engines.dedup_by_key(|e| e.engine);
        Self {
            engines,
            anomalies: Anomalies::default(),
            hidden_ns: Nanos::ZERO,
        }
    }

    /// In the current phase `finished` commands finished (`None`: unknown), and two successive
    /// samples were at most `gap` apart. Between two equal samples an engine had another occupant
    /// only if a command finished there.
    pub fn sampled(&mut self, finished: Option<u64>, gap: Nanos) {
        let finished = finished.unwrap_or(u64::MAX);
        self.hidden_ns = Nanos(finished.saturating_mul(gap.0));
    }
}

impl Meter for PolledMeter {
    fn signals(&self) -> Signals {
        Signals::Polled
    }

    fn observe(&mut self, observation: Observation) {
        if let Observation::Sample(id, mut sample) = observation
            && let Some(engine) = self.engines.iter_mut().find(|e| e.engine == id)
        {
            if let Some(last) = engine.samples.last()
                && sample.at < last.at
            {
                self.anomalies.out_of_order += 1;
                sample.at = last.at;
            }
            engine.take(sample);
        } else {
            self.anomalies.foreign += 1;
        }
    }

    /// The usage of the poll phase `window`. Precondition: the phase began with a sample at its
    /// first moment and ended with [`PolledMeter::sampled`].
    fn close(&mut self, window: Window) -> Usage {
        let hidden_ns = core::mem::take(&mut self.hidden_ns);
        let engines = self.engines.iter_mut();
        Usage {
            window,
            signals: Signals::Polled,
            engines: engines.map(|e| e.close(window, hidden_ns)).collect(),
            copied: None,
            anomalies: core::mem::take(&mut self.anomalies),
        }
    }
}

impl PolledEngine {
    /// Keeps the first and the last of a run of equal samples, so that memory grows with switches
    /// and not with polls.
    fn take(&mut self, sample: Sample) {
        if let [.., before, last] = self.samples.as_mut_slice()
            && before.occupant == last.occupant
            && last.occupant == sample.occupant
        {
            *last = sample;
        } else {
            self.samples.push(sample);
        }
    }

    fn close(&mut self, window: Window, hidden_ns: Nanos) -> EngineUsage {
        let mut usage = EngineUsage::empty(self.engine);
        let inside = |at: Moment| at.clamp(window.from(), window.to());
        let mut current: Option<TenantId> = None;
        let mut since: Option<Moment> = None; // of the stay in progress
        let mut seen = window.from(); // the latest sample
        let mut switches = 0_u64;
        let mut late = Nanos::ZERO;
        for sample in self.samples.iter().filter(|s| s.at < window.to()) {
            let now = inside(sample.at);
            match since {
                None => {
                    usage.unobserved_ns = now.since(window.from());
                    (current, since) = (sample.occupant, Some(now));
                }
                Some(start) if sample.occupant != current => {
                    charge(&mut usage, current, now.since(start));
                    (current, since) = (sample.occupant, Some(now));
                    if let Some(tenant) = current {
                        usage.entry(tenant).begun += 1;
                    }
                    switches += 1;
                    late += now.since(seen);
                }
                Some(_) => {}
            }
            seen = now;
        }
        match since {
            None => usage.unobserved_ns = window.length(),
            Some(_) if switches == 0 && current.is_some() => {
                usage.unobserved_ns = Nanos::ZERO;
                charge(&mut usage, current, window.length());
            }
            Some(start) => charge(&mut usage, current, window.to().since(start)),
        }
        // What began after the last sample is not visible in this phase.
        let known_ns = late + window.to().since(seen) + usage.unobserved_ns;
        let bound = known_ns.0.saturating_add(hidden_ns.0);
        usage.error_bound_ns = Nanos(bound).min(window.length());
        self.samples.retain(|s| s.at >= window.to());
        usage
    }
}

/// Ends a residency of `occupant`.
fn charge(usage: &mut EngineUsage, occupant: Option<TenantId>, length: Nanos) {
    match occupant {
        None => usage.idle_ns += length,
        Some(tenant) => {
            let entry = usage.entry(tenant);
            entry.used_ns += length;
            entry.turns += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Metric;
    use proptest::prelude::*;

    const GR: EngineId = EngineId(0);

    fn phase(samples: &[(u64, Option<u32>)], from: u64, to: u64) -> Usage {
        let mut meter = PolledMeter::new([GR]);
        for &(at, occupant) in samples {
            let sample = Sample {
                at: Moment(at),
                occupant: occupant.map(TenantId),
            };
            meter.observe(Observation::Sample(GR, sample));
        }
        meter.close(Window::new(Moment(from), Moment(to)).unwrap())
    }

    #[test]
    fn switches_are_charged_at_the_sample_that_shows_them() {
        let usage = phase(
            &[
                (0, Some(1)),
                (10, Some(1)),
                (20, Some(2)),
                (30, None),
                (40, Some(1)),
            ],
            0,
            50,
        );
        assert_eq!(usage.tenant_ns(TenantId(1), Metric::Total), Nanos(30));
        assert_eq!(usage.tenant_ns(TenantId(1), Metric::PerTurn), Nanos(15));
        assert_eq!(usage.tenant_ns(TenantId(2), Metric::Total), Nanos(10));
        assert_eq!(usage.engines[0].idle_ns, Nanos(10));
        assert_eq!(usage.engines[0].error_bound_ns, Nanos(40));
        // The first residency began before the phase.
        let started: Vec<u64> = usage.engines[0].tenants.iter().map(|of| of.begun).collect();
        assert_eq!(started, [1, 1]);
    }

    #[test]
    fn a_sample_at_the_end_is_of_the_next_phase() {
        let mut meter = PolledMeter::new([GR]);
        for (at, tenant) in [(0, 1), (10, 2)] {
            let sample = Sample {
                at: Moment(at),
                occupant: Some(TenantId(tenant)),
            };
            meter.observe(Observation::Sample(GR, sample));
        }
        for (from, tenant) in [(0, 1), (10, 2)] {
            let usage = meter.close(Window::new(Moment(from), Moment(from + 10)).unwrap());
            let tenants = usage.engines[0].tenants.iter();
            let used: Vec<_> = tenants.map(|of| (of.tenant.0, of.used_ns.0)).collect();
            assert_eq!(used, [(tenant, 10)]);
        }
    }

    #[test]
    fn samples_out_of_order_and_of_other_engines_are_counted() {
        let mut meter = PolledMeter::new([GR]);
        for (engine, at) in [(0, 10), (0, 10), (0, 4), (0, 5), (7, 20), (8, 20)] {
            let sample = Sample {
                at: Moment(at),
                occupant: None,
            };
            meter.observe(Observation::Sample(EngineId(engine), sample));
        }
        let usage = meter.close(Window::new(Moment(0), Moment(30)).unwrap());
        assert_eq!(
            usage.anomalies.out_of_order, 2,
            "one at the same time is not"
        );
        assert_eq!(usage.anomalies.foreign, 2);
    }

    #[test]
    fn a_command_longer_than_the_phase_is_charged_all_of_it() {
        let usage = phase(&[(3, Some(7)), (9, Some(7))], 0, 10);
        assert_eq!(usage.tenant_ns(TenantId(7), Metric::Total), Nanos(10));
        assert_eq!(usage.engines[0].unobserved_ns, Nanos::ZERO);
    }

    #[test]
    fn each_finished_command_may_hide_one_gap() {
        let mut meter = PolledMeter::new([GR]);
        for at in [0, 40] {
            let occupant = Some(TenantId(1));
            let sample = Sample {
                at: Moment(at),
                occupant,
            };
            meter.observe(Observation::Sample(GR, sample));
        }
        meter.sampled(Some(3), Nanos(5));
        let first = meter.close(Window::starting(Moment(0), Nanos(41)));
        assert_eq!(first.engines[0].error_bound_ns, Nanos(1 + 3 * 5));
        meter.sampled(None, Nanos(5));
        let second = meter.close(Window::starting(Moment(41), Nanos(9)));
        assert_eq!(second.engines[0].error_bound_ns, Nanos(9));
    }

    #[test]
    fn idle_phase_charges_no_tenant() {
        let usage = phase(&[(0, None), (5, None)], 0, 10);
        assert!(usage.engines[0].tenants.is_empty());
        assert_eq!(usage.engines[0].idle_ns, Nanos(10));
    }

    #[test]
    fn a_phase_without_samples_is_unobserved() {
        let usage = phase(&[], 0, 10);
        assert_eq!(usage.engines[0].unobserved_ns, Nanos(10));
        assert_eq!(usage.engines[0].error_bound_ns, Nanos(10));
    }

    #[test]
    fn memory_grows_with_switches_only() {
        let mut meter = PolledMeter::new([GR]);
        for at in 0..10_000 {
            meter.observe(Observation::Sample(
                GR,
                Sample {
                    at: Moment(at),
                    occupant: None,
                },
            ));
        }
        assert_eq!(meter.engines[0].samples.len(), 2);
    }

    proptest! {
        #[test]
        fn every_nanosecond_is_accounted_once(
            samples in prop::collection::vec((0u64..2_000, prop::option::of(0u32..4)), 0..60),
            from in 0u64..1_000, length in 0u64..1_500,
        ) {
            let usage = phase(&samples, from, from + length);
            prop_assert_eq!(usage.engines[0].accounted_ns(), Nanos(length));
        }

        /// The samples kept of each run are sufficient.
        #[test]
        fn charges_follow_the_listing_of_the_paper(
            steps in prop::collection::vec((1u64..50, prop::option::of(0u32..3)), 1..80),
        ) {
            let mut at = 0;
            let mut samples = Vec::new();
            for &(step, occupant) in &steps {
                samples.push((at, occupant));
                at += step;
            }
            let mut expected = [0u64; 3];
            for (&(_, occupant), &(step, _)) in samples.iter().zip(&steps) {
                if let Some(tenant) = occupant { expected[tenant as usize] += step; }
            }
            let usage = phase(&samples, 0, at);
            for (tenant, &ns) in expected.iter().enumerate() {
                prop_assert_eq!(usage.tenant_ns(TenantId(tenant as u32), Metric::Total), Nanos(ns));
            }
        }
    }
}
