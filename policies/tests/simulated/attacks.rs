//! Victims and attackers, by name and at random.

use crate::load::{Guest, Leave, Load, Program, Random, with};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// The patience that the attacks target, in microseconds.
const PATIENCE_US: u64 = 1_000;
const PATIENCE_NS: u64 = PATIENCE_US * US;

/// The account of an attacker that has no account of its own.
pub(crate) const ATTACKERS: u32 = 1;

/// The kind of a victim determines what it can be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Saturates,
    /// It pauses less than it runs.
    Runs,
    /// It pauses more than it runs.
    Pauses,
}

pub(crate) fn victims() -> Vec<(&'static str, Kind, Guest)> {
    let bursts = with(Guest::program(500, 8, 5_000), |program| {
        program.batch = true;
    });
    vec![
        ("1 ms, 4 deep", Kind::Saturates, Guest::program(1_000, 4, 0)),
        ("1 ms", Kind::Saturates, Guest::program(1_000, 1, 0)),
        (
            "200 us, pauses of 100 us",
            Kind::Runs,
            Guest::program(200, 1, 100),
        ),
        (
            "1 ms, pauses of 0.9 patience",
            Kind::Runs,
            Guest::program(1_000, 1, PATIENCE_US * 9 / 10),
        ),
        (
            "200 us, pauses of 800 us",
            Kind::Pauses,
            Guest::program(200, 1, 800),
        ),
        ("8 x 500 us, pauses of 5 ms", Kind::Pauses, bursts),
    ]
}

fn attacker(kernel_us: u64, depth: usize, pause_us: u64) -> Guest {
    Guest {
        account: Some(ATTACKERS),
        ..Guest::program(kernel_us, depth, pause_us)
    }
}

/// The known attacks: a description, and the tenants of one account that perform it.
pub(crate) fn attacks() -> Vec<(String, Vec<Guest>)> {
    let mut attacks = Vec::new();
    let kernels = [10, 50, 200, 1_000, 10_000, 100_000, 1_000_000];
    let just_below = PATIENCE_US * 95 / 100;
    let just_above = PATIENCE_US * 105 / 100;
    for kernel in kernels {
        for pause in [0, 100, 1_000, 5_000, 30_000, just_below, just_above] {
            let name = format!("kernels of {kernel} us, pauses of {pause} us");
            attacks.push((name, vec![attacker(kernel, 1, pause)]));
        }
        let name = format!("kernels of {kernel} us, 8 deep");
        attacks.push((name, vec![attacker(kernel, 8, 0)]));
    }
    for kernel in [10, 1_000, 10_000, 50_000, 200_000, 1_000_000] {
        for leave in [
            Leave::Return(0),
            Leave::Return(MS),
            Leave::Rename(0),
            Leave::Rename(MS),
        ] {
            let one = Guest {
                leave,
                ..attacker(kernel, 1, 0)
            };
            for count in [1, 4] {
                let name = format!("{count} leaving after each kernel of {kernel} us: {leave:?}");
                attacks.push((name, vec![one.clone(); count]));
            }
        }
    }
    for kernel in [50, 1_000, 100_000] {
        let name = format!("40 names, kernels of {kernel} us");
        attacks.push((name.clone(), vec![attacker(kernel, 2, 0); 40]));
        let pausing = vec![attacker(kernel, 1, just_below); 40];
        attacks.push((format!("{name}, pauses just below the patience"), pausing));
    }
    for (long, depth) in [(100 * MS, 1), (1_000 * MS, 8)] {
        let seldom = with(attacker(10, depth, 0), |program| {
            program.kernels_ns = vec![10 * US; 17];
            program.kernels_ns.push(long);
        });
        attacks.push((format!("17 kernels of 10 us, then {long} ns"), vec![seldom]));
    }
    let seldom = with(attacker(50, 1, 0), |program| {
        program.pauses_ns = vec![PATIENCE_NS / 2; 17];
        program.pauses_ns.push(5 * PATIENCE_NS);
    });
    let ten = (0..10).map(|i| with(seldom.clone(), |program| program.start_ns = i * 777 * US));
    let ten = ten.collect();
    attacks.push(("17 short pauses, then a long one".into(), vec![seldom]));
    attacks.push(("the same under ten names".into(), ten));
    attacks
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.within(0, of.len() as u64 - 1) as usize]
}

/// Many lengths from `usual`, then one from `then`.
fn seldom(random: &mut Random, usual: &[u64], then: &[u64]) -> Vec<u64> {
    let count = random.within(1, 20);
    let mut all = vec![pick(random, usual); count as usize];
    all.push(pick(random, then));
    all
}

fn random_kernels(random: &mut Random) -> Vec<u64> {
    let (usual, then) = (
        [20 * US, 100 * US, MS],
        [5 * MS, 50 * MS, 200 * MS, 1_000 * MS],
    );
    let any = [20, 100, 500, 2_000, 10_000, 50_000, 200_000, 1_000_000].map(|us| us * US);
    match random.within(0, 2) {
        0 => seldom(random, &usual, &then),
        _ => vec![pick(random, &any)],
    }
}

fn random_pauses(random: &mut Random) -> Vec<u64> {
    let part = |percent| PATIENCE_NS * percent / 100;
    let (usual, then) = (
        [0, 50 * US, part(33), part(95)],
        [part(99), part(110), part(500), 30 * MS],
    );
    let any = [
        0,
        0,
        100 * US,
        MS,
        5 * MS,
        30 * MS,
        part(99),
        part(90),
        part(50),
        part(101),
    ];
    match random.within(0, 2) {
        0 => seldom(random, &usual, &then),
        _ => vec![pick(random, &any)],
    }
}

fn random_leave(random: &mut Random) -> Leave {
    let away = [0, 100 * US, MS, 10 * MS];
    match random.within(0, 5) {
        0 => Leave::Return(pick(random, &away)),
        1 => Leave::Rename(pick(random, &away)),
        _ => Leave::Never,
    }
}

fn random_attacker(random: &mut Random) -> Guest {
    let mut guest = with(attacker(1, 1, 0), |program| {
        *program = Program {
            kernels_ns: random_kernels(random),
            pauses_ns: random_pauses(random),
            depth: pick(random, &[1, 1, 2, 8]),
            batch: random.within(0, 2) == 0,
            start_ns: random.within(0, 20 * MS),
            jitter_ns: random.within(0, 300 * US),
        };
        if random.within(0, 2) > 0 {
            program.jitter_ns = 0;
        }
    });
    guest.leave = random_leave(random);
    guest
}

/// One to four attackers.
pub(crate) fn random_case(random: &mut Random) -> Vec<Guest> {
    let count = pick(random, &[1, 1, 1, 2, 4]);
    (0..count).map(|_| random_attacker(random)).collect()
}

/// The case with one random change.
pub(crate) fn mutate(random: &mut Random, case: &[Guest]) -> Vec<Guest> {
    let mut case = case.to_vec();
    let index = random.within(0, case.len() as u64 - 1) as usize;
    let scales = |random: &mut Random, lengths: &mut Vec<u64>| {
        for length in lengths {
            *length = (*length / 1_000 * random.within(600, 1_499)).min(1_000 * MS);
        }
    };
    let change = random.within(0, 7);
    match change {
        0 => case[index].leave = random_leave(random),
        1 if case.len() < 6 => case.push(random_attacker(random)),
        2 if case.len() > 1 => {
            case.remove(index);
        }
        _ => {
            let Load::Program(program) = &mut case[index].load else {
                return case;
            };
            match change {
                3 => program.kernels_ns = random_kernels(random),
                4 => program.pauses_ns = random_pauses(random),
                5 => scales(random, &mut program.pauses_ns),
                6 => program.depth = pick(random, &[1, 1, 2, 8]),
                _ => {
                    scales(random, &mut program.kernels_ns);
                    let kernels = program.kernels_ns.iter_mut();
                    kernels.for_each(|length| *length = (*length).max(US));
                }
            }
        }
    }
    case
}
