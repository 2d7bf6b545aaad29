//! Evaluation of `bench train`: the trainings' own reports and a daemon's snapshots of its tenants.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A training's report at its end. SOURCE: `images/load/train.py`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// Wall clock at the first step that counts, in seconds.
    pub begin: f64,
    /// Wall clock when the last was done.
    pub end: f64,
    /// Mean length of a step.
    pub step_ms: f64,
    /// Largest amount of GPU memory that it had, in GiB.
    pub allocated_gib: f64,
    /// Loss of each step, as hexadecimal floating point: all bits of it.
    pub losses: Vec<String>,
    /// A sum over all bits of all weights.
    pub weights: i64,
}

impl Trained {
    /// Whether losses, and weights, are the same, bit for bit.
    pub fn equals(&self, other: &Self) -> [bool; 2] {
        let losses = !self.losses.is_empty() && self.losses == other.losses;
        [losses, self.weights == other.weights]
    }
}

/// Total time of the trainings one after another.
pub fn serial_s(all: &[Trained]) -> f64 {
    all.iter().map(|one| one.end - one.begin).sum()
}

/// Seconds from the first one's beginning to the last one's end.
pub fn together_s(all: &[Trained]) -> f64 {
    let begin = all.iter().map(|one| one.begin).reduce(f64::min);
    let end = all.iter().map(|one| one.end).reduce(f64::max);
    begin.zip(end).map_or(0.0, |(begin, end)| end - begin)
}

/// A program in a [`Sample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Engine time so far.
    pub engine_ns: u64,
    /// Bytes on the card, or on their way.
    pub resident_bytes: u64,
    /// Bytes that are not on the card.
    pub swapped_bytes: u64,
    /// Bytes copied to the host so far.
    pub out_bytes: u64,
    /// Bytes copied back so far.
    pub in_bytes: u64,
}

/// A daemon's figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Moment on the GPU's clock.
    pub at_ns: u64,
    /// Figures of each program, by name.
    pub programs: BTreeMap<String, Program>,
}

impl Sample {
    /// From a daemon's snapshot. `None` if the value is no snapshot.
    pub fn of(snapshot: &Value) -> Option<Self> {
        let program = |tenant: &Value| {
            let number = |name: &str| tenant[name].as_u64();
            let program = Program {
                engine_ns: number("engine_ns")?,
                resident_bytes: number("resident_bytes")?,
                swapped_bytes: number("swapped_bytes")?,
                out_bytes: number("swapped_out_bytes")?,
                in_bytes: number("swapped_in_bytes")?,
            };
            Some((tenant["name"].as_str()?.to_owned(), program))
        };
        let tenants = snapshot["tenants"].as_array()?;
        Some(Self {
            at_ns: snapshot["at"].as_u64()?,
            programs: tenants.iter().map(program).collect::<Option<_>>()?,
        })
    }

    /// Names of the fully resident programs.
    fn here(&self) -> Vec<&str> {
        self.programs
            .iter()
            .filter(|(_, program)| program.swapped_bytes == 0 && program.resident_bytes > 0)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

/// A stretch of time in which the same programs are fully resident.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stretch {
    /// Beginning, in seconds from the first sample.
    pub from_s: f64,
    /// Length in seconds.
    pub length_s: f64,
    /// Fully resident programs.
    pub here: Vec<String>,
    /// Bytes copied to the host in it.
    pub out_bytes: u64,
    /// Bytes copied back in it.
    pub in_bytes: u64,
    /// Part of it in which the engine worked for programs.
    pub busy_percent: f64,
}

/// Bytes moved between two samples from which on they are an exchange. Less is a chunk that a
/// program requested when the card was full.
const EXCHANGE_BYTES: u64 = 1 << 30;

impl Stretch {
    /// Whether hardly anything moved, so that the resident programs have the engine.
    pub(crate) const fn is_turn(&self) -> bool {
        self.out_bytes + self.in_bytes < EXCHANGE_BYTES
    }
}

/// Growth of a figure of all programs between two samples; a program that has ended adds nothing.
fn growth(before: &Sample, after: &Sample, of: impl Fn(&Program) -> u64) -> u64 {
    let of_one = |(name, program): (&String, &Program)| {
        let earlier = before.programs.get(name).map_or(0, &of);
        of(program).saturating_sub(earlier)
    };
    after.programs.iter().map(of_one).sum()
}

/// The stretches of a run.
pub fn stretches(samples: &[Sample]) -> Vec<Stretch> {
    let Some(first) = samples.first() else {
        return Vec::new();
    };
    // CAST: seconds of a run.
    let seconds = |ns: u64| ns as f64 / 1e9;
    let steps: Vec<(&Sample, &Sample)> = samples.iter().zip(&samples[1..]).collect();
    let moved = |(before, after): &(&Sample, &Sample)| {
        growth(before, after, |p| p.out_bytes + p.in_bytes) >= EXCHANGE_BYTES
    };
    let same = |a: &(&Sample, &Sample), b: &(&Sample, &Sample)| {
        a.0.here() == b.0.here() && moved(a) == moved(b)
    };
    let stretch = |steps: &[(&Sample, &Sample)]| {
        let (from, to) = (steps[0].0, steps[steps.len() - 1].1);
        let sum =
            |of: fn(&Program) -> u64| -> u64 { steps.iter().map(|(a, b)| growth(a, b, of)).sum() };
        let length_ns = to.at_ns.saturating_sub(from.at_ns);
        Stretch {
            from_s: seconds(from.at_ns.saturating_sub(first.at_ns)),
            length_s: seconds(length_ns),
            here: from.here().into_iter().map(str::to_owned).collect(),
            out_bytes: sum(|p| p.out_bytes),
            in_bytes: sum(|p| p.in_bytes),
            // CAST: below 2^53 for weeks.
            busy_percent: 100.0 * sum(|p| p.engine_ns) as f64 / length_ns.max(1) as f64,
        }
    };
    steps.chunk_by(same).map(stretch).collect()
}

/// Length of the turns, which are the times between two exchanges: half of that time was in turns
/// of at least this length. `None` if there were none.
pub fn turn_s(stretches: &[Stretch]) -> Option<f64> {
    let moves = |stretch: &Stretch| !stretch.is_turn();
    let first = stretches.iter().position(moves)?;
    let last = stretches.iter().rposition(moves)?;
    let between = stretches[first..last].chunk_by(|a, b| a.is_turn() == b.is_turn());
    let turns = between.filter(|part| part[0].is_turn());
    let mut turns: Vec<f64> = turns
        .map(|part| part.iter().map(|one| one.length_s).sum())
        .collect();
    turns.sort_by(f64::total_cmp);
    let half = turns.iter().sum::<f64>() / 2.0;
    let mut shorter = 0.0;
    turns.into_iter().find(|turn| {
        shorter += turn;
        shorter >= half
    })
}

/// Host memory for `programs` of `each_bytes` on a card: what does not fit, a quarter more for
/// copies of memory that came back, which make way, and 4 GiB for memory in transit.
pub const fn pool_bytes(programs: u64, each_bytes: u64, card_bytes: u64) -> u64 {
    let over = programs
        .saturating_mul(each_bytes)
        .saturating_sub(card_bytes);
    over.saturating_add(over / 4).saturating_add(4 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trained(begin: f64, end: f64) -> Trained {
        Trained {
            begin,
            end,
            losses: vec!["0x1.8p+0".into(), "0x1.4p+0".into()],
            weights: -7,
            ..Trained::default()
        }
    }

    #[test]
    fn equal_is_every_bit() {
        let one = trained(0.0, 10.0);
        let later = trained(3.0, 50.0);
        assert_eq!(one.equals(&later), [true; 2], "time does not matter");
        let mut other = one.clone();
        other.losses[1] = "0x1.4000000000001p+0".into();
        assert_eq!(one.equals(&other), [false, true]);
        other = one.clone();
        other.weights += 1;
        assert_eq!(one.equals(&other), [true, false]);
        let none = Trained::default();
        assert!(!none.equals(&none.clone())[0], "it said nothing");
    }

    #[test]
    fn together_is_from_the_first_to_the_last() {
        let all = [trained(2.0, 10.0), trained(1.0, 5.0), trained(3.0, 12.0)];
        assert!((serial_s(&all) - 21.0).abs() < 1e-9);
        assert!((together_s(&all) - 11.0).abs() < 1e-9);
        assert!(together_s(&[]).abs() < 1e-9);
    }

    /// A sample at `at_s` seconds. Of each program: milliseconds of the engine, GiB missing, GiB
    /// moved out and in.
    fn sample(at_s: u64, programs: &[(&str, u64, u64, u64, u64)]) -> Sample {
        let tenants: Vec<Value> = programs
            .iter()
            .map(|(name, ms, missing, out, back)| {
                json!({"name": name, "engine_ns": ms * 1_000_000, "resident_bytes": (60 - missing) << 30,
                    "swapped_bytes": missing << 30, "swapped_out_bytes": out << 30, "swapped_in_bytes": back << 30})
            })
            .collect();
        Sample::of(&json!({"at": at_s * 1_000_000_000, "tenants": tenants})).unwrap()
    }

    #[test]
    fn a_run_is_turns_and_exchanges() {
        let samples = [
            sample(
                10,
                &[("a", 0, 0, 0, 0), ("b", 0, 0, 0, 0), ("c", 0, 50, 0, 0)],
            ),
            sample(
                11,
                &[("a", 500, 0, 0, 0), ("b", 500, 0, 0, 0), ("c", 0, 50, 0, 0)],
            ),
            sample(
                12,
                &[
                    ("a", 1_400, 0, 0, 0),
                    ("b", 500, 30, 30, 0),
                    ("c", 0, 25, 0, 25),
                ],
            ),
            sample(
                13,
                &[
                    ("a", 2_000, 0, 0, 0),
                    ("b", 500, 50, 50, 0),
                    ("c", 300, 0, 0, 50),
                ],
            ),
            sample(
                15,
                &[
                    ("a", 3_000, 0, 0, 0),
                    ("b", 500, 50, 50, 0),
                    ("c", 1_300, 0, 0, 50),
                ],
            ),
            // Program `a` has ended, and its memory is free.
            sample(16, &[("b", 500, 0, 50, 50), ("c", 2_300, 0, 0, 50)]),
        ];
        let found = stretches(&samples);
        let shape: Vec<(f64, usize, bool)> = found
            .iter()
            .map(|one| (one.length_s, one.here.len(), one.is_turn()))
            .collect();
        assert_eq!(
            shape,
            [
                (1.0, 2, true),
                (1.0, 2, false),
                (1.0, 1, false),
                (2.0, 2, true),
                (1.0, 2, false)
            ]
        );
        assert!((found[0].busy_percent - 100.0).abs() < 1e-9);
        assert!((found[1].busy_percent - 90.0).abs() < 1e-9);
        assert_eq!(
            (found[1].out_bytes, found[1].in_bytes),
            (30 << 30, 25 << 30)
        );
        assert!((found[3].from_s - 3.0).abs() < 1e-9);
        assert_eq!(
            turn_s(&found),
            Some(2.0),
            "the first was none between moves"
        );
        assert_eq!(turn_s(&found[..1]), None);
        let part = |length_s, out_bytes| Stretch {
            length_s,
            out_bytes,
            ..Stretch::default()
        };
        let exchange = || part(1.0, 50 << 30);
        let turns = [1.0, 1.5, 10.0, 11.0];
        let mut run = vec![part(40.0, 0), exchange()];
        turns.iter().for_each(|turn| {
            run.extend([part(turn / 2.0, 0), part(turn / 2.0, 1 << 20), exchange()]);
        });
        assert_eq!(turn_s(&run), Some(10.0));
        assert!(stretches(&[]).is_empty() && stretches(&samples[..1]).is_empty());
        assert_eq!(Sample::of(&json!({"at": 1})), None);
    }

    #[test]
    fn the_pool_takes_what_the_card_does_not() {
        let gib = 1 << 30;
        assert_eq!(pool_bytes(3, 60 * gib, 140 * gib), 54 * gib);
        assert_eq!(pool_bytes(3, 40 * gib, 140 * gib), 4 * gib);
    }
}
