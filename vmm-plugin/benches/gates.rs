//! What a doorbell costs at each gate: `cargo bench -p turnstile-vmm --bench gates`.
//!
//! Not a criterion benchmark: the repeated work is inside a guest, or needs a guest that rings
//! concurrently.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Daemon, Kind, Manner, finish};
use std::time::{Duration, Instant};
use turnstile_images::Workload;
use turnstile_vmm::gate::GateState;

/// Rounds at each gate.
const ROUNDS: usize = 2_000;

fn daemon() -> Daemon {
    Daemon::start(Manner {
        first: GateState::Open,
        run: false,
        requests_max: usize::MAX,
    })
}

fn row(kind: Kind, what: &str, mut lengths: Vec<Duration>) {
    lengths.sort_unstable();
    let at =
        |permille: usize| lengths[(lengths.len() - 1) * permille / 1000].as_nanos() as f64 / 1e3;
    println!(
        "{:<52} {:<7} {:>10.2} {:>10.2} {:>10.2}",
        what,
        format!("{kind:?}"),
        at(500),
        at(990),
        at(1000)
    );
}

/// An open gate: by the guest's clock, the difference of a long run and a short one.
fn direct(kind: Kind) {
    let run = |count| {
        let (vm, report) = kind.run(
            &daemon(),
            Workload::Doorbells {
                count,
                paced: false,
            },
        );
        assert_eq!((vm.doorbell_exits, report.doorbells), (0, count));
        report.elapsed_ns
    };
    let (few, many) = (100_000, 10_000_000);
    let ns = (run(many) - run(few)) as f64 / (many - few) as f64;
    println!(
        "{:<52} {:<7} {:>10.5}",
        "doorbell, gate open",
        format!("{kind:?}"),
        ns / 1e3
    );
}

/// A guest rings endlessly. Its gate is closed or watched, the first write is reported, the gate is
/// opened again.
fn cycles(kind: Kind, state: GateState, names: [&str; 3]) {
    let daemon = daemon();
    let vm = kind.start(
        &daemon,
        Workload::Doorbells {
            count: 0,
            paced: false,
        },
    );
    daemon.until("the first doorbell", || daemon.page(0) > 0);
    let mut lengths = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let before = daemon.kicks();
        let since = Instant::now();
        daemon.gate(0, state);
        lengths[0].push(since.elapsed());
        let since = Instant::now();
        daemon.until("a write to come out", || daemon.kicks() > before);
        lengths[1].push(since.elapsed());
        let since = Instant::now();
        daemon.gate(0, GateState::Open);
        lengths[2].push(since.elapsed());
    }
    vm.stop();
    finish(vm);
    for (name, lengths) in names.into_iter().zip(lengths) {
        row(kind, name, lengths);
    }
}

fn main() {
    println!(
        "{:<52} {:<7} {:>10} {:>10} {:>10}",
        "microseconds", "guest", "p50", "p99", "max"
    );
    for kind in Kind::all() {
        direct(kind);
        cycles(
            kind,
            GateState::Watched,
            [
                "watch: request to answer",
                "watched doorbell: from the answer to the daemon's kick",
                "open after that: request to answer",
            ],
        );
        cycles(
            kind,
            GateState::Closed,
            [
                "close: request to answer",
                "trapped doorbell: from the answer to the daemon's kick",
                "open and deliver: request to answer",
            ],
        );
    }
}
