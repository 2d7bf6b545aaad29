//! Gates before a guest that rings, with a daemon that is only there for that.

mod common;

use common::{Daemon, Kind, Manner, finish};
use std::time::{Duration, Instant};
use turnstile_abi::ErrorCode;
use turnstile_images::{Outcome, Workload};
use turnstile_vmm::gate::GateState;
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
fn a_closed_gate_traps_every_write_and_keeps_the_last() {
    for kind in Kind::all() {
        let daemon = Daemon::start(Manner {
            first: GateState::Closed,
            ..RINGS
        });
        let (vm, _) = kind.run(&daemon, doorbells(1000));
        assert_eq!(vm.doorbell_exits, 1000, "{kind:?}");
        assert_eq!(vm.gates.trapped, 1000);
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

/// The guest rings with a value that rises by one while the gate is closed and opened. The first value that traps
/// after a closing is the page's plus one: nothing was lost, nothing came twice; and the page never moves while the
/// gate is closed, nor ever back.
#[test]
fn cycles_lose_nothing_while_the_guest_rings() {
    for kind in Kind::all() {
        let daemon = Daemon::start(RINGS);
        let vm = kind.start(&daemon, doorbells(0));
        daemon.until("the first doorbell", || daemon.page(0) > 0);
        let (mut closing, mut opening) = (Vec::new(), Vec::new());
        let cycles = cycles(2000);
        for cycle in 0..cycles {
            let since = Instant::now();
            daemon.gate(0, GateState::Closed);
            closing.push(since.elapsed());
            let page = daemon.page(0);
            let first = || vm.gate(0).and_then(|trace| trace.first);
            daemon.until("the first trap", || first().is_some());
            assert_eq!(
                first(),
                Some(page.wrapping_add(1)),
                "{kind:?}, cycle {cycle}"
            );
            assert_eq!(daemon.page(0), page, "a write reached a closed page");
            let since = Instant::now();
            daemon.gate(0, GateState::Open);
            opening.push(since.elapsed());
            let delivered = daemon.page(0);
            assert!(delivered > page, "{kind:?}: nothing was delivered");
            daemon.until("a direct write", || daemon.page(0) != delivered);
            assert!(daemon.page(0) > delivered, "a value went back");
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
        let of = |mut times: Vec<Duration>| {
            times.sort();
            (times[times.len() / 2], times[times.len() * 99 / 100])
        };
        println!(
            "{kind:?}: {cycles} cycles in {:?}; closing p50, p99 {:?}; opening {:?} (both with the socket's round trip)",
            end.elapsed,
            of(closing),
            of(opening)
        );
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
