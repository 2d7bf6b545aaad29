//! Polling in virtual time: status registers are read about every microsecond, but reads that
//! cannot differ are skipped.

use rand::Rng;
use rand::rngs::SmallRng;
use turnstile_accounting::{EngineId, Meter, Moment, Nanos, Observation, PolledMeter, Sample};
use turnstile_gpu::Metering;

/// The reads of one poll phase.
#[derive(Debug)]
pub(super) struct Sampler {
    next: Moment,
    end: Moment,
    iteration_ns: Nanos,
    pause_ns: Nanos,
}

impl Sampler {
    /// A phase from `begin` to `end`. One iteration takes `iteration_ns`, varied by up to a tenth,
    /// as reads of real hardware vary. The pause between two iterations is `pause_ns`.
    pub(super) const fn new(
        begin: Moment,
        end: Moment,
        iteration_ns: Nanos,
        pause_ns: Nanos,
    ) -> Self {
        Self {
            next: begin,
            end,
            iteration_ns,
            pause_ns,
        }
    }

    /// The longest time between two reads.
    pub(super) const fn gap(&self) -> Nanos {
        Nanos(self.iteration_ns.0 + self.iteration_ns.0 / 10 + self.pause_ns.0)
    }

    /// Reads until just before `until`; the GPU does not change before. Of equal reads the meter
    /// needs the first and the last.
    pub(super) fn read(
        &mut self,
        gpu: &impl Metering,
        engines: &[EngineId],
        until: Moment,
        meter: &mut PolledMeter,
        random: &mut SmallRng,
    ) {
        let until = until.min(self.end);
        if self.next >= until {
            return;
        }
        let (first, mut last) = (self.next, self.next);
        let tenth = self.iteration_ns.0 / 10;
        while self.next < until {
            last = self.next;
            let length = self.iteration_ns.0 - tenth + random.random_range(0..=2 * tenth);
            self.next = last + Nanos(length.max(1)) + self.pause_ns;
        }
        for &engine in engines {
            let occupant = gpu.engine_status(engine).running;
            for at in [first, last] {
                meter.observe(Observation::Sample(engine, Sample { at, occupant }));
            }
        }
    }
}
