//! Sixteen tenants, and eight programs at once.

use crate::pairs::no_failures;
use turnstile_corun::rows::{EIGHT, least, owed};
use turnstile_corun::{MS, Mediator, Program, SEC, native, observe, program};

fn tenants(count: usize, mix: &[&'static str]) -> Vec<Program> {
    (0..count)
        .map(|index| program(mix[index % mix.len()]))
        .collect()
}

#[test]
fn sixteen_tenants_that_saturate_have_their_part() {
    let mut failures = Vec::new();
    let mixes: [&[&'static str]; 3] = [&["50us"], &["2ms-deep"], &["50us", "50ms"]];
    for mix in mixes {
        let outcome = owed(&tenants(16, mix), 30 * SEC);
        let parts = [1.0 / 16.0; 16];
        let progress = least(&outcome.progress, &parts);
        let worst = least(&outcome.worst_2s, &parts);
        let hold = outcome.longest_hold.iter().max();
        println!("16 x {mix:?}: least {progress:.2}, worst 2 s {worst:.2}, longest hold {hold:?}");
        let held = hold.is_some_and(|hold| *hold > 700 * MS);
        if progress < 0.9 || worst < 0.75 || held {
            failures.push(format!("{mix:?}: {progress:.2} {worst:.2}"));
        }
    }
    no_failures(failures);
}

#[test]
fn sixteen_of_four_kinds_have_their_part() {
    let outcome = owed(
        &tenants(16, &["50us", "2ms-deep", "decode", "train"]),
        30 * SEC,
    );
    let progress = least(&outcome.progress, &[1.0 / 16.0; 16]);
    println!(
        "16 of four kinds: least {progress:.2}, sum {:.2}",
        outcome.sum()
    );
    assert!(progress >= 0.9, "{outcome:?}");
}

#[test]
fn eight_programs_fit_together_as_natively() {
    let programs = tenants(8, &EIGHT);
    let (outcome, native) = (owed(&programs, 30 * SEC), native(&programs));
    let progress = least(&outcome.progress, &[0.125; 8]);
    let ratio = outcome.sum() / native.sum();
    println!("eight programs: least {progress:.2}, sum over native's {ratio:.3}");
    assert!(progress >= 0.9 && ratio >= 0.97, "{outcome:?} {native:?}");
}

/// Beside one program that launches and waits, the latency is the hardware's. Beside four and more
/// own turns follow each other, and the inference is held like all others: its latency is only
/// printed.
#[test]
fn inference_beside_launches_that_wait() {
    for count in [1, 4, 8] {
        let programs = [tenants(1, &["infer"]), tenants(count, &["50us"])].concat();
        let (outcome, native) = (owed(&programs, 30 * SEC), native(&programs));
        let (ours, theirs) = (outcome.p99_ms[0], native.p99_ms[0]);
        println!("inference beside {count} x 50us: p99 {ours:.1} ms, natively {theirs:.1} ms");
        assert!(count > 1 || ours <= 1.2 * theirs, "{outcome:?} {native:?}");
    }
}

/// A tenant that only waits is owed nothing. From its first work on it takes part, also where own
/// turns of others take all of the time.
#[test]
fn a_tenant_that_works_after_a_wait_has_its_part_beside_fifteen() {
    let mut failures = Vec::new();
    for (name, together) in [("2ms-deep", true), ("2ms-deep", false), ("50us", true)] {
        for wait in [500 * MS, 3 * SEC] {
            let mut programs = tenants(16, &[name]);
            programs[5] = programs[5].clone().waiting_first(wait, 20_000);
            if together {
                programs = programs.into_iter().map(|of| of.account(0)).collect();
            }
            let mut mediator = Mediator::new(&programs, &[(1, None)]);
            let begin = wait + 2 * SEC;
            let outcome = observe(&programs, &mut mediator, begin, 10 * SEC, 1);
            let progress = least(&outcome.progress, &[1.0 / 16.0; 16]);
            let row = format!("16 x {name}, one after {wait}, one account {together}");
            println!(
                "{row}: least {progress:.2}, its own {:.2}",
                16.0 * outcome.progress[5]
            );
            if progress < 0.9 {
                failures.push(format!("{row}: {progress:.2}"));
            }
        }
    }
    no_failures(failures);
}
