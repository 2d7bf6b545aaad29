//! The worst cases that the search of `adversary.rs` has found.

use crate::adversary::Case;
use crate::attacks::{ATTACKERS, victims};
use crate::load::{Guest, Leave, Load, Program};

const MS: u64 = 1_000_000;

/// Lengths in nanoseconds, each with its number of repetitions.
type Lengths<'a> = &'a [(usize, u64)];

fn expand(lengths: Lengths<'_>) -> Vec<u64> {
    let each = lengths.iter();
    each.flat_map(|(times, length)| vec![*length; *times])
        .collect()
}

struct Attacker<'a> {
    kernels: Lengths<'a>,
    pauses: Lengths<'a>,
    depth: usize,
    batch: bool,
    start_ns: u64,
    jitter_ns: u64,
    leave: Leave,
}

const ONE: Attacker<'_> = Attacker {
    kernels: &[(1, MS)],
    pauses: &[(1, 0)],
    depth: 1,
    batch: false,
    start_ns: 0,
    jitter_ns: 0,
    leave: Leave::Never,
};

/// `victim`: index in the list of victims. `apart`: each attacker has its own account.
fn case(victim: usize, stops: bool, apart: bool, attackers: &[Attacker<'_>]) -> Case {
    let guest = |(account, attacker): (u32, &Attacker<'_>)| Guest {
        account: Some(if apart { account } else { ATTACKERS }),
        leave: attacker.leave,
        load: Load::Program(Program {
            kernels_ns: expand(attacker.kernels),
            pauses_ns: expand(attacker.pauses),
            depth: attacker.depth,
            batch: attacker.batch,
            start_ns: attacker.start_ns,
            jitter_ns: attacker.jitter_ns,
        }),
        ..Guest::idle()
    };
    let attackers = (ATTACKERS..).zip(attackers).map(guest).collect();
    let (_, kind, guest) = victims()[victim].clone();
    Case::beside(kind, guest, attackers, stops)
}

/// A kernel of a second that was started just before its tenant was held ran to its end.
#[test]
fn a_kernel_that_starts_as_its_tenant_is_held_is_stopped() {
    let attackers = [
        Attacker {
            kernels: &[(1, 100_000)],
            start_ns: 10_267_562,
            jitter_ns: 139_192,
            leave: Leave::Rename(MS),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 20_000)],
            start_ns: 9_898_656,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 20_000)],
            pauses: &[(19, 330_000), (1, 990_000)],
            depth: 8,
            batch: true,
            start_ns: 9_614_858,
            jitter_ns: 199_531,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 1_000 * MS)],
            pauses: &[(1, 100_000)],
            start_ns: 1_314_812,
            ..ONE
        },
    ];
    case(2, true, false, &attackers).check("200 us");
    let attackers = [
        Attacker {
            kernels: &[(1, 19_700)],
            depth: 2,
            batch: true,
            start_ns: 8_904_460,
            jitter_ns: 162_330,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 12_900_000)],
            pauses: &[(1, 1_040_400)],
            start_ns: 2_567_963,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 20_000)],
            batch: true,
            start_ns: 9_474_486,
            jitter_ns: 32_120,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 953 * MS)],
            pauses: &[(1, 1_063_530)],
            batch: true,
            start_ns: 11_235_050,
            ..ONE
        },
        Attacker {
            kernels: &[(17, MS), (1, 200 * MS)],
            batch: true,
            start_ns: 12_245_372,
            leave: Leave::Rename(10 * MS),
            ..ONE
        },
    ];
    case(3, true, false, &attackers).check("1 ms, pauses");
}

#[test]
fn many_tenants_of_one_account_gain_nothing_over_one_that_saturates() {
    let attackers = [
        Attacker {
            kernels: &[(1, 1_000 * MS)],
            start_ns: 18_875_389,
            jitter_ns: 75_038,
            leave: Leave::Rename(10 * MS),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 20_000)],
            pauses: &[(2, 50_000), (1, 30 * MS)],
            start_ns: 7_661_896,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 16_600)],
            pauses: &[(1, 900_000)],
            batch: true,
            start_ns: 17_506_574,
            jitter_ns: 231_612,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 2 * MS)],
            start_ns: 1_804_631,
            leave: Leave::Rename(MS),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 1_000 * MS)],
            pauses: &[(1, MS)],
            batch: true,
            start_ns: 8_447_311,
            ..ONE
        },
        Attacker {
            kernels: &[(12, 20_000), (1, 1_000 * MS)],
            pauses: &[(1, 30 * MS)],
            batch: true,
            start_ns: 9_465_151,
            ..ONE
        },
    ];
    case(1, true, false, &attackers).check("1 ms");
    let attackers = [
        Attacker {
            kernels: &[(1, 100_000)],
            start_ns: 7_900_515,
            jitter_ns: 109_349,
            leave: Leave::Rename(100_000),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 100_000)],
            start_ns: 7_370_835,
            leave: Leave::Return(100_000),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 20_000)],
            start_ns: 10_046_890,
            leave: Leave::Return(MS),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 346_500)],
            depth: 2,
            start_ns: 14_443_262,
            leave: Leave::Rename(10 * MS),
            ..ONE
        },
        Attacker {
            kernels: &[(11, 100_000), (1, 1_000 * MS)],
            pauses: &[(1, 1_010_000)],
            start_ns: 15_825_653,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 500_000)],
            pauses: &[(1, MS)],
            start_ns: 6_581_647,
            ..ONE
        },
    ];
    case(0, true, false, &attackers).check("1 ms, 4 deep");
}

/// Three accounts, one of which leaves and returns: the engine was idle for 0.9 ms.
#[test]
fn where_kernels_can_be_stopped_the_engine_is_idle_for_tiny_pauses_only() {
    let attackers = [
        Attacker {
            kernels: &[(1, 100_000)],
            start_ns: 10_267_562,
            jitter_ns: 139_192,
            leave: Leave::Rename(MS),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 20_000)],
            pauses: &[(19, 0), (1, 5 * MS)],
            start_ns: 9_898_656,
            jitter_ns: 36_649,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 1_000 * MS)],
            pauses: &[(1, 100_000)],
            start_ns: 1_314_812,
            ..ONE
        },
    ];
    case(2, true, true, &attackers).check("200 us");
}

/// Kernels just longer than a preemption, beside long ones: a stopped kernel waits like any other.
#[test]
fn a_stopped_kernel_holds_others_that_are_ahead() {
    let attackers = [
        Attacker {
            kernels: &[(1, 21_080)],
            batch: true,
            start_ns: 15_078_565,
            ..ONE
        },
        Attacker {
            kernels: &[(1, 48_150_000)],
            pauses: &[(1, 840_600)],
            depth: 2,
            start_ns: 18_410_733,
            ..ONE
        },
    ];
    case(1, true, true, &attackers).check("1 ms");
    let attackers = [
        Attacker {
            kernels: &[(1, 20_000)],
            pauses: &[(1, 500_000)],
            start_ns: 5_727_210,
            leave: Leave::Return(0),
            ..ONE
        },
        Attacker {
            kernels: &[(1, 1_000 * MS)],
            pauses: &[(2, 50_000), (1, 1_100_000)],
            depth: 8,
            start_ns: 10_453_037,
            ..ONE
        },
    ];
    case(3, true, true, &attackers).check("1 ms, pauses");
}

/// Pausing tenants advanced with a running kernel at the bound, and a decision was due each
/// nanosecond: 30 million in three seconds.
#[test]
fn pausing_tenants_that_keep_pace_with_a_kernel_cost_no_decisions() {
    let bursts = Attacker {
        kernels: &[(11, MS), (1, 5 * MS)],
        pauses: &[(19, 0), (1, 5 * MS)],
        start_ns: 890_198,
        ..ONE
    };
    let seldom = Attacker {
        kernels: &[(1, 149_300)],
        pauses: &[(1, 30 * MS)],
        start_ns: 645_580,
        ..ONE
    };
    let at_patience = Attacker {
        kernels: &[(1, 100_000)],
        pauses: &[(1, MS)],
        start_ns: 8_945_997,
        ..ONE
    };
    let attackers = [bursts, seldom, at_patience];
    for victim in 0..victims().len() {
        case(victim, false, false, &attackers).check("keeping pace with a kernel");
    }
}
