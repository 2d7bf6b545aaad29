//! What a host does to a program between its launches: they take longer for a while, and now and then something else has its core.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{MS, SECOND, US};

/// The time from a kernel's end to the next launch changes by this standard deviation, in parts of it, and is another after so long.
/// SOURCE: 79 recordings of pairs on an H200, pauses of whole turns by the kernels' own time stamps: 50 us 16 to 18 % idle with a
/// standard deviation of 0.7, 200 us 5.3 and 0.3; a second later little is left of it.
const DRIFT: (f64, u64) = (0.05, 700 * MS);
/// It changes in such steps.
const DRIFT_STEP: u64 = 20 * MS;
/// Something else has the core: so often, and for so long in the mean. Who waits for a kernel does not notice what ends before it does.
/// SOURCE: the same: from one turn of 150 ms to the next 0.75 ms (50 us), 0.3 (200 us), 0.13 (2 ms), 0.05 (50 ms) more or less.
const TAKEN: (f64, u64) = (50.0, 150 * US);
/// The same for long: for so long at least, and so much longer in the mean. SOURCE: the same: ten pauses of 3 ms and more of kernels of 50 and 200 us in 400 s,
/// one of them of 10.
const STOLEN: (f64, (u64, u64)) = (0.035, (2 * MS, 5 * MS / 2));

/// A Poisson process of moments.
#[derive(Clone, Debug)]
struct Moments {
    next: f64,
    a_second: f64,
}

impl Moments {
    fn new(a_second: f64, random: &mut SmallRng) -> Self {
        let mut moments = Self {
            next: 0.0,
            a_second,
        };
        moments.draw(random);
        moments
    }

    fn draw(&mut self, random: &mut SmallRng) -> u64 {
        let at = self.next;
        self.next += exponential(random) / self.a_second * SECOND as f64;
        at as u64
    }
}

/// The pauses of one program.
#[derive(Clone, Debug)]
pub(super) struct Pauses {
    random: SmallRng,
    drift: f64,
    drift_until: u64,
    taken: Moments,
    stolen: Moments,
    /// Something else has the core until then.
    until: u64,
    /// Of a gap, what was lost by rounding it.
    rounded: f64,
}

impl Pauses {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        Self {
            drift: DRIFT.0 * normal(&mut random),
            drift_until: 0,
            taken: Moments::new(TAKEN.0, &mut random),
            stolen: Moments::new(STOLEN.0, &mut random),
            until: 0,
            rounded: 0.0,
            random,
        }
    }

    /// When the next launch comes of one whose kernel ended `now`, with such a gap in the mean.
    pub(super) fn launch(&mut self, now: u64, gap: u64, step: u64) -> u64 {
        let keeps = (-(DRIFT_STEP as f64) / DRIFT.1 as f64).exp();
        while self.drift_until <= now {
            let new = DRIFT.0 * (1.0 - keeps * keeps).sqrt() * normal(&mut self.random);
            self.drift = self.drift * keeps + new;
            self.drift_until += DRIFT_STEP;
        }
        let gap = gap as f64 * (1.0 + self.drift) + self.rounded;
        let whole = (gap / step as f64).round().max(0.0) * step as f64;
        self.rounded = gap - whole;
        let ready = now + whole as u64;
        while self.taken.next <= ready as f64 {
            let at = self.taken.draw(&mut self.random);
            let long = exponential(&mut self.random) * TAKEN.1 as f64;
            self.until = self.until.max(at + long as u64);
        }
        while self.stolen.next <= ready as f64 {
            let at = self.stolen.draw(&mut self.random);
            let (least, more) = STOLEN.1;
            let long = least + (exponential(&mut self.random) * more as f64) as u64;
            self.until = self.until.max(at + long);
        }
        ready.max(self.until)
    }
}

fn exponential(random: &mut SmallRng) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// With a mean of 0 and a standard deviation of 1, by twelve even ones.
pub(super) fn normal(random: &mut SmallRng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}
