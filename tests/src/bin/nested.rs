//! Checks of a PCI GPU that implements the device contract, and of guests with its doorbells passed
//! through. Run in the nested lab with `--device 0000:00:03.0`, or anywhere on simulated hardware.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use kvm_ioctls::{Kvm, VmFd};
use turnstile_daemon::MeterKind;
use turnstile_gpu::Suspend;
use turnstile_soft::SoftConfig;
use turnstile_soft::pci::{PciGpu, serve};
use turnstile_tests::cloud::Cloud;
use turnstile_tests::linux;
use turnstile_tests::machine::Lab;
use turnstile_tests::nested::gates::Use;
use turnstile_tests::nested::{Line, Lost, checks, gates};
use turnstile_vfio::Bus;
use turnstile_vfio::fake::FakeBus;
use turnstile_vfio::kernel::KernelBus;
use turnstile_vfio::user::UserBus;

/// Runs the checks and prints their figures.
#[derive(Debug, Parser)]
struct Args {
    /// PCI address of the GPU, bound to vfio-pci
    #[arg(long)]
    device: Option<String>,
    /// Socket of a vfio-user server of the GPU; without either, it is simulated in this process
    #[arg(long, conflicts_with = "device")]
    vfio_user: Option<PathBuf>,
    /// Serve simulated hardware at this socket by the vfio-user protocol, and check nothing
    #[arg(long, conflicts_with_all = ["device", "vfio_user"])]
    serve: Option<PathBuf>,
    /// Run Linux guests in Cloud Hypervisor instead, which is on the path; their kernel and
    /// initramfs are in this folder
    #[arg(long, conflicts_with_all = ["device", "vfio_user", "serve"])]
    linux_guests: Option<PathBuf>,
    /// The host's processor is emulated
    #[arg(long)]
    emulated: bool,
    /// Cycles of the gate
    #[arg(long, default_value_t = 1000)]
    cycles: u32,
    /// Seconds of each run at 1:3
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Checks to run, by name; all of them if none is named
    #[arg(value_parser = ["interrupts", "polling", "isolation", "open", "cycles", "every-write", "throughput", "shares", "wild", "polled", "adaptive"])]
    checks: Vec<String>,
}

fn simulated() -> Result<PciGpu> {
    Ok(PciGpu::new(SoftConfig {
        suspend: Suspend::BetweenCommands,
        ..SoftConfig::default()
    })?)
}

/// A VM that exists as long as this program, if there is KVM. The kernel patches its scheduler
/// (`preempt_notifier_key`) with the first VM, and back with the last one. An emulated machine with
/// two processors crashes if that happens often.
fn kept_vm() -> Option<VmFd> {
    Kvm::new().and_then(|kvm| kvm.create_vm()).ok()
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(socket) = &args.serve {
        return Ok(serve(&simulated()?, socket)?);
    }
    let _kept = kept_vm();
    if let Some(folder) = args.linux_guests {
        let cloud = Cloud::find().map_err(anyhow::Error::msg)?;
        let lab = Lab::at(folder);
        linux::share_in_cloud(
            "Cloud Hypervisor in the lab",
            linux::LONG_KERNEL_US,
            Instant::now(),
            &cloud,
            &lab,
        );
        linux::device_returns(&cloud, &lab);
        return Ok(());
    }
    let bus: Arc<dyn Bus> = match (&args.device, &args.vfio_user) {
        (Some(address), _) => Arc::new(KernelBus::open(address)?),
        (None, Some(socket)) => Arc::new(UserBus::connect(socket)?),
        (None, None) => Arc::new(FakeBus::new(simulated()?)),
    };
    println!("GPU: {}", bus.describe());
    let length = Duration::from_secs(args.seconds);
    let named = |name: &str| args.checks.is_empty() || args.checks.iter().any(|n| n == name);
    let began = Instant::now();
    let mut kept = true;
    let mut run = |name: &str, check: &dyn Fn() -> Result<Vec<Line>>| {
        if !named(name) {
            return;
        }
        let since = Instant::now();
        let mut found = check();
        if args.emulated && matches!(&found, Err(error) if error.is::<Lost>()) {
            println!("LOST {name}: the emulator shut a guest's processor down; again, once");
            found = check();
        }
        match found {
            Ok(lines) => {
                for line in lines {
                    println!("{line}");
                    kept &= line.kept;
                }
            }
            Err(error) => {
                println!("FAILED {name}: {error:#}");
                kept = false;
            }
        }
        println!("       {name} took {:.1} s", since.elapsed().as_secs_f64());
    };
    run("interrupts", &|| checks::interrupts(&bus));
    run("polling", &|| checks::polling_cost(&bus));
    run("isolation", &|| checks::isolation(&bus));
    match turnstile_tests::e2e::kvm_guests() {
        Ok(()) => {
            run("open", &|| gates::open(&*bus));
            run("cycles", &|| gates::cycles(&*bus, args.cycles));
            run("every-write", &|| gates::every_write(&*bus, args.cycles));
            for of in [Use::PAGES, Use::WORDS] {
                run("throughput", &|| {
                    gates::throughput(&*bus, of, 6, args.emulated)
                });
            }
            run("wild", &|| checks::wild_guests(&bus));
            run("shares", &|| {
                checks::shares(&bus, MeterKind::Events, length)
            });
            run("polled", &|| {
                checks::shares(&bus, MeterKind::Polled, length)
            });
            run("adaptive", &|| {
                checks::shares(&bus, MeterKind::Adaptive, length)
            });
        }
        Err(reason) => println!("SKIPPED: guests: {reason}"),
    }
    println!("all checks took {:.1} s", began.elapsed().as_secs_f64());
    anyhow::ensure!(kept, "some promises were not kept");
    println!("NESTED OK");
    Ok(())
}
