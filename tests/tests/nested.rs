//! The checks of the nested lab on simulated hardware in this process: the same backend, gates and
//! guests, without VFIO.

use std::sync::Arc;
use std::time::Duration;

use turnstile_daemon::MeterKind;
use turnstile_gpu::Suspend;
use turnstile_soft::SoftConfig;
use turnstile_soft::pci::PciGpu;
use turnstile_tests::nested::gates::Use;
use turnstile_tests::nested::{Line, checks, gates};
use turnstile_vfio::Bus;
use turnstile_vfio::fake::FakeBus;

fn bus() -> Arc<dyn Bus> {
    let config = SoftConfig {
        suspend: Suspend::BetweenCommands,
        ..SoftConfig::default()
    };
    Arc::new(FakeBus::new(PciGpu::new(config).unwrap()))
}

fn kept(lines: anyhow::Result<Vec<Line>>) {
    for line in lines.unwrap() {
        println!("{line}");
        assert!(line.kept, "{line}");
    }
}

/// Whether guests can be run; prints the reason if not.
fn guests() -> bool {
    let available = turnstile_tests::e2e::kvm_guests();
    if let Err(reason) = &available {
        eprintln!("SKIPPED: guests: {reason}");
    }
    available.is_ok()
}

#[test]
fn the_device_interrupts_is_read_and_keeps_contexts_apart() {
    let bus = bus();
    kept(checks::interrupts(&bus));
    kept(checks::polling_cost(&bus));
    kept(checks::isolation(&bus));
}

#[test]
fn doorbells_pass_through_and_gates_hold_them() {
    if guests() {
        let bus = bus();
        kept(gates::open(&*bus));
        kept(gates::cycles(&*bus, 300));
        kept(gates::every_write(&*bus, 300));
    }
}

#[test]
fn a_guest_with_64_mib_in_use_goes_on_as_fast_while_its_gate_cycles_every_2_ms() {
    if guests() {
        let bus = bus();
        kept(gates::throughput(&*bus, Use::PAGES, 6, false));
        kept(gates::throughput(&*bus, Use::WORDS, 6, false));
    }
}

#[test]
fn guests_share_the_device_at_their_weights_and_none_reaches_another() {
    if guests() {
        let bus = bus();
        kept(checks::wild_guests(&bus));
        let length = Duration::from_secs(4);
        kept(checks::shares(&bus, MeterKind::Events, length));
        kept(checks::shares(&bus, MeterKind::Polled, length));
    }
}
