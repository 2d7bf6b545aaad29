//! What the guest does, whether it is a virtual machine or a host thread.
//!
//! The host encodes a [`Workload`] as the guest's arguments and decodes the [`Report`] that it
//! leaves. The module texts that it needs ([`FILES`]) are placed into its memory as files.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod args;
mod bad;
mod bench;
mod copies;
mod doorbells;
mod filled;
mod kernels;
mod load;
mod report;
mod session;
mod sha256;
mod touch;
mod transfers;
mod verify;

pub use args::{ARGS_BYTES, Load, Misbehaviour, Workload};
pub use kernels::{FILES, Test};
pub use report::{Outcome, REPORT_BYTES, Report};
pub use session::{During, Fail, PATIENCE_NS, Session};

use turnstile_abi::Platform;
use turnstile_abi::boot::BootInfo;

/// Runs what the arguments say. Returns the guest's exit code: 0 where all was well.
pub fn run<P: Platform>(platform: &P) -> u8 {
    let Some(boot) = BootInfo::read(platform) else {
        return 2;
    };
    let mut args = [0; ARGS_BYTES];
    let known = boot.args_bytes.min(ARGS_BYTES as u64) as usize;
    platform.read_bytes(boot.args_gpa, &mut args[..known]);
    let mut report = Report::default();
    let since = platform.now_ns();
    let result = match Workload::decode(&args) {
        None => Err(Fail::text("The arguments are no workload")),
        Some(workload) => perform(platform, boot, workload, &mut report),
    };
    report.elapsed_ns = platform.now_ns().saturating_sub(since);
    report.end(&result);
    report.publish(platform, &boot);
    u8::from(report.outcome != Outcome::Passed)
}

fn perform<P: Platform>(
    platform: &P,
    boot: BootInfo,
    workload: Workload,
    report: &mut Report,
) -> Result<(), Fail> {
    let mut session = Session::new(platform, boot)?;
    match workload {
        Workload::Verify { rounds } => verify::run(&mut session, rounds, report),
        Workload::Load(load) => load::run(&mut session, load, false, report),
        Workload::Demo(load) | Workload::Filled(load) => {
            verify::run(&mut session, 1, report)?;
            report.publish(platform, &boot);
            let fill = matches!(workload, Workload::Filled(_));
            load::run(&mut session, load, fill, report)?;
            verify::run(&mut session, 1, report)
        }
        Workload::Doorbells { count, paced } => doorbells::run(&mut session, count, paced, report),
        Workload::Touch { bytes, step_bytes } => {
            touch::run(&mut session, bytes, step_bytes, report)
        }
        Workload::Copies { bytes, depth } => {
            verify::run(&mut session, 1, report)?;
            report.publish(platform, &boot);
            copies::run(&mut session, bytes, depth, report)?;
            verify::run(&mut session, 1, report)
        }
        Workload::Bad(kind) => bad::run(&mut session, kind, report),
    }
}
