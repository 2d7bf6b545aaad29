//! NEON's disengaged fair queuing, from samples of each task alone (A1.5).
//!
//! A cycle: drain; sample each task alone for a while, each submission trapped; charge; free run.
//! The mean length of a task's commands in its sample stands for its use of the free run, as
//! round-robin dispatch is taken to give equal numbers of commands.
//!
//! Laws: the charges of a cycle sum to the free run's length if any task had a command, else to 0;
//! a task that is held back was charged before; the system's virtual time does not fall.

use turnstile_accounting::Nanos;

/// Length of the sample of one task. SOURCE: released code.
pub const SAMPLE: Nanos = Nanos::from_ms(1);
/// Free run over all samples. SOURCE: released code.
pub const FREE_RUN_FACTOR: u64 = 5;
/// Commands that end a sample early. SOURCE: released code.
pub const SAMPLE_COMMANDS_MAX: u64 = 96;

/// What a sample has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Commands that ended.
    pub commands: u64,
    /// Their lengths.
    pub sum: Nanos,
}

impl Sample {
    fn mean_ns(self) -> f64 {
        self.sum.0 as f64 / self.commands.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Task {
    virtual_ns: f64,
    held: bool,
    sample: Sample,
}

/// Virtual times of all tasks.
#[derive(Clone, Debug)]
pub struct Neon {
    tasks: Vec<Task>,
    system_ns: f64,
}

impl Neon {
    /// That many tasks, none of which has run.
    pub fn new(tasks: usize) -> Self {
        Self {
            tasks: vec![Task::default(); tasks],
            system_ns: 0.0,
        }
    }

    /// Whether a task is held back, and not sampled.
    pub fn is_held(&self, task: usize) -> bool {
        self.tasks[task].held
    }

    /// Takes the sample of a task. That of a task that is held back stays as it was.
    pub fn sampled(&mut self, task: usize, sample: Sample) {
        self.tasks[task].sample = sample;
    }

    /// Charges the coming free run, and decides which tasks are held back in it. Returns the
    /// charges.
    pub fn charge(&mut self, free_run: Nanos) -> Vec<f64> {
        let epoch = free_run.0 as f64;
        let admitted = |task: &Task| !task.held && task.sample.commands > 0;
        let sum: f64 = self
            .tasks
            .iter()
            .filter(|t| admitted(t))
            .map(|t| t.sample.mean_ns())
            .sum();
        let charge = |task: &Task| match admitted(task) {
            true => task.sample.mean_ns() / sum * epoch,
            false => 0.0,
        };
        let charges: Vec<f64> = self.tasks.iter().map(charge).collect();
        for (task, charge) in self.tasks.iter_mut().zip(&charges) {
            task.virtual_ns += charge;
        }
        let counts = |task: &&Task| task.held || task.sample.commands > 0;
        let least = self.tasks.iter().filter(counts).map(|task| task.virtual_ns);
        let least = least.fold(f64::INFINITY, f64::min);
        if least.is_finite() {
            self.system_ns = self.system_ns.max(least);
        }
        for task in &mut self.tasks {
            if !task.held && task.sample.commands == 0 {
                task.virtual_ns = task.virtual_ns.max(self.system_ns);
            }
            task.held = task.virtual_ns > self.system_ns + epoch;
        }
        charges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_are_held_back_until_the_others_have_caught_up() {
        let mut neon = Neon::new(3);
        let (epoch, mut held) = (Nanos::from_ms(15), Vec::new());
        for _ in 0..8 {
            for (task, us) in [(0, 900), (1, 100)] {
                let sum = Nanos::from_us(us);
                neon.sampled(task, Sample { commands: 1, sum });
            }
            let before = neon.system_ns;
            let charges = neon.charge(epoch);
            assert!((charges.iter().sum::<f64>() - epoch.0 as f64).abs() < 1.0);
            assert!(neon.system_ns >= before && !neon.is_held(2));
            held.push(neon.is_held(0));
        }
        assert!(held.contains(&true) && held.contains(&false), "{held:?}");
        assert_eq!(Neon::new(2).charge(epoch), [0.0, 0.0]);
    }
}
