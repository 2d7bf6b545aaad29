//! `nvidia-load`: one load of the bench, a plain CUDA process.

use std::io;
use std::time::Duration;

use turnstile_figures::load::{Calibration, LoadSpec};
use turnstile_figures::matrix::{Length, Pattern};
use turnstile_nvidia::load as generator;

/// Arguments of `nvidia-load`.
#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub struct LoadArgs {
    /// GPU
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Length of a kernel: 50us, 2ms, endless
    #[arg(long, default_value = "200us")]
    kernel: Length,
    /// When there is work
    #[arg(long, value_enum, default_value_t = Pattern::Busy)]
    pattern: Pattern,
    /// Launches ahead, when deep
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Seed of the bursts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Length of the run
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Blocks of 256 threads; 0 fills every processor
    #[arg(long, default_value_t = 0)]
    blocks: u32,
    /// Duration of work, as TURNS_PER_MS:FIXED_NS; measured if it is not given, best on a GPU
    /// without other load
    #[arg(long)]
    calibration: Option<Calibration>,
    /// Copy pieces of this many KiB to the GPU beside the kernels, one after another
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    copy_kib: u32,
    /// List every gap
    #[arg(long)]
    list_gaps: bool,
    /// Read the start time from a line of standard input, as wall clock in nanoseconds; end when it
    /// closes
    #[arg(long)]
    wait: bool,
    /// Launch and wait for as many kernels as each line of standard input orders, and report the
    /// time that took; end when it closes
    #[arg(long, conflicts_with = "wait")]
    blocks_of: bool,
    /// And as many by a thread under the filter of `turnstile run`, alternating
    #[arg(long, requires = "blocks_of")]
    filtered: bool,
}

/// Runs the load: reports that it is ready, waits for the start time, loads the GPU, reports its
/// measurements.
///
/// # Errors
/// If the GPU or its driver fails, or standard input is not what it has to be.
pub fn load(args: &LoadArgs) -> anyhow::Result<()> {
    // CAST: nanoseconds of a few seconds; a negative or absurd length saturates.
    let length_ns = Duration::try_from_secs_f64(args.seconds)?.as_nanos() as u64;
    let spec = LoadSpec {
        gpu: args.device,
        kernel: args.kernel,
        pattern: args.pattern,
        seed: args.seed,
        in_flight: args.in_flight,
        length_ns,
        blocks: args.blocks,
        calibration: args.calibration,
        list_gaps: args.list_gaps,
        copy_bytes: args.copy_kib as usize * 1024,
    };
    let output = io::stdout().lock();
    if args.blocks_of {
        generator::blocks(&spec, args.filtered, io::stdin().lock(), output)?;
    } else if args.wait {
        generator::run(&spec, Some(io::stdin().lock()), output)?;
    } else {
        generator::run(&spec, None::<io::StdinLock<'_>>, output)?;
    }
    Ok(())
}
