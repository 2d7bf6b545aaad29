//! VMs of stock VMMs: a thread does what QEMU does over vfio-user, against a real daemon over the
//! software GPU.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/fronts.rs"]
#[allow(dead_code, unreachable_pub, reason = "another crate uses it all")]
mod fronts;
mod guest;
#[path = "../../../../vmm-plugin/tests/vfio_user/messages.rs"]
#[allow(dead_code, reason = "each test uses what it needs")]
mod messages;
mod pci;
mod processes;

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::RwLock;
use std::thread;
use std::time::{Duration, Instant};

use fronts::{daemon, fronts};
use guest::{Guest, SEALED, memory_file};
use rustix::fs::SealFlags;
use turnstile_abi::Platform;
use turnstile_abi::regs::{self, device_status};
use turnstile_daemon::{Daemon, HostSnapshot};
use turnstile_guest::Device;
use turnstile_images::{Load, Outcome, Workload};
use turnstile_vmm::front::Doorbells;

/// Held by a test that measures beside others, and alone by one that measures what disturbs.
static ALONE: RwLock<()> = RwLock::new(());

/// TIMEOUT: what is waited for takes milliseconds to a second.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Engine time that two tenants used while both had work all the time.
struct Contended {
    vms: [&'static str; 2],
    before: HostSnapshot,
    used_ns: [u64; 2],
}

impl Contended {
    /// Length of what is judged as a whole: several turns of each tenant.
    const STEP_NS: u64 = 100_000_000;
    /// Least time that is judged.
    const TOTAL_NS: u64 = 1_500_000_000;

    /// Adds the time since the last step, unless a tenant was without work in it.
    fn step(&mut self, now: HostSnapshot) {
        let length_ns = now.at.since(self.before.at).0;
        if length_ns < Self::STEP_NS {
            return;
        }
        let of = |snapshot: &HostSnapshot, name| {
            let tenant = snapshot.tenants.iter().find(|tenant| tenant.name == name);
            tenant.map_or((0, 0), |tenant| (tenant.compute_ns.0, tenant.waited_ns.0))
        };
        let steps = self.vms.map(|name| {
            let (before, now) = (of(&self.before, name), of(&now, name));
            (now.0 - before.0, now.1 - before.1)
        });
        if steps
            .iter()
            .all(|(used, waited)| used + waited == length_ns)
        {
            for (sum, (used, _)) in self.used_ns.iter_mut().zip(steps) {
                *sum += used;
            }
        }
        self.before = now;
    }

    /// The second tenant's share, once enough time counts.
    fn share(&self) -> Option<f64> {
        let total_ns: u64 = self.used_ns.iter().sum();
        (total_ns >= Self::TOTAL_NS).then(|| self.used_ns[1] as f64 / total_ns as f64)
    }
}

fn shares(doorbells: Doorbells) {
    let _beside = ALONE.read();
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let vms = [("one", 100), ("three", 300)];
    let _fronts = fronts(folder.path(), &vms, doorbells);
    // The queue holds 320 ms of work, so that a guest has work while its thread waits for a core.
    // A channel has no compute work while it copies tokens; long kernels make few copies.
    let load = Load {
        // TIMEOUT: ends the guests where the test fails; otherwise the test stops them.
        duration_ns: 60_000_000_000,
        kernel_ns: 10_000_000,
        depth: 32,
        fence_every: 4,
        ..Load::default()
    };
    let guests = vms.map(|(name, _)| Guest::new(&folder.path().join(format!("vm/{name}.sock"))));
    thread::scope(|scope| {
        let runs = guests.each_ref().map(|guest| {
            scope.spawn(move || {
                let verified = guest.run(Workload::Verify { rounds: 1 });
                (verified, guest.run(Workload::Load(load)))
            })
        });
        let mut contended = Contended {
            vms: vms.map(|(name, _)| name),
            before: daemon.host().snapshot(),
            used_ns: [0; 2],
        };
        // The daemon decides late while its threads wait for a core. What a tenant gets too much
        // then is taken from it later, so that the share of all the time converges.
        let mut share = None;
        eventually("charges follow weights", || {
            contended.step(daemon.host().snapshot());
            share = contended.share();
            share.is_some_and(|share| (share - 0.75).abs() < 0.06)
        });
        guests.iter().for_each(Guest::stop);
        for run in runs {
            let (verified, load) = run.join().unwrap();
            for report in [&verified, &load] {
                assert_eq!(report.outcome, Outcome::Passed, "{}", report.text());
                assert!(report.verified > 0 && report.failed == 0);
            }
            println!("{doorbells:?}: {} launches", load.launches);
        }
        println!("{doorbells:?}: share {share:?}");
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
fn dma_mappings_change_while_the_vm_runs() {
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
}

/// A file that could shrink would end the daemon at its next access.
#[test]
fn memory_file_that_could_shrink_is_refused_and_a_sealed_one_is_taken() {
    const BYTES: u64 = 0x20_0000;
    const IOVA: u64 = 0x10_0000_0000;
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let vms = [("vm", 100), ("whole", 100), ("part", 100)];
    let _fronts = fronts(folder.path(), &vms, Doorbells::Trapped);
    let socket = |name: &str| folder.path().join(format!("vm/{name}.sock"));
    let unsealed = [SealFlags::empty(), SealFlags::GROW, SealFlags::SEAL];
    let text = turnstile_images::KERNELS[0].1.as_bytes();
    let file = |seals| {
        let file = memory_file(BYTES, seals);
        file.write_all_at(text, 0).unwrap();
        file
    };
    // A mapping of a VM that runs.
    let guest = Guest::new(&socket("vm"));
    let device = Device::probe(&guest).unwrap();
    for (seals, taken) in unsealed
        .map(|seals| (seals, false))
        .into_iter()
        .chain([(SealFlags::SHRINK, true), (SEALED, true)])
    {
        let file = file(seals);
        let memory = Some((file.as_fd(), 0));
        guest.client().dma_map(IOVA, BYTES, memory).unwrap();
        let loaded = device.load_module(IOVA, text.len() as u64);
        assert_eq!(loaded.is_ok(), taken, "{seals:?}: {loaded:?}");
        guest.client().dma_unmap(IOVA, BYTES).unwrap();
    }
    assert_eq!(
        guest.run(Workload::Verify { rounds: 1 }).outcome,
        Outcome::Passed
    );
    // All memory of a VM, and one of two files.
    let whole = Guest::with_seals(&socket("whole"), SealFlags::GROW);
    let part = Guest::new(&socket("part"));
    let file = file(SealFlags::empty());
    let memory = Some((file.as_fd(), 0));
    part.client().dma_map(IOVA, BYTES, memory).unwrap();
    for refused in [&whole, &part] {
        eventually("it is refused", || {
            refused.reg_read32(regs::DEVICE_STATUS) == device_status::LOST
        });
    }
    let tenants = daemon.host().snapshot().tenants;
    let names: Vec<&str> = tenants.iter().map(|tenant| &*tenant.name).collect();
    assert_eq!(names, ["vm"]);
    part.client().dma_unmap(IOVA, BYTES).unwrap();
    eventually("what is left is taken", || {
        part.reg_read32(regs::DEVICE_STATUS) == device_status::READY
    });
}
