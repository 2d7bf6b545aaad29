//! Ways to divide the SMs of a GPU among programs (A3.3).
//!
//! In: programs and the number of SMs. Out: the SMs of each, at least one, at most all together.
//! Laws: [`Split::Rounds`] gives no program more rounds than [`Split::Even`]; the best is at least
//! as good as any other, the worst at most as good.

use super::sm::{Program, SmError, throughput};

/// A way to divide the SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Equal parts; the first ones get the remainder.
    Even,
    /// Equal parts, at most one SM for each block.
    SmartEven,
    /// Equal parts, at most as many SMs as hold all blocks at a time.
    Packed,
    /// The least sum of rounds with no program beyond its rounds of an even split.
    Rounds,
    /// Largest sum of the speedups over one SM, each to the power of 1/N (6.1).
    Profile,
    /// Smallest difference of losses against all SMs.
    Fair,
    /// In proportion to blocks (6.2).
    Blocks,
    /// In proportion to threads of a block.
    ThreadsPerBlock,
    /// In proportion to all threads.
    Threads,
    /// The largest throughput, by search.
    Best,
    /// The smallest throughput, by search.
    Worst,
}

impl Split {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Even,
        Self::SmartEven,
        Self::Packed,
        Self::Rounds,
        Self::Profile,
        Self::Fair,
        Self::Blocks,
        Self::ThreadsPerBlock,
        Self::Threads,
        Self::Best,
        Self::Worst,
    ];

    /// The SMs of each program.
    ///
    /// # Errors
    /// If there are fewer SMs than programs, or none.
    pub fn of(self, programs: &[&Program], sms: u32) -> Result<Vec<u32>, SmError> {
        if sms == 0 {
            return Err(SmError::NoSms);
        }
        if programs.len() > sms as usize {
            let programs = programs.len();
            return Err(SmError::TooFewSms { programs, sms });
        }
        let caps = |cap: &dyn Fn(&Program) -> u32| {
            capped(sms, &programs.iter().map(|of| cap(of)).collect::<Vec<_>>())
        };
        let proportion = |of: &dyn Fn(&Program) -> u64| {
            let all: Vec<u64> = programs.iter().map(|program| of(program)).collect();
            proportional(sms, &all)
        };
        Ok(match self {
            Self::Even => caps(&|_| sms),
            Self::SmartEven => caps(&|program| program.blocks),
            Self::Packed => caps(&|program| program.blocks.div_ceil(program.resident)),
            Self::Rounds => by_rounds(programs, sms),
            Self::Profile => {
                let root = 1.0 / programs.len() as f64;
                let speedup =
                    |program: &Program, sms| libm::pow(program.speed(sms) / program.speed(1), root);
                largest(programs.len(), sms, |split| {
                    let all = programs.iter().zip(split);
                    all.map(|(program, sms)| speedup(program, *sms)).sum()
                })
            }
            Self::Fair => largest(programs.len(), sms, |split| {
                let speeds = programs.iter().zip(split).map(|(of, sms)| of.speed(*sms));
                let (least, most) = speeds
                    .fold((f64::MAX, 0.0), |(least, most): (f64, f64), speed| {
                        (least.min(speed), most.max(speed))
                    });
                least - most
            }),
            Self::Blocks => proportion(&|program| u64::from(program.blocks)),
            Self::ThreadsPerBlock => proportion(&|program| u64::from(program.threads)),
            Self::Threads => {
                proportion(&|program| u64::from(program.blocks) * u64::from(program.threads))
            }
            Self::Best => largest(programs.len(), sms, |split| throughput(programs, split)),
            Self::Worst => largest(programs.len(), sms, |split| -throughput(programs, split)),
        })
    }
}

/// Deals SMs one by one to the program with the fewest, below its cap. The rest stays free.
fn capped(sms: u32, caps: &[u32]) -> Vec<u32> {
    let mut split = vec![0; caps.len()];
    for _ in 0..sms {
        let open = (0..caps.len()).filter(|place| split[*place] < caps[*place]);
        match open.min_by_key(|place| split[*place]) {
            Some(place) => split[place] += 1,
            None => break,
        }
    }
    split
}

/// In proportion to `parts`, rounded down, at least one; the last one takes the remainder.
fn proportional(sms: u32, parts: &[u64]) -> Vec<u32> {
    let sum = parts.iter().sum::<u64>().max(1);
    let last = parts.len() - 1;
    let mut left = sms;
    let mut split = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        // CAST: both are at most `sms`.
        let after = (last - place) as u32;
        let own = (u64::from(sms) * part / sum) as u32;
        let own = match place == last {
            true => left,
            false => own.clamp(1, left - after),
        };
        split.push(own);
        left -= own;
    }
    split
}

fn by_rounds(programs: &[&Program], sms: u32) -> Vec<u32> {
    let even = capped(sms, &vec![sms; programs.len()]);
    let most: Vec<u32> = programs
        .iter()
        .zip(&even)
        .map(|(of, sms)| of.rounds(*sms))
        .collect();
    largest(programs.len(), sms, |split| {
        let rounds = || programs.iter().zip(split).map(|(of, sms)| of.rounds(*sms));
        match rounds().zip(&most).all(|(rounds, most)| rounds <= *most) {
            true => -f64::from(rounds().sum::<u32>()),
            false => f64::MIN,
        }
    })
}

/// The split with the largest value; of equal ones the nearest to even, then the first.
fn largest(programs: usize, sms: u32, value: impl Fn(&[u32]) -> f64) -> Vec<u32> {
    let even = f64::from(sms) / programs as f64;
    let mut best = (f64::NEG_INFINITY, f64::MAX, Vec::new());
    each_split(sms, &mut vec![0; programs], 0, &mut |split| {
        let off = |sms: &u32| (f64::from(*sms) - even) * (f64::from(*sms) - even);
        let (value, far) = (value(split), split.iter().map(off).sum::<f64>());
        let equal = (value - best.0).abs() <= 1e-12 * value.abs();
        if (equal && far < best.1) || (!equal && value > best.0) {
            best = (value, far, split.to_vec());
        }
    });
    best.2
}

/// Calls `visit` for each way to give all of `left` to the programs from `place` on. The first ones
/// get many at first.
fn each_split(left: u32, split: &mut Vec<u32>, place: usize, visit: &mut impl FnMut(&[u32])) {
    if place + 1 == split.len() {
        split[place] = left;
        return visit(split);
    }
    // CAST: a split has few programs.
    let after = (split.len() - place - 1) as u32;
    for own in (1..=left - after).rev() {
        split[place] = own;
        each_split(left - own, split, place + 1, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sm::Kernel;

    fn program(blocks: u32, resident: u32, sms: u32) -> Program {
        let kernel = Kernel {
            time: 1.0,
            blocks,
            resident,
        };
        Program::new(&[kernel], [blocks, 64, resident], sms).unwrap()
    }

    /// The paper's example: 256 blocks, 8 on an SM, have 3 rounds on 15 SMs and on 14.
    #[test]
    fn rounds_of_the_papers_example() {
        let example = program(256, 8, 30);
        assert_eq!([15, 14, 10].map(|sms| example.rounds(sms)), [3, 3, 4]);
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let one = program(4, 4, 30);
        let refused = |split: Split, sms| split.of(&[&one, &one, &one], sms).unwrap_err();
        for split in Split::ALL {
            assert_eq!(refused(split, 0), SmError::NoSms);
            assert_eq!(
                refused(split, 2),
                SmError::TooFewSms {
                    programs: 3,
                    sms: 2
                }
            );
            assert_eq!(split.of(&[&one, &one], 2), Ok(vec![1, 1]));
        }
        let kernel = Kernel {
            time: 1.0,
            blocks: 1,
            resident: 1,
        };
        assert_eq!(Program::new(&[kernel], [1; 3], 0), Err(SmError::NoSms));
        assert_eq!(Program::new(&[], [1; 3], 30), Err(SmError::EmptyKernel(0)));
        let nothing = Kernel {
            time: 0.0,
            ..kernel
        };
        let programs = Program::new(&[kernel, nothing], [1; 3], 30);
        assert_eq!(programs, Err(SmError::EmptyKernel(1)));
    }

    #[test]
    fn caps_bind() {
        let (small, large) = (program(4, 3, 30), program(4_000, 8, 30));
        let of = |split: Split| split.of(&[&small, &large], 30).unwrap();
        assert_eq!(of(Split::Even), [15, 15]);
        assert_eq!(of(Split::SmartEven), [4, 26]);
        assert_eq!(of(Split::Packed), [2, 28]);
        assert_eq!(of(Split::Blocks), [1, 29]);
    }
}
