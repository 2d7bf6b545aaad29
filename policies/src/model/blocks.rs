//! Blocks of kernels on the slots of SMs, by list scheduling.
//!
//! In: when each kernel may begin, its blocks, and how long a block takes beside others. Out: when
//! the last block has ended. A block goes to the SM with the fewest blocks; kernels take slots in
//! the order of their beginning. Blocks on one SM advance at one rate, by their number.

use super::processes::Fit;

/// An SM: its blocks by the work that is left of each, and the time of that state.
#[derive(Clone, Debug, Default)]
struct Sm {
    left: Vec<f64>,
    at: f64,
}

impl Sm {
    /// Advances all its blocks to `now`.
    fn advance(&mut self, now: f64, length: &impl Fn(usize) -> f64) {
        let done = (now - self.at) / length(self.left.len().max(1));
        self.left.iter_mut().for_each(|left| *left -= done);
        self.left.retain(|left| *left > 1e-9);
        self.at = now;
    }

    /// When its next block ends.
    fn next_end(&self, length: &impl Fn(usize) -> f64) -> f64 {
        let least = self.left.iter().copied().fold(f64::INFINITY, f64::min);
        self.at + least * length(self.left.len().max(1))
    }
}

/// When the last block ends. Kernel `i` begins at `begins[i]` at the earliest, in ascending order;
/// a block takes `length(r)` on an SM with `r` blocks in all.
pub fn makespan(fit: &Fit, begins: &[f64], length: impl Fn(usize) -> f64) -> f64 {
    let mut sms = vec![Sm::default(); fit.sms as usize];
    let mut ends: Vec<f64> = vec![f64::INFINITY; sms.len()];
    let mut waiting = 0u64;
    let (mut next, mut now) = (0, 0.0_f64);
    loop {
        // Fill the slots, an SM with the fewest blocks first.
        while waiting > 0 {
            let fewest = (0..sms.len()).min_by_key(|place| sms[*place].left.len());
            let Some(place) =
                fewest.filter(|place| sms[*place].left.len() < fit.resident_max as usize)
            else {
                break;
            };
            sms[place].advance(now, &length);
            sms[place].left.push(1.0);
            ends[place] = sms[place].next_end(&length);
            waiting -= 1;
        }
        let end = ends.iter().copied().fold(f64::INFINITY, f64::min);
        let begin = begins.get(next).copied().unwrap_or(f64::INFINITY);
        if end.min(begin).is_infinite() {
            return now;
        }
        now = end.min(begin);
        if begin <= end {
            waiting += u64::from(fit.blocks);
            next += 1;
        }
        for (sm, end) in sms.iter_mut().zip(&mut ends) {
            // Ends that rounding has set apart are one.
            if *end <= now + 1e-9 * now.max(1.0) {
                sm.advance(*end, &length);
                sm.at = now;
                *end = sm.next_end(&length);
            }
        }
    }
}
