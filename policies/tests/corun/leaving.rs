//! Tenants that leave and return: under their name, a new name, a new account, as a sibling.

use crate::pairs::no_failures;
use turnstile_corun::{MS, Mediator, Ns, SEC, Sources, observe, program};

/// A program, its steps between two absences, and the length of an absence.
const COMINGS: [(&str, usize, Ns); 12] = [
    ("50us", 170, 1),
    ("50us", 340, 20),
    ("50us", 1_700, 100),
    ("50us", 17_000, 1_000),
    ("2ms", 1, 1),
    ("2ms", 10, 20),
    ("2ms", 500, 1_000),
    ("2ms-deep", 50, 10),
    ("2ms-deep", 500, 1_000),
    ("50ms", 1, 1),
    ("50ms", 1, 50),
    ("50ms", 10, 500),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Return {
    SameName,
    NewName,
    NewAccount,
    /// A sibling of the victim, beside another account.
    Sibling,
}
use Return::{NewAccount, NewName, SameName, Sibling};

/// The victim's progress over its part, and that of its worst 2 s. Its part counts the other tenant
/// as always present.
fn beside(victim: &'static str, coming: (&'static str, usize, Ns), kind: Return) -> (f64, f64) {
    let (name, steps, away) = coming;
    let own = if kind == Sibling { 0 } else { 1 };
    let arriving = program(name)
        .leaving(steps, away * MS, kind != SameName)
        .account(own);
    let mut programs = vec![program(victim).account(0), arriving];
    if kind == Sibling {
        programs.push(program("decode").account(1));
    }
    let part = if kind == Sibling { 0.25 } else { 0.5 };
    let sources = Sources {
        new_accounts: kind == NewAccount,
        ..Sources::default()
    };
    let mut mediator = Mediator::new(&programs, &[(1, None), (1, None)]).with(sources);
    let outcome = observe(&programs, &mut mediator, 10 * SEC, 30 * SEC, 1);
    (outcome.progress[0] / part, outcome.worst_2s[0] / part)
}

fn table(victims: &[&'static str], comings: &[(&'static str, usize, Ns)]) {
    let (mut least, mut least_2s) = (f64::MAX, f64::MAX);
    let mut failures = Vec::new();
    for victim in victims {
        for coming in comings {
            for kind in [SameName, NewName, NewAccount, Sibling] {
                let (progress, worst) = beside(victim, *coming, kind);
                (least, least_2s) = (least.min(progress), least_2s.min(worst));
                if progress < 0.9 || worst < 0.75 {
                    let row = format!("{victim} beside {coming:?} {kind:?}");
                    failures.push(format!("{row}: {progress:.2} {worst:.2}"));
                }
            }
        }
    }
    println!("leave and return: least {least:.2}, worst 2 s {least_2s:.2}");
    no_failures(failures);
}

#[test]
fn leaving_and_returning_gains_nothing() {
    table(&["train"], &COMINGS[..6]);
}

#[test]
#[ignore = "in full"]
fn leaving_and_returning_gains_nothing_beside_any_victim() {
    table(&["train", "decode", "50us", "2ms-deep"], &COMINGS);
}

/// One or four tenants that work, leave for 1 s and return.
#[test]
#[ignore = "in full"]
fn tenants_that_come_each_second_leave_others_their_part() {
    let (mut least, mut least_2s) = (f64::MAX, f64::MAX);
    let mut failures = Vec::new();
    for victim in ["train", "decode", "50us"] {
        for (name, steps) in [("2ms-deep", 200), ("50us", 5_000)] {
            for (count, new) in [(1, false), (1, true), (4, false), (4, true)] {
                let mut programs = vec![program(victim).account(0)];
                for index in 0..count {
                    let arriving = program(name).leaving(steps, SEC, new).account(index + 1);
                    programs.push(arriving.start(Ns::from(index) * 300 * MS));
                }
                let accounts: Vec<_> = programs.iter().map(|_| (1, None)).collect();
                let sources = Sources {
                    new_accounts: new,
                    ..Sources::default()
                };
                let mut mediator = Mediator::new(&programs, &accounts).with(sources);
                let outcome = observe(&programs, &mut mediator, 10 * SEC, 30 * SEC, 1);
                let part = 1.0 / programs.len() as f64;
                let (progress, worst) = (outcome.progress[0] / part, outcome.worst_2s[0] / part);
                (least, least_2s) = (least.min(progress), least_2s.min(worst));
                if progress < 0.9 || worst < 0.75 {
                    let row = format!("{victim} beside {count} x {name}, new account {new}");
                    failures.push(format!("{row}: {progress:.2} {worst:.2}"));
                }
            }
        }
    }
    println!("coming each second: least {least:.2}, worst 2 s {least_2s:.2}");
    no_failures(failures);
}

/// From its second second on a new tenant has its part; the others have theirs all the time.
#[test]
fn three_that_join_an_account_have_their_part_after_two_seconds() {
    let mut programs = vec![program("decode").account(0)];
    programs.extend((0..3).map(|_| program("decode").account(0).start(20 * SEC)));
    programs.push(program("50us").account(1));
    let mut mediator = Mediator::new(&programs, &[(1, None), (1, None)]);
    let outcome = observe(&programs, &mut mediator, 22 * SEC, 10 * SEC, 1);
    let joined = outcome.progress[..4]
        .iter()
        .map(|progress| progress / 0.125);
    assert!(joined.fold(f64::MAX, f64::min) >= 0.9, "{outcome:?}");
    assert!(outcome.progress[4] >= 0.45, "{outcome:?}");
}
