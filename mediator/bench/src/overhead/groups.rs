//! Processes that work alternately: started at once, all but one asleep.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use turnstile_figures::load::Block;
use turnstile_figures::pairs::order;

use super::super::processes::Load;

/// Exit status where PyTorch or a GPU is missing.
const SKIPPED: i32 = 77;

/// Time after all have begun, until the contention of the start is over.
const SETTLING: Duration = Duration::from_secs(1);

/// How a process is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Reference of the comparisons.
    Native,
    /// Another native process: shows how much equal processes differ.
    NativeAgain,
    Tenant,
    /// With `run --movable`.
    Movable,
}

impl Side {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::NativeAgain => "another native one",
            Self::Tenant => "turnstile run",
            Self::Movable => "run --movable",
        }
    }

    /// Options of `turnstile run`; none if it is no tenant.
    pub(super) const fn run(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Native | Self::NativeAgain => None,
            Self::Tenant => Some(&[]),
            Self::Movable => Some(&["--movable"]),
        }
    }
}

/// Work of the processes.
pub(super) struct Work {
    pub(super) what: &'static str,
    pub(super) program: PathBuf,
    pub(super) words: Vec<String>,
    pub(super) sides: &'static [Side],
    pub(super) groups: u32,
    pub(super) seconds: f64,
    /// Launches or steps in a block.
    pub(super) pieces: u32,
    /// Processors that all of them are on, from when they are ready.
    pub(super) processors: usize,
}

/// A process of each side.
pub(super) struct Group {
    pub(super) loads: Vec<Load>,
}

/// Mean of a side's two blocks of a round, for each side.
pub(super) type Round = Vec<Block>;

impl Group {
    /// Alternates the sides for some seconds.
    pub(super) fn rounds(&mut self, seconds: f64, pieces: u32) -> anyhow::Result<Vec<Round>> {
        let end = Instant::now() + Duration::try_from_secs_f64(seconds)?;
        let mut rounds = Vec::new();
        // The first round is left out: it fills caches, and a tenant that was busy before it
        // becomes idle.
        while rounds.len() < 2 || Instant::now() < end {
            let mut round = vec![Block::default(); self.loads.len()];
            for half in 0..2 {
                for side in order(self.loads.len(), 2 * rounds.len() + half) {
                    round[side].add_half(self.loads[side].block(pieces)?);
                }
            }
            rounds.push(round);
        }
        rounds.remove(0);
        Ok(rounds)
    }

    /// Alternates the two ways of work of the first process.
    pub(super) fn ways(&mut self, seconds: f64, pieces: u32) -> anyhow::Result<Vec<[Block; 2]>> {
        let load = self.loads.first_mut().context("A group has a process")?;
        let end = Instant::now() + Duration::try_from_secs_f64(seconds)?;
        load.two_blocks(pieces)?;
        let mut both = Vec::new();
        while both.is_empty() || Instant::now() < end {
            both.push(load.two_blocks(pieces)?);
        }
        Ok(both)
    }
}

/// All processes of one kind of work.
pub(super) struct Groups(pub(super) Vec<Group>);

impl Groups {
    /// Starts all at once and waits until all can begin; `None` if one reports that PyTorch or a
    /// GPU is missing.
    pub(super) fn start(
        work: &Work,
        mut command: impl FnMut(Side) -> anyhow::Result<Command>,
    ) -> anyhow::Result<Option<Self>> {
        let mut all = Self(Vec::new());
        for _ in 0..work.groups {
            all.0.push(Group { loads: Vec::new() });
            for side in work.sides {
                let load = Load::spawn(command(*side)?)?;
                all.0
                    .last_mut()
                    .context("A group was made")?
                    .loads
                    .push(load);
            }
        }
        for load in all.0.iter_mut().flat_map(|group| &mut group.loads) {
            if let Err(error) = load.wait_ready() {
                if load.ended_with()? == Some(SKIPPED) {
                    return Ok(None);
                }
                return Err(error);
            }
        }
        // Only now, because they begin on all processors.
        for load in all.0.iter().flat_map(|group| &group.loads) {
            keep_on(load.pid, work.processors)?;
        }
        thread::sleep(SETTLING);
        Ok(Some(all))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // All end at once; dropped one by one, each would be waited for alone.
        for load in self.0.iter_mut().flat_map(|group| &mut group.loads) {
            load.no_more();
        }
    }
}

/// Puts all threads of a process on some processors: the last of those that this process may use.
fn keep_on(pid: u32, processors: usize) -> anyhow::Result<()> {
    let all = sched_getaffinity(None)?;
    let mut few = CpuSet::new();
    let may = (0..CpuSet::MAX_CPU)
        .rev()
        .filter(|index| all.is_set(*index));
    may.take(processors).for_each(|index| few.set(index));
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("A load is gone")?;
    for thread in threads.flatten() {
        let id = thread.file_name().to_string_lossy().parse().ok();
        // A thread that has ended meanwhile needs no place.
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = sched_setaffinity(Some(id), &few);
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A process of the bench that needs no GPU: its pieces take `median_ns`.
    pub(in super::super) fn shell(median_ns: u32) -> Command {
        let mut command = Command::new("sh");
        let script = format!(
            r#"echo '{{"ready": {{"pid": '$$'}}}}'; while read count; do echo '{{"block": {{"median_ns": {median_ns}, "mean_ns": '$count'}}}}'; done"#
        );
        command.args(["-c", &script]);
        command
    }

    pub(in super::super) fn nothing(groups: u32) -> Work {
        Work {
            what: "nothing",
            program: PathBuf::new(),
            words: Vec::new(),
            sides: &[Side::Native, Side::NativeAgain, Side::Tenant],
            groups,
            seconds: 0.05,
            pieces: 7,
            processors: 1,
        }
    }

    #[test]
    fn work_that_has_nothing_to_run_with_is_left_out_and_one_that_fails_is_an_error() {
        let ends_with = |code: i32| {
            Groups::start(&nothing(1), |side| {
                let mut command = shell(1);
                if side == Side::Tenant {
                    command = Command::new("sh");
                    command.args(["-c", &format!("exit {code}")]);
                }
                Ok(command)
            })
        };
        assert!(ends_with(SKIPPED).unwrap().is_none());
        assert!(ends_with(1).is_err());
    }

    #[test]
    fn a_process_is_kept_on_some_processors_with_all_its_threads() {
        let mut command = Command::new("sleep");
        let mut child = command.arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let all = sched_getaffinity(Some(pid)).unwrap().count();
        keep_on(child.id(), 1).unwrap();
        let kept = sched_getaffinity(Some(pid)).unwrap().count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kept == 1 && all >= 1);
        assert!(keep_on(child.id(), 1).is_err(), "it is gone");
    }
}
