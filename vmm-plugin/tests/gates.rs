//! Gates before a guest that rings, with a daemon that is only there for that.

mod common;

use common::{Daemon, Kind, Manner, finish};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use turnstile_abi::ErrorCode;
use turnstile_images::{Load, Misbehaviour, Outcome, Workload};
use turnstile_vmm::gate::{GateState, newer};
use turnstile_vmm::vmm::VmEnd;

const RINGS: Manner = Manner {
    first: GateState::Open,
    run: false,
    requests_max: usize::MAX,
};

fn doorbells(count: u64) -> Workload {
    Workload::Doorbells {
        count,
        paced: false,
    }
}

/// Cycles of a test, from the environment where a longer run is wanted.
fn cycles(usual: u32) -> u32 {
    std::env::var("TURNSTILE_GATE_CYCLES")
        .ok()
        .and_then(|cycles| cycles.parse().ok())
        .unwrap_or(usual)
}

#[test]
fn an_open_gate_costs_no_exit() {
    for kind in Kind::all() {
        let daemon = Daemon::start(RINGS);
        let (vm, report) = kind.run(&daemon, doorbells(100_000));
        assert_eq!(
            vm.end,
            VmEnd::Exited(0),
            "{kind:?}: {} {}",
            report.text(),
            vm.console
        );
        assert_eq!(report.doorbells, 100_000);
        assert_eq!(vm.doorbell_exits, 0, "{kind:?}");
        assert_eq!(daemon.page(0), 100_000);
        println!("{kind:?}: {} exits in all, {:?}", vm.exits, vm.elapsed);
    }
}

#[test]
fn a_closed_gate_traps_once_and_keeps_the_last() {
    for kind in Kind::all() {
        let daemon = Daemon::start(Manner {
            first: GateState::Closed,
            ..RINGS
        });
        let vm = kind.start(&daemon, doorbells(0));
        let parked = || vm.gate(0).and_then(|trace| trace.parked);
        daemon.until("a thousand parked doorbells", || parked() > Some(1000));
        assert_eq!(daemon.kicks(), 1, "{kind:?}");
        assert_eq!(daemon.page(0), 0);
        vm.stop();
        let (vm, _) = finish(vm);
        assert_eq!(vm.doorbell_exits, 1, "{kind:?}");
        assert_eq!((vm.gates.trapped, vm.gates.parked), (1, 1));
        assert_eq!(daemon.page(0), 0);
    }
}

#[test]
fn a_watched_gate_traps_once() {
    for kind in Kind::all() {
        let daemon = Daemon::start(Manner {
            first: GateState::Watched,
            ..RINGS
        });
        let (vm, _) = kind.run(&daemon, doorbells(1000));
        assert_eq!(vm.doorbell_exits, 1, "{kind:?}");
        assert_eq!(daemon.page(0), 1000);
        assert_eq!(daemon.kicks(), 1);
    }
}

#[test]
fn commands_run_and_fences_interrupt() {
    for kind in Kind::all() {
        let daemon = Daemon::start(Manner::default());
        let paced = Workload::Doorbells {
            count: 2000,
            paced: true,
        };
        let (vm, report) = kind.run(&daemon, paced);
        assert_eq!(
            vm.end,
            VmEnd::Exited(0),
            "{kind:?}: {} {}",
            report.text(),
            vm.console
        );
        assert_eq!(report.outcome, Outcome::Passed);
        println!("{kind:?}: {} exits, {:?}", vm.exits, vm.elapsed);
    }
}

/// Threads that keep processors busy for as long as this lives.
struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn new(threads: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let spin = |over: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Self {
            threads: (0..threads).map(|_| spin(Arc::clone(&over))).collect(),
            over,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a busy thread does nothing else");
        }
    }
}

/// The guest rings with a value that rises by one while the gate is closed and opened. The page
/// does not change while the gate is closed, and never goes back. The parked value follows the page
/// and is delivered on opening. At the end the page has the value that the guest wrote last.
fn cycle(kind: Kind, cycles: u32, busy: usize) {
    let daemon = Daemon::start(RINGS);
    let vm = kind.start(&daemon, doorbells(0));
    daemon.until("the first doorbell", || daemon.page(0) > 0);
    let _busy = Busy::new(busy);
    let (mut closing, mut opening) = (Vec::new(), Vec::new());
    for cycle in 0..cycles {
        let since = Instant::now();
        daemon.gate(0, GateState::Closed);
        closing.push(since.elapsed());
        let page = daemon.page(0);
        // In some cycles the gate opens again before the guest has rung.
        let wait = cycle % 4 != 0;
        if wait {
            let parked = || vm.gate(0).and_then(|trace| trace.parked);
            daemon.until("a parked doorbell", || {
                parked().is_some_and(|parked| newer(parked, page))
            });
        }
        assert_eq!(daemon.page(0), page, "a write reached a closed page");
        let since = Instant::now();
        daemon.gate(0, GateState::Open);
        opening.push(since.elapsed());
        let delivered = daemon.page(0);
        assert!(
            newer(delivered, page) || !wait && delivered == page,
            "{kind:?}, cycle {cycle}: {page} to {delivered}"
        );
        if wait {
            daemon.until("a direct write", || daemon.page(0) != delivered);
        }
        let direct = daemon.page(0);
        assert!(
            !newer(delivered, direct),
            "{kind:?}, cycle {cycle}: {delivered} to {direct}"
        );
    }
    vm.stop();
    let (end, report) = finish(vm);
    assert_eq!(
        end.end,
        VmEnd::Exited(0),
        "{kind:?}: {} {}",
        report.text(),
        end.console
    );
    assert_eq!(u64::from(daemon.page(0)), report.doorbells & 0xffff_ffff);
    assert!(
        end.doorbell_exits <= u64::from(cycles),
        "a closed gate traps once: {} of {cycles}",
        end.doorbell_exits
    );
    let of = |mut times: Vec<Duration>| {
        times.sort();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        (at(50), at(99), at(100))
    };
    println!(
        "{kind:?}, {busy} busy threads: {cycles} cycles in {:?}, {} doorbells, {} exits; p50, p99, most of closing \
         {:?}, opening {:?} (both with the socket's round trip)",
        end.elapsed,
        report.doorbells,
        end.doorbell_exits,
        of(closing),
        of(opening)
    );
}

#[test]
fn cycles_lose_nothing_while_the_guest_rings() {
    for kind in Kind::all() {
        cycle(kind, cycles(2000), 0);
    }
}

/// Gates have to move while others have the processors, too.
#[test]
fn cycles_lose_nothing_beside_busy_threads() {
    for kind in Kind::all() {
        cycle(kind, cycles(4000) / 20, 2);
    }
}

#[test]
fn a_daemon_that_goes_away_is_a_lost_device() {
    for kind in Kind::all() {
        // Gone before the answer to the second request, which closes the channel.
        let daemon = Daemon::start(Manner {
            requests_max: 1,
            ..RINGS
        });
        let (vm, report) = kind.run(&daemon, doorbells(10));
        assert_eq!(vm.end, VmEnd::Exited(1), "{kind:?}");
        assert_eq!(report.outcome, Outcome::Failed);
        assert_eq!(
            report.error,
            ErrorCode::DeviceLost as u64,
            "{}",
            report.text()
        );
        assert!(vm.lost);
    }
}

#[test]
fn a_guest_can_be_ended_by_force() {
    for kind in Kind::all() {
        let daemon = Daemon::start(RINGS);
        let vm = kind.start(&daemon, doorbells(0));
        daemon.until("the first doorbell", || daemon.page(0) > 0);
        assert!(!vm.wait(Duration::from_millis(1)));
        vm.kill();
        let end = vm.join().unwrap().end;
        assert_eq!(end == VmEnd::Killed, kind == Kind::Kvm, "{end:?}");
    }
}

#[test]
fn a_load_checks_every_token() {
    let steady = Load {
        duration_ns: 200_000_000,
        depth: 8,
        fence_every: 3,
        ..Load::default()
    };
    let bursts = Load {
        burst: 7,
        pause_ns: 1_500_000,
        depth: 4,
        ..steady
    };
    for kind in Kind::all() {
        for load in [steady, bursts] {
            let daemon = Daemon::start(Manner::default());
            let (vm, report) = kind.run(&daemon, Workload::Load(load));
            assert_eq!(
                vm.end,
                VmEnd::Exited(0),
                "{kind:?}: {} {}",
                report.text(),
                vm.console
            );
            assert!(report.launches > 64, "{kind:?}: {report:?}");
            assert_eq!((report.verified, report.failed), (report.launches, 0));
            assert_eq!(vm.doorbell_exits, 0);
            println!(
                "{kind:?}: {} launches in {} ms, {} exits, turnaround {} us on average",
                report.launches,
                report.elapsed_ns / 1_000_000,
                vm.exits,
                report.turnaround_ns_sum / report.fences / 1000
            );
        }
    }
}

#[test]
fn load_in_a_long_pause_ends_when_requested() {
    for kind in Kind::all() {
        let daemon = Daemon::start(Manner::default());
        let load = Load {
            duration_ns: 0,
            burst: 1,
            pause_ns: 3_600_000_000_000,
            ..Load::default()
        };
        let vm = kind.start(&daemon, Workload::Load(load));
        daemon.until("the first launch", || daemon.page(0) > 0);
        let limit = Duration::from_millis(20);
        let vm = vm.join_within(limit, Duration::from_secs(20)).unwrap();
        assert_eq!(vm.end, VmEnd::Exited(0), "{kind:?}");
        assert!(vm.elapsed < Duration::from_secs(10));
    }
}

#[test]
fn misbehaviours_that_this_daemon_answers_are_recognised() {
    for kind in Kind::all() {
        for bad in [
            Misbehaviour::UnknownCommand,
            Misbehaviour::ReservedField,
            Misbehaviour::BadLaunch,
            Misbehaviour::WildCopy,
            Misbehaviour::MillionRings,
            Misbehaviour::TooMuchMemory,
        ] {
            let daemon = Daemon::start(Manner::default());
            let (vm, report) = kind.run(&daemon, Workload::Bad(bad));
            let text = report.text();
            assert_eq!(
                vm.end,
                VmEnd::Exited(0),
                "{kind:?}, {bad:?}: {text} {}",
                vm.console
            );
            assert!(report.verified > 0);
        }
    }
}
