//! Sixteen tenants, and eight programs at once.

use crate::pairs::no_failures;
use turnstile_corun::rows::{EIGHT, least, owed};
use turnstile_corun::{MS, Program, SEC, native, program};

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
