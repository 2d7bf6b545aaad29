//! Share-a-GPU's programs in turns, with their memory copied in and out over one link (A2).
//!
//! In: programs, and how turns are given. Out: the end, the turns and the work of each. A turn is
//! slices of one launch after another. While it runs, the memory of the process before is saved and
//! that of the next one is restored; the engine waits for these copies. Nothing is copied if no
//! other process waits. Nothing is random.

use std::collections::VecDeque;

use crate::result::Failure;

const MIB: f64 = (1 << 20) as f64;
/// Time that rounding leaves over, in seconds.
const ROUNDING_S: f64 = 1e-12;

/// A program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program {
    /// Name.
    pub name: &'static str,
    /// Its memory, half of which is copied in and half of which is copied out.
    pub mib: f64,
    /// Time alone in seconds, without slices and copies.
    pub native_s: f64,
    /// The part of it on the GPU, in seconds.
    pub gpu_s: f64,
    /// Launches, all of one length.
    pub launches: u32,
}

impl Program {
    fn launch_s(&self) -> f64 {
        self.gpu_s / f64::from(self.launches)
    }
}

const fn program(
    name: &'static str,
    mib: f64,
    [native_s, gpu_s]: [f64; 2],
    launches: u32,
) -> Program {
    Program {
        name,
        mib,
        native_s,
        gpu_s,
        launches,
    }
}

/// SOURCE: table I. It prints the launches of BFS (28 of about 1 ms), Gaussian and matMul; those of
/// the others are chosen.
pub const PROGRAMS: [Program; 7] = [
    program("BFS", 1_321.0, [0.395, 0.028], 28),
    program("Gaussian", 883.0, [327.45; 2], 20_000),
    program("Kmeans", 1_006.0, [0.064; 2], 32),
    program("matMul", 5_424.0, [54.198; 2], 1),
    program("matTrans", 5_433.0, [0.179; 2], 1),
    program("dxtc", 2_280.0, [20.75; 2], 200),
    program("StringSort", 3_072.0, [0.203; 2], 64),
];

/// How turns are given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Length of a slice in seconds.
    pub slice_s: f64,
    /// Rate of the link.
    pub bytes_per_s: f64,
    /// Cost of a microkernel: of each slice of a launch that is cut.
    pub microkernel_s: f64,
    /// A turn ends when its slice is used, and not with a launch.
    pub deficit: bool,
    /// GPUs that each launch is divided over.
    pub gpus: u32,
    /// Cost of a launch on several GPUs: its memory is registered again.
    pub registration_s: f64,
    /// Programs begin again until then; without a time each runs once.
    pub until_s: Option<f64>,
}

/// The plan of the paper, on one GPU.
pub const PLAN: Plan = Plan {
    slice_s: 1.0,
    bytes_per_s: 10e9,
    microkernel_s: 0.000_5,
    deficit: false,
    gpus: 1,
    registration_s: 0.0,
    until_s: None,
};

/// What came of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ran {
    /// When its first run ended; 0 if it did not.
    pub end_s: f64,
    /// Turns.
    pub turns: u32,
    /// Work done, in seconds of one GPU.
    pub work_s: f64,
}

impl Ran {
    /// Turns for each run of the program.
    pub fn turns_of_run(&self, program: &Program) -> f64 {
        f64::from(self.turns) / (self.work_s / program.gpu_s)
    }
}

/// A process: what is left of it.
#[derive(Clone, Copy, Debug)]
struct Process {
    program: Program,
    launches: u32,
    launch_s: f64,
    ran: Ran,
}

impl Process {
    /// Runs a slice of its launch; returns how long that took, and whether the launch ended.
    fn slice(&mut self, plan: &Plan) -> (f64, bool) {
        let (whole, gpus) = (self.program.launch_s(), f64::from(plan.gpus));
        let work = self.launch_s.min(plan.slice_s * gpus);
        let begins = self.launch_s == whole && plan.gpus > 1;
        let is_cut = work < whole - ROUNDING_S;
        let costs = [(begins, plan.registration_s), (is_cut, plan.microkernel_s)];
        let cost: f64 = costs.iter().filter(|of| of.0).map(|of| of.1).sum();
        self.ran.work_s += work;
        self.launch_s -= work;
        let ends = self.launch_s <= ROUNDING_S;
        if ends {
            self.launches -= 1;
            self.launch_s = whole;
        }
        (work / gpus + cost, ends)
    }
}

/// Runs programs in turns; returns when all have ended, and what came of each.
///
/// # Errors
/// If there is no program, GPU or link, or a program without launches or time, or a slice of 0.
pub fn run(programs: &[Program], plan: &Plan) -> Result<(f64, Vec<Ran>), Failure> {
    let is_empty = |program: &Program| program.launches == 0 || program.gpu_s <= 0.0;
    let text = match () {
        () if programs.is_empty() => "No program runs; give 1 or more",
        () if programs.iter().any(is_empty) => "A program has 1 or more launches, which take time",
        () if plan.slice_s <= 0.0 => "A slice of 0 gives no program a turn; it takes time",
        () if plan.gpus == 0 => "0 GPUs run nothing; give 1 or more",
        () if plan.bytes_per_s <= 0.0 => "A link of 0 bytes/s copies nothing; give a rate",
        () => "",
    };
    if !text.is_empty() {
        return Err(Failure(text.to_owned()));
    }
    let process = |program: &Program| Process {
        program: *program,
        launches: program.launches,
        launch_s: program.launch_s(),
        ran: Ran::default(),
    };
    let mut all: Vec<Process> = programs.iter().map(process).collect();
    let mut queue: VecDeque<usize> = (0..all.len()).collect();
    let (mut now, mut before) = (0.0, None);
    let copy_s = |of: &Process| of.program.mib * MIB / 2.0 / plan.bytes_per_s;
    while let Some(place) = queue.pop_front() {
        if plan.until_s.is_some_and(|until| now >= until) {
            break;
        }
        let saved = before.filter(|before| *before != place);
        let copies = match queue.front() {
            Some(next) => copy_s(&all[*next]) + saved.map_or(0.0, |saved| copy_s(&all[saved])),
            None => 0.0,
        };
        let own = &mut all[place];
        let (mut turn, mut over) = (0.0, false);
        loop {
            let (took, launch_ends) = own.slice(plan);
            turn += took;
            if own.launches == 0 {
                own.launches = own.program.launches;
                own.ran.end_s = if own.ran.end_s > 0.0 {
                    own.ran.end_s
                } else {
                    now + turn
                };
                over = true;
            }
            let used = turn >= copies && (!plan.deficit || turn >= plan.slice_s - ROUNDING_S);
            let alone = queue.is_empty() && plan.until_s.is_none_or(|until| now + turn < until);
            let ends = launch_ends && !plan.deficit || used || over && plan.deficit;
            if over && plan.until_s.is_none() || ends && !alone {
                break;
            }
        }
        own.ran.turns += 1;
        now += f64::max(turn, copies);
        before = Some(place);
        if !over || plan.until_s.is_some() {
            queue.push_back(place);
        }
    }
    Ok((now, all.iter().map(|of| of.ran).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_of_a_slice_alone_costs_nothing_and_a_cut_one_its_microkernels() {
        let of = |slice_s| run(&PROGRAMS[4..5], &Plan { slice_s, ..PLAN }).unwrap().0;
        assert_eq!(of(1.0), 0.179);
        assert!((of(0.01) - 0.179 - 18.0 * PLAN.microkernel_s).abs() < 1e-9);
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let good = PROGRAMS[0];
        let refused = |programs: &[Program], plan: Plan| run(programs, &plan).unwrap_err().0;
        let no_launch = Program {
            launches: 0,
            ..good
        };
        assert!(refused(&[no_launch], PLAN).contains("1 or more launches"));
        let no_time = Program { gpu_s: 0.0, ..good };
        assert!(refused(&[no_time], PLAN).contains("take time"));
        assert!(refused(&[], PLAN).contains("No program"));
        assert!(
            refused(
                &[good],
                Plan {
                    slice_s: 0.0,
                    ..PLAN
                }
            )
            .contains("slice of 0")
        );
        assert!(refused(&[good], Plan { gpus: 0, ..PLAN }).contains("0 GPUs"));
        assert!(
            refused(
                &[good],
                Plan {
                    bytes_per_s: 0.0,
                    ..PLAN
                }
            )
            .contains("0 bytes/s")
        );
    }
}
