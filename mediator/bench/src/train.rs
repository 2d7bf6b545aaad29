//! `turnstile bench train`: PyTorch trainings that together own more memory than the GPU has, under
//! the daemon, against the same natively one after another; and beside that, trainings that fit
//! together.
//!
//! Each training is a process of `images/load/train.py`, which waits for files: to build its
//! network, and to begin.

mod report;
mod training;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use rustix::process::Signal;
use turnstile_figures::output::OutputArgs;
use turnstile_figures::train::{
    Sample, Stretch, Trained, pool_bytes, serial_s, stretches, together_s, turn_s,
};
use turnstile_nvidia::{probe, version};

use super::daemon::Daemon;
use super::scheduler::{DaemonArgs, spawn};
use super::{GpuArg, progress};
use report::{Report, Row, Run, print};
use training::{Missing, Training};

/// The training. Runs wherever PyTorch does.
const TRAIN: &str = include_str!("../../../images/load/train.py");
/// From one snapshot of the daemon to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What the driver and contexts take of the card by default. SOURCE: `serve --card-mib`.
const CONTEXTS_BYTES: u64 = 8 << 30;

/// Arguments of `bench train`.
#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub(super) struct TrainArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// GPU memory of each training, in GiB, about
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(3..=4096))]
    gib: u64,
    /// Trainings at a time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    programs: u64,
    /// Steps of each
    #[arg(long, default_value_t = 220, value_parser = clap::value_parser!(u64).range(3..=1_000_000))]
    steps: u64,
    /// The same at a size, in GiB each, at which nothing has to move, for comparison; 0 leaves it
    /// out
    #[arg(long, default_value_t = 40)]
    beside_gib: u64,
    /// What trainings have together of the card, in MiB; by default all but 8 GiB
    #[arg(long)]
    card_mib: Option<u64>,
    /// Host memory for what does not fit, in MiB; by default as much as that, a quarter more and 4
    /// GiB
    #[arg(long)]
    host_pool_mib: Option<u64>,
    /// Python with PyTorch
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Longest time for a part: loading PyTorch, building the networks, all steps, the end; in
    /// seconds
    #[arg(long, default_value_t = 900)]
    limit_s: u64,
    /// Keep the output of trainings and daemon in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Common parts of all runs.
struct Bench<'a> {
    args: &'a TrainArgs,
    /// Folder of one size's files.
    folder: PathBuf,
    bar: &'a ProgressBar,
}

impl Bench<'_> {
    fn show(&self, what: String) {
        if self.bar.is_hidden() {
            eprintln!("{what}");
        }
        self.bar.set_message(what);
    }

    fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.args.programs
    }

    /// Runs them one after another, natively. The others have only loaded PyTorch meanwhile.
    fn serial(&self, gib: u64) -> anyhow::Result<Vec<Trained>> {
        let start = |seed| Training::start(Command::new(&self.args.python), self, gib, seed);
        let mut trainings: Vec<Training> =
            self.seeds().map(start).collect::<anyhow::Result<_>>()?;
        let mut all = Vec::new();
        for training in &mut trainings {
            self.show(format!("{gib} GiB, alone: training {}", training.seed));
            training.let_it("build")?;
            training.wait_ready()?;
            training.let_it("go")?;
            let deadline = Instant::now() + training.limit;
            while !training.ended()? {
                if Instant::now() > deadline {
                    return Err(training.failed("is not done in time"));
                }
                thread::sleep(Duration::from_millis(20));
            }
            all.push(training.result()?);
            self.bar.inc(1);
        }
        Ok(all)
    }

    /// The command that runs Python as a tenant of the daemon at `socket`.
    fn tenant(&self, socket: &Path, seed: u64) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["run", "--movable", "--socket"]).arg(socket);
        command
            .args(["--name", &format!("train{seed}"), "--"])
            .arg(&self.args.python);
        Ok(command)
    }

    /// Runs all together under a daemon; returns their reports, and samples of the daemon
    /// meanwhile.
    fn shared(
        &self,
        gib: u64,
        card_bytes: u64,
        host_pool_bytes: u64,
    ) -> anyhow::Result<(Vec<Trained>, Vec<Sample>)> {
        let mib = |name: &str, bytes: u64| format!("--{name}={}", bytes >> 20);
        let words = [
            mib("card-mib", card_bytes),
            mib("host-pool-mib", host_pool_bytes),
        ];
        let daemon = self.args.daemon.with(words);
        let (mut daemon, socket) = spawn(&daemon, self.args.device, &self.folder)?;
        self.show(format!("{gib} GiB, together: building"));
        let start = |seed| Training::start(self.tenant(&socket, seed)?, self, gib, seed);
        let mut trainings: Vec<Training> =
            self.seeds().map(start).collect::<anyhow::Result<_>>()?;
        for training in &trainings {
            training.let_it("build")?;
        }
        for training in &mut trainings {
            training.wait_ready()?;
        }
        self.show(format!("{gib} GiB, together: training"));
        for training in &trainings {
            training.let_it("go")?;
        }
        let samples = self.watch(&mut trainings, &mut daemon)?;
        let results = trainings.iter().map(Training::result);
        let all: Vec<Trained> = results.collect::<anyhow::Result<_>>()?;
        drop(trainings);
        daemon.signal(Signal::TERM)?;
        daemon.wait()?;
        self.bar.inc(1);
        Ok((all, samples))
    }

    /// Samples the daemon until all are done.
    fn watch(
        &self,
        trainings: &mut [Training],
        daemon: &mut Daemon,
    ) -> anyhow::Result<Vec<Sample>> {
        let deadline = Instant::now() + Duration::from_secs(self.args.limit_s);
        let mut samples = Vec::new();
        loop {
            let mut all_ended = true;
            for training in &mut *trainings {
                all_ended &= training.ended()?;
            }
            if all_ended {
                return Ok(samples);
            }
            if Instant::now() > deadline {
                bail!("The trainings are not done after {} s", self.args.limit_s);
            }
            let sample = Sample::of(&daemon.snapshot()?);
            samples.push(sample.context("The daemon's snapshot tells of no memory that moves")?);
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn run(&self, gib: u64, card_bytes: u64, host_pool_bytes: u64) -> anyhow::Result<Run> {
        let alone = self.serial(gib)?;
        let (shared, samples) = self.shared(gib, card_bytes, host_pool_bytes)?;
        let rows = self.seeds().zip(alone.iter().zip(&shared));
        let rows = rows.map(|(seed, (alone, shared))| {
            let [losses_equal, weights_equal] = alone.equals(shared);
            Row {
                seed,
                alone_s: alone.end - alone.begin,
                alone_step_ms: alone.step_ms,
                shared_s: shared.end - shared.begin,
                losses_equal,
                weights_equal,
            }
        });
        let stretches = stretches(&samples);
        let sum = |of: fn(&Stretch) -> u64| stretches.iter().map(of).sum();
        let (serial_s, shared_s) = (serial_s(&alone), together_s(&shared));
        Ok(Run {
            allocated_gib: shared
                .iter()
                .map(|one| one.allocated_gib)
                .fold(0.0, f64::max),
            card_bytes,
            host_pool_bytes,
            rows: rows.collect(),
            serial_s,
            shared_s,
            percent_of_serial: 100.0 * serial_s / shared_s,
            turn_s: turn_s(&stretches),
            out_bytes: sum(|one| one.out_bytes),
            in_bytes: sum(|one| one.in_bytes),
            stretches,
        })
    }
}

pub(super) fn run(args: &TrainArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let driver = version::detect()?.version;
    let all_bytes = probe::memory_bytes(args.device)?;
    let card_bytes = args
        .card_mib
        .map_or(all_bytes.saturating_sub(CONTEXTS_BYTES), |mib| mib << 20);
    // PyTorch takes more than the requested size.
    let each = |gib: u64| (gib + 1) << 30;
    ensure!(
        each(args.gib) <= card_bytes,
        "A training of {} GiB does not fit on {} GiB of the card, as it has to when it runs",
        args.gib,
        card_bytes >> 30
    );
    let pool = |gib| pool_bytes(args.programs, each(gib), card_bytes);
    let host_pool_bytes = args.host_pool_mib.map_or(pool(args.gib), |mib| mib << 20);
    let temporary = tempfile::Builder::new()
        .prefix("turnstile-bench")
        .tempdir()?;
    let folder = args.keep.as_deref().unwrap_or(temporary.path());
    let sizes = if args.beside_gib > 0 { 2 } else { 1 };
    // CAST: at most 16 programs.
    let bar = progress(sizes * (args.programs as usize + 1));
    let run = |gib: u64, host_pool_bytes| {
        let folder = folder.join(format!("{gib}-gib"));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        fs::write(folder.join("train.py"), TRAIN)?;
        let bar = &bar;
        Bench { args, folder, bar }.run(gib, card_bytes, host_pool_bytes)
    };
    let runs = || -> anyhow::Result<Report> {
        Ok(Report {
            driver,
            steps: args.steps,
            over: run(args.gib, host_pool_bytes)?,
            beside: match args.beside_gib {
                0 => None,
                gib => Some(run(gib, pool(gib))?),
            },
        })
    };
    let report = runs();
    bar.finish_and_clear();
    let report = match report {
        Err(error) if error.is::<Missing>() => {
            eprintln!("SKIPPED: {error}");
            return Ok(());
        }
        other => other?,
    };
    args.output.print(&report, |report| {
        println!("driver {}, {} steps each", report.driver, report.steps);
        print(&report.over);
        report.beside.iter().for_each(print);
    })?;
    let mut all = report.beside.iter().chain([&report.over]);
    ensure!(
        all.all(Run::is_equal),
        "Losses or weights are not what they are alone"
    );
    Ok(())
}
