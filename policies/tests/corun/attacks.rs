//! Programs that try to take more than their part, as one tenant and as four of one account.

use crate::pairs::no_failures;
use turnstile_corun::rows::{ATTACKS, VICTIMS, attacked};

/// The victim has at least 0.45 of what it does alone, and 0.40 in its worst 2 s.
fn attacked_by(count: usize, victims: &[&'static str]) {
    let (mut low, mut low_2s) = (f64::MAX, f64::MAX);
    let mut failures = Vec::new();
    for victim in victims {
        for attack in ATTACKS {
            let outcome = attacked(victim, attack, count);
            let (progress, worst) = (outcome.progress[0], outcome.worst_2s[0]);
            (low, low_2s) = (low.min(progress), low_2s.min(worst));
            if progress < 0.45 || worst < 0.40 {
                failures.push(format!(
                    "{victim} beside {attack}: {progress:.2} {worst:.2}"
                ));
            }
        }
    }
    println!("attacked by {count}: least {low:.3}, worst 2 s {low_2s:.3}");
    no_failures(failures);
}

#[test]
fn a_tenant_keeps_its_part_beside_an_attacker() {
    attacked_by(1, &VICTIMS);
}

#[test]
fn a_tenant_keeps_its_part_beside_four_attackers_of_one_account() {
    attacked_by(4, &VICTIMS[..1]);
}

#[test]
#[ignore = "in full"]
fn each_victim_keeps_its_part_beside_four_attackers_of_one_account() {
    attacked_by(4, &VICTIMS);
}
