//! A guest can harm only itself.

use std::time::Duration;

use turnstile_accounting::Nanos;
use turnstile_images::{Misbehaviour, Outcome, Workload};
use turnstile_tests::e2e::{GRACE, Guests, TestHost, guest_report, load, wait_for};
use turnstile_vmm::vmm::{VmEnd, VmHandle};

/// Endless kernels are ended after this time.
const KERNEL_LIMIT: Nanos = Nanos::from_ms(200);
/// Two well-behaved VMs that run beside each bad one.
const GOOD: [(&str, u32, u64); 2] = [("good-a", 100, 500), ("good-b", 300, 300)];

/// Ends a VM and checks that all its results were right. Returns their number.
fn end_well(vm: VmHandle, name: &str) -> u64 {
    assert!(!vm.is_finished(), "{name} has ended by itself");
    vm.stop();
    let report = guest_report(&vm.join_within(GRACE, GRACE).unwrap()).unwrap();
    let outcome = (report.outcome, report.failed);
    assert_eq!(outcome, (Outcome::Passed, 0), "{name}: {}", report.text());
    report.verified
}

#[test]
fn each_misbehaviour_is_answered_and_harms_no_other_tenant() {
    for guests in Guests::all() {
        let host = TestHost::start("dfq", KERNEL_LIMIT).unwrap();
        let good = GOOD.map(|(name, weight, us)| {
            host.spawn(guests, name, weight, load(Nanos::from_us(us)))
                .unwrap()
        });
        for kind in Misbehaviour::ALL {
            let name = format!("bad-{}", *kind as u64);
            let bad = host
                .spawn(guests, &name, 100, Workload::Bad(*kind))
                .unwrap();
            let left = bad.join_within(GRACE, GRACE).unwrap();
            let report = guest_report(&left).unwrap();
            let outcome = (left.end.clone(), report.outcome);
            let expected = (VmEnd::Exited(0), Outcome::Passed);
            assert_eq!(
                outcome,
                expected,
                "{guests:?} {kind:?}: {} {}",
                report.text(),
                left.console
            );
        }
        let worked = |name: &str| {
            host.tenant(name)
                .is_ok_and(|tenant| tenant.compute_ns > Nanos::from_ms(200))
        };
        let all = || GOOD.iter().all(|(name, ..)| worked(name));
        assert!(wait_for(GRACE, all), "{guests:?}: no progress");
        for (vm, (name, ..)) in good.into_iter().zip(GOOD) {
            assert!(end_well(vm, name) > 100, "{guests:?}: {name} did little");
        }
        let snapshot = host.snapshot();
        assert_eq!(
            (snapshot.conservation_error_ns, snapshot.ledger_errors),
            (0, 0)
        );
    }
}

#[test]
fn shares_hold_while_others_misbehave() {
    let guests = *Guests::all().last().unwrap();
    let host = TestHost::start("dfq", Nanos::from_ms(20)).unwrap();
    let good = GOOD.map(|(name, weight, us)| {
        host.spawn(guests, name, weight, load(Nanos::from_us(us)))
            .unwrap()
    });
    let busy = |name: &str| {
        host.tenant(name)
            .is_ok_and(|tenant| tenant.compute_ns > Nanos::from_ms(50))
    };
    assert!(wait_for(GRACE, || GOOD.iter().all(|(name, ..)| busy(name))));
    let used = || GOOD.map(|(name, ..)| host.tenant(name).unwrap().compute_ns.0);
    let before = used();
    for turn in 0..3 {
        for kind in [
            Misbehaviour::SpinForever,
            Misbehaviour::WildKernel,
            Misbehaviour::MillionRings,
        ] {
            let name = format!("bad-{}-{turn}", kind as u64);
            let bad = host.spawn(guests, &name, 100, Workload::Bad(kind)).unwrap();
            bad.join_within(GRACE, GRACE).unwrap();
        }
    }
    let after = used();
    let [a, b] = [after[0] - before[0], after[1] - before[1]];
    let share = 100.0 * b as f64 / (a + b) as f64;
    assert!(
        (share - 75.0).abs() < 2.0,
        "good-b has {share:.2} % of what the good ones got, not 75 %"
    );
    for vm in good {
        end_well(vm, "a well-behaved VM");
    }
}

#[test]
fn a_vm_that_dies_mid_kernel_is_removed_and_the_others_continue() {
    for guests in Guests::all() {
        let host = TestHost::start("dfq", Nanos::from_ms(60_000)).unwrap();
        let good = host
            .spawn(guests, "good", 100, load(Nanos::from_us(300)))
            .unwrap();
        let dying = host
            .spawn(
                guests,
                "dying",
                100,
                Workload::Bad(Misbehaviour::SpinForever),
            )
            .unwrap();
        let runs = || {
            host.tenant("dying")
                .is_ok_and(|tenant| tenant.compute_ns > Nanos::ZERO)
        };
        assert!(
            wait_for(GRACE, runs),
            "{guests:?}: the endless kernel does not run"
        );
        // Without preemption the endless kernel holds the engine: the good VM does not run until
        // the other dies.
        dying.kill();
        dying.join().unwrap();
        assert!(
            wait_for(GRACE, || host.tenant("dying").is_err()),
            "{guests:?}: the dead VM is still a tenant"
        );
        let before = host.tenant("good").unwrap().compute_ns;
        let goes_on = || host.tenant("good").unwrap().compute_ns > before + Nanos::from_ms(100);
        assert!(
            wait_for(Duration::from_secs(10), goes_on),
            "{guests:?}: the good VM stands still"
        );
        end_well(good, "good");
        let snapshot = host.snapshot();
        assert_eq!(
            (snapshot.conservation_error_ns, snapshot.ledger_errors),
            (0, 0)
        );
    }
}

#[test]
fn all_kernels_give_the_right_results_in_every_guest() {
    for guests in Guests::all() {
        let host = TestHost::start("dfq", Nanos::from_ms(10_000)).unwrap();
        let vms = ["a", "b", "c"].map(|name| {
            host.spawn(guests, name, 100, Workload::Verify { rounds: 3 })
                .unwrap()
        });
        for vm in vms {
            let report = guest_report(&vm.join_within(GRACE, GRACE).unwrap()).unwrap();
            assert_eq!(
                report.outcome,
                Outcome::Passed,
                "{guests:?}: {}",
                report.text()
            );
            assert_eq!(report.passed, turnstile_images::Test::all_bits());
            assert!(report.failed == 0 && report.verified > 0);
        }
    }
}

#[test]
fn a_weight_set_while_vms_run_is_followed() {
    let guests = *Guests::all().last().unwrap();
    let host = TestHost::start("dfq", Nanos::from_ms(10_000)).unwrap();
    let vms = [("a", 500), ("b", 300)].map(|(name, us)| {
        host.spawn(guests, name, 100, load(Nanos::from_us(us)))
            .unwrap()
    });
    let used = || ["a", "b"].map(|name| host.tenant(name).map_or(0, |t| t.compute_ns.0));
    let share_of_b = |ms: u64| {
        let before = used();
        let enough = || used().iter().sum::<u64>() >= before.iter().sum::<u64>() + ms * 1_000_000;
        assert!(wait_for(GRACE, enough));
        let after = used();
        let [a, b] = [after[0] - before[0], after[1] - before[1]];
        100.0 * b as f64 / (a + b) as f64
    };
    assert!(wait_for(GRACE, || used()
        .iter()
        .all(|used| *used > 50_000_000)));
    let even = share_of_b(1_500);
    assert!((even - 50.0).abs() < 2.0, "{even:.2} %");
    host.set_weight("b", 300).unwrap();
    let raised = share_of_b(1_500);
    assert!((raised - 75.0).abs() < 2.0, "{raised:.2} %");
    for vm in vms {
        end_well(vm, "a well-behaved VM");
    }
}
