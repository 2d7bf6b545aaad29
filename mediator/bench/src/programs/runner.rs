//! Runs rows of programs in one mode after the other.
//!
//! ```text
//!   mode: start daemon or MPS -> start all programs -> load -> warm, one after another
//!         -> each round: each program alone, then each row (later modes: rows first) -> stop
//!   row:  go -> skip -> count, snapshot -> window -> snapshot, rest -> answers
//! ```
//!
//! All programs of a mode live from its beginning, asleep but for those of the row. A program that
//! fails ends; its rows are left out. The reference of progress is the program alone in the same
//! round of the first mode that measured it: native, where that is measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::scheduler::DaemonArgs;
use super::estimate::{Estimate, Lengths, steps_of, words};
use super::modes::Running;
use super::process::{Order, Process, ProcessError, sleep};
use super::rows::{Mode, Program, Row, programs_of};
use super::runs::{Failure, Figures, LeftOut, Report, Run, Window};
use super::table;

/// TIMEOUT: a program ends the step under way, of some ten milliseconds, at an eighth of the GPU.
const WINDOW_LIMIT: Duration = Duration::from_secs(30);

/// What a call runs, and how.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) modes: Vec<Mode>,
    pub(super) rows: Vec<Row>,
    pub(super) lengths: Lengths,
    /// No row begins that would end later.
    pub(super) limit: Option<Duration>,
    /// Until a program is loaded; and from the order to begin until it is warm.
    pub(super) ready_limit: Duration,
    pub(super) python: PathBuf,
    /// Folder of the programs' files.
    pub(super) files: PathBuf,
    pub(super) device: u32,
    pub(super) daemon: DaemonArgs,
    /// Folder of sockets and messages.
    pub(super) folder: PathBuf,
}

/// Programs that work, by their names.
type Processes = BTreeMap<Program, Process>;

/// A call.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    plan: &'a Plan,
    stop: &'a AtomicBool,
    began: Instant,
    report: Report,
    /// Each program alone, by round.
    alone: BTreeMap<(u32, Program), Window>,
    estimate: Estimate,
    /// Where the report is written after each row.
    out: Option<&'a Path>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        report: Report,
        stop: &'a AtomicBool,
        out: Option<&'a Path>,
    ) -> Self {
        Self {
            plan,
            stop,
            began: Instant::now(),
            report,
            alone: BTreeMap::new(),
            estimate: Estimate::of(&plan.modes, &plan.rows, &plan.lengths),
            out,
        }
    }

    /// Runs all modes; those that fail are in the report.
    pub(super) fn run(mut self) -> anyhow::Result<Report> {
        // A file that cannot be written is known before anything is measured.
        self.write()?;
        let modes = &self.plan.modes;
        for (index, mode) in modes.iter().enumerate() {
            // Each mode has its part of what is left of the limit.
            let deadline = self.plan.limit.map(|limit| {
                let passed = self.began.elapsed();
                // CAST: at most three modes.
                let modes_left = (modes.len() - index) as u32;
                self.began + passed + limit.saturating_sub(passed) / modes_left
            });
            self.estimate.begin(index);
            let ended = self.mode(*mode, deadline);
            // A signal from the terminal ends daemons too: that is no failure then.
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            if let Err(error) = ended {
                self.fail(*mode, None, format!("{error:#}"));
            }
        }
        self.report.interrupted = self.stop.load(Ordering::Acquire);
        self.write()?;
        Ok(self.report)
    }

    fn mode(&mut self, mode: Mode, deadline: Option<Instant>) -> anyhow::Result<()> {
        let begin = Instant::now();
        let plan = self.plan;
        let steps = steps_of(mode, Some(&mode) == plan.modes.first(), &plan.rows);
        let started = Running::start(mode, &plan.daemon, plan.device, &plan.folder);
        let mut running = match started {
            // Most hosts have none: that is no failure.
            Err(error) if mode == Mode::Mps => {
                self.leave_out(mode, None, format!("{error:#}"));
                return Ok(());
            }
            other => other?,
        };
        self.line(&format!(
            "{mode}: preparing {} programs",
            programs_of(&plan.rows).len()
        ));
        let mut processes = self.prepare(mode, &running)?;
        if mode == Mode::Mps && processes.is_empty() {
            self.leave_out_mps();
            return Ok(());
        }
        self.estimate.prepared(begin.elapsed());
        'rounds: for round in 0..plan.lengths.rounds {
            for row in &steps {
                if self.stop.load(Ordering::Acquire) {
                    break 'rounds;
                }
                let length = plan.lengths.of(row);
                // Lines are written at the end of a step.
                self.estimate.step(length);
                if deadline.is_some_and(|deadline| Instant::now() + length > deadline) {
                    self.leave_out(mode, Some(row), "no time is left for it".into());
                } else {
                    self.step(mode, row, round, &mut running, &mut processes)?;
                }
                self.write()?;
            }
        }
        for process in processes.values_mut() {
            process.order(Order::Stop);
        }
        Ok(())
    }

    /// Starts all programs and makes them warm, one after another: none of them shares meanwhile.
    fn prepare(&mut self, mode: Mode, running: &Running) -> anyhow::Result<Processes> {
        let plan = self.plan;
        let (limit, stop) = (plan.ready_limit, self.stop);
        let mut processes = Processes::new();
        let programs = programs_of(&plan.rows);
        for program in &programs {
            let command = running.command(&plan.python, &plan.files, program)?;
            let process = Process::start(command, program, running.folder())?;
            processes.insert(program.clone(), process);
        }
        for program in &programs {
            let loaded = processes
                .get_mut(program)
                .map(|process| process.loaded(limit, stop));
            if let Some(Err(error)) = loaded {
                self.lose(mode, program, &error, &mut processes);
            }
        }
        for program in &programs {
            let Some(process) = processes.get_mut(program) else {
                continue;
            };
            process.order(Order::Begin);
            match process.ready(limit, stop) {
                Ok(seconds) => self.line(&format!(
                    "{mode} {} is warm after {seconds:.1} s",
                    program.name()
                )),
                Err(error) => self.lose(mode, program, &error, &mut processes),
            }
        }
        Ok(processes)
    }

    /// Measures a row once, if its programs work.
    fn step(
        &mut self,
        mode: Mode,
        row: &Row,
        round: u32,
        running: &mut Running,
        processes: &mut Processes,
    ) -> anyhow::Result<()> {
        if let Some(missing) = row
            .programs()
            .find(|program| !processes.contains_key(program))
        {
            let reason = format!("{} has failed", missing.name());
            self.leave_out(mode, Some(row), reason);
            return Ok(());
        }
        running.weigh(row)?;
        let Some(windows) = self.window(mode, row, running, processes)? else {
            return Ok(());
        };
        if let ([program], [window]) = (&row.programs().collect::<Vec<_>>()[..], &windows[..]) {
            let key = (round, (*program).clone());
            self.alone.entry(key).or_insert_with(|| window.clone());
        }
        let mut figures = Vec::new();
        for (program, window) in row.programs().zip(windows) {
            let alone = self.alone.get(&(round, program.clone()));
            let Some(of) = alone.and_then(|alone| Figures::of(program, window, alone)) else {
                let reason = format!("{} did no steps alone", program.name());
                self.leave_out(mode, Some(row), reason);
                return Ok(());
            };
            figures.push(of);
        }
        let daemon_cpu_percent = running.charge(&mut figures);
        let run = Run {
            mode,
            row: row.clone(),
            round,
            programs: figures,
            daemon_cpu_percent,
        };
        self.line(&table::progress(&run));
        self.report.runs.push(run);
        Ok(())
    }

    /// Has the programs of a row work together. None if one of them failed, or the bench is to end.
    fn window(
        &mut self,
        mode: Mode,
        row: &Row,
        running: &mut Running,
        processes: &mut Processes,
    ) -> anyhow::Result<Option<Vec<Window>>> {
        let (lengths, stop) = (&self.plan.lengths, self.stop);
        let all = |processes: &mut Processes, order| {
            for program in row.programs() {
                if let Some(process) = processes.get_mut(program) {
                    process.order(order);
                }
            }
        };
        all(processes, Order::Go);
        if !sleep(lengths.skip_of(row), stop) {
            return Ok(None);
        }
        running.begin()?;
        all(processes, Order::Count);
        if !sleep(lengths.window, stop) {
            return Ok(None);
        }
        running.end()?;
        all(processes, Order::EndWindow);
        let mut windows = Vec::new();
        // All of them are waited for, so that those that work are at rest before the next row.
        for program in row.programs() {
            let window = processes
                .get(program)
                .map(|process| process.window(WINDOW_LIMIT.min(self.plan.ready_limit), stop));
            match window {
                Some(Ok(window)) => windows.push(window),
                Some(Err(error)) => self.lose(mode, program, &error, processes),
                None => {}
            }
        }
        if windows.len() < row.members().len() {
            if !stop.load(Ordering::Acquire) {
                self.leave_out(mode, Some(row), "a program failed in it".into());
            }
            return Ok(None);
        }
        Ok(Some(windows))
    }

    /// Ends a program that failed.
    fn lose(
        &mut self,
        mode: Mode,
        program: &Program,
        error: &ProcessError,
        processes: &mut Processes,
    ) {
        if !matches!(error, ProcessError::Interrupted) {
            self.fail(mode, Some(program), error.to_string());
        }
        processes.remove(program);
    }

    fn fail(&mut self, mode: Mode, program: Option<&Program>, error: String) {
        let name = program.map_or("", Program::name);
        self.line(&format!("{mode} {name} FAILED: {error}"));
        self.report.failures.push(Failure {
            mode,
            program: program.cloned(),
            error,
        });
    }

    fn leave_out(&mut self, mode: Mode, row: Option<&Row>, reason: String) {
        let name = row.map_or_else(String::new, Row::to_string);
        self.line(&format!("{mode} {name} is left out: {reason}"));
        let left_out = LeftOut {
            mode,
            row: row.cloned(),
            reason,
        };
        // Once for all rounds.
        if !self.report.left_out.contains(&left_out) {
            self.report.left_out.push(left_out);
        }
    }

    /// The control daemon runs, but no program does under it: the host has no usable MPS.
    fn leave_out_mps(&mut self) {
        let failures = std::mem::take(&mut self.report.failures);
        let (of_mps, others): (Vec<_>, Vec<_>) = failures
            .into_iter()
            .partition(|failure| failure.mode == Mode::Mps);
        self.report.failures = others;
        if let Some(first) = of_mps.into_iter().next() {
            let reason = format!("no program runs under it; the first: {}", first.error);
            self.leave_out(Mode::Mps, None, reason);
        }
    }

    /// A line of progress, with what is left.
    fn line(&self, text: &str) {
        let (done, steps) = self.estimate.steps();
        let left = words(self.estimate.left());
        eprintln!("[{done:>3} of {steps}, {left} left] {text}");
    }

    /// Writes what there is: a call that is killed keeps its rows.
    fn write(&self) -> anyhow::Result<()> {
        match self.out {
            Some(out) => super::write(&self.report, out),
            None => Ok(()),
        }
    }
}
