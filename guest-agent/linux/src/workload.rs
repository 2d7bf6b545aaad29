//! Runs the workloads of all guests on Linux: the same program as in the reference VMM's guest.

use std::time::Duration;

use crate::Failure;
use crate::args::{Args, UsageError};
use turnstile_abi::Platform;
use turnstile_abi::boot::{BOOT_GPA, BootInfo, FILE_BYTES, File, file_entry};
use turnstile_guest_linux::{Bus, GuestError};
use turnstile_workload::{ARGS_BYTES, Load, Outcome, REPORT_BYTES, Report, Workload};

/// In the program's own memory, which no device sees.
const ARGS_AT: u64 = 0x8000;
const REPORT_AT: u64 = 0x9000;
/// Memory for rings, texts and staging; what the workloads take of it is a little over one MiB.
const DMA_BYTES: u64 = 4 << 20;

macro_rules! texts {
    ($($name:literal),*) => {
        &[$((concat!($name, ".ptx"), include_str!(concat!("../../../images/kernels/", $name, ".ptx")))),*]
    };
}

const TEXTS: &[(&str, &str)] = texts!(
    "vecadd",
    "saxpy",
    "matmul",
    "histogram",
    "nbody",
    "reduce",
    "sha256",
    "spin"
);

/// A kernel of a given length.
pub(crate) const SPIN_PTX: &str = include_str!("../../../images/kernels/spin.ptx");

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let seconds = args.number("seconds")?.unwrap_or(10);
    let kernel_us = args.number("kernel-us")?.unwrap_or(1_000);
    let workload = match args.rest() {
        [what] if what == "verify" => Workload::Verify { rounds: 1 },
        [what] if what == "load" => Workload::Load(Load {
            // CAST: 584 years
            duration_ns: Duration::from_secs(seconds).as_nanos() as u64,
            kernel_ns: kernel_us.saturating_mul(1_000),
            ..Load::default()
        }),
        _ => return Err(UsageError::Command("workload without verify or load".into()).into()),
    };
    let report = perform(workload)?;
    println!(
        "workload: launches {} verified {} failed {} in {:.3} s",
        report.launches,
        report.verified,
        report.failed,
        report.elapsed_ns as f64 / 1e9
    );
    match report.outcome {
        Outcome::Passed => Ok(()),
        outcome => Err(Failure::Workload(format!("{outcome:?}: {}", report.text()))),
    }
}

fn perform(workload: Workload) -> Result<Report, Failure> {
    let bus = Bus::open(DMA_BYTES)?;
    let page = |at: u64| at.next_multiple_of(4096);
    let directory = bus.dma().address();
    let mut next = page(directory + (TEXTS.len() * FILE_BYTES) as u64);
    for (i, (name, text)) in TEXTS.iter().enumerate() {
        let file = File {
            gpa: next,
            bytes: text.len() as u64,
        };
        let long = GuestError::Memory("a file's name is too long");
        let entry = file_entry(name, file).ok_or(long)?;
        bus.write_bytes(directory + (i * FILE_BYTES) as u64, &entry);
        bus.write_bytes(next, text.as_bytes());
        next = page(next + file.bytes);
    }
    let mut encoded = [0; ARGS_BYTES];
    encoded.copy_from_slice(&workload.encode());
    bus.write_bytes(ARGS_AT, &encoded);
    let info = BootInfo {
        memory_bytes: directory + bus.dma().bytes(),
        heap_gpa: next,
        tsc_khz: 0,
        args_gpa: ARGS_AT,
        args_bytes: encoded.len() as u64,
        report_gpa: REPORT_AT,
        report_bytes: REPORT_BYTES as u64,
        files_gpa: directory,
        files: TEXTS.len() as u64,
    };
    bus.write_bytes(BOOT_GPA, &info.encode());
    turnstile_workload::run(&bus);
    if let Some(seen) = bus.interrupts() {
        println!("interrupts {seen}");
    }
    let mut report = [0; REPORT_BYTES];
    bus.read_bytes(REPORT_AT, &mut report);
    Report::decode(&report).ok_or(Failure::Workload("the workload left no report".into()))
}
