//! VMs of stock VMMs: what QEMU does over vfio-user, done by a thread, against a real daemon over the software GPU.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/fronts.rs"]
#[allow(unreachable_pub, reason = "another crate shows it")]
mod fronts;
mod guest;
#[path = "../../../vmm-plugin/tests/vfio_user/messages.rs"]
#[allow(dead_code, reason = "each test uses what it needs")]
mod messages;
mod processes;

use std::os::fd::AsFd;
use std::sync::RwLock;
use std::thread;
use std::time::{Duration, Instant};

use fronts::{charged, daemon, fronts};
use guest::Guest;
use turnstile_abi::regs::{self, device_status};
use turnstile_guest::{Device, Platform};
use turnstile_images::{Load, Outcome, Workload};
use turnstile_mediator::daemon::Daemon;
use turnstile_vmm::front::Doorbells;

/// Held by a test that measures beside others, and alone by one that measures what disturbs.
static ALONE: RwLock<()> = RwLock::new(());

/// TIMEOUT: what is waited for takes milliseconds to a second.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn shares(doorbells: Doorbells) {
    let _beside = ALONE.read();
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let vms = [("one", 100), ("three", 300)];
    let _fronts = fronts(folder.path(), &vms, doorbells);
    let load = Load {
        duration_ns: 4_000_000_000,
        kernel_ns: 500_000,
        ..Load::default()
    };
    thread::scope(|scope| {
        let guests = vms.map(|(name, _)| {
            let socket = folder.path().join(format!("vm/{name}.sock"));
            scope.spawn(move || {
                let guest = Guest::new(&socket);
                let verified = guest.run(Workload::Verify { rounds: 1 });
                (verified, guest.run(Workload::Load(load)))
            })
        });
        eventually("both run", || {
            let snapshot = daemon.host().snapshot();
            vms.iter().all(|(name, _)| charged(&snapshot, name) > 3e8)
        });
        let before = daemon.host().snapshot();
        thread::sleep(Duration::from_secs(2));
        let after = daemon.host().snapshot();
        let used = vms.map(|(name, _)| charged(&after, name) - charged(&before, name));
        let share = used[1] / (used[0] + used[1]);
        for guest in guests {
            let (verified, load) = guest.join().unwrap();
            for report in [&verified, &load] {
                assert_eq!(report.outcome, Outcome::Passed, "{}", report.text());
                assert!(report.verified > 0 && report.failed == 0);
            }
            println!("{doorbells:?}: {} launches", load.launches);
        }
        println!("{doorbells:?}: share {share:.3}");
        assert!((share - 0.75).abs() < 0.06, "{share}");
        let end = daemon.host().snapshot();
        assert_eq!((end.conservation_error_ns, end.ledger_errors), (0, 0));
    });
}

#[test]
fn two_guests_share_at_their_weights_with_trapped_doorbells() {
    shares(Doorbells::Trapped);
}

#[test]
fn two_guests_share_at_their_weights_with_mapped_doorbells() {
    shares(Doorbells::Mapped);
}

#[test]
fn the_device_is_there_again_after_a_daemon_s_restart_and_after_a_reset() {
    let folder = tempfile::tempdir().unwrap();
    let first = daemon(folder.path());
    let _fronts = fronts(folder.path(), &[("vm", 100)], Doorbells::Trapped);
    let guest = Guest::new(&folder.path().join("vm/vm.sock"));
    let status = || guest.reg_read32(regs::DEVICE_STATUS);
    let passed = || guest.run(Workload::Verify { rounds: 1 }).outcome == Outcome::Passed;
    let tenants = |daemon: &Daemon| daemon.host().snapshot().tenants.len();
    assert_eq!(tenants(&first), 0, "nobody has touched the device");
    assert!(passed());
    drop(first);
    eventually("the device is lost", || status() == device_status::LOST);
    let second = daemon(folder.path());
    eventually("the device is there again", || {
        status() == device_status::READY
    });
    assert!(passed());

    guest.client().reset().unwrap();
    eventually("the tenant has left", || tenants(&second) == 0);
    eventually("the device is there again", || {
        status() == device_status::READY
    });
    assert!(passed());
    drop(guest);
    eventually("the tenant has left", || tenants(&second) == 0);
}

#[test]
fn memory_comes_and_goes_while_the_vm_runs() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = daemon(folder.path());
    let _fronts = fronts(folder.path(), &[("vm", 100)], Doorbells::Trapped);
    let guest = Guest::new(&folder.path().join("vm/vm.sock"));
    let device = Device::probe(&guest).unwrap();
    // As behind an IOMMU: the same memory at another address.
    const IOVA: u64 = 0x10_0000_0000;
    let text = turnstile_images::KERNELS[0].1;
    guest.write_bytes(0x20_0000, text.as_bytes());
    let load = || device.load_module(IOVA, text.len() as u64);
    assert!(load().is_err(), "nothing is mapped there");
    let memory = Some((guest.file().as_fd(), 0x20_0000));
    guest.client().dma_map(IOVA, 0x20_0000, memory).unwrap();
    load().unwrap();
    guest.client().dma_unmap(IOVA, 0x20_0000).unwrap();
    assert!(load().is_err(), "it was taken away");
    let unsealed = tempfile::tempfile().unwrap();
    unsealed.set_len(0x20_0000).unwrap();
    let memory = Some((unsealed.as_fd(), 0));
    guest.client().dma_map(IOVA, 0x20_0000, memory).unwrap();
    assert!(load().is_err(), "a file that could shrink is not used");
}
