//! Latency from the doorbell to the fence, through daemon and software GPU:
//! `cargo bench -p turnstile-tests --bench doorbell`.
//!
//! The guests measure with their own clock, from the doorbell until they read the fence's value,
//! with one command in flight. Criterion is not used, as the repetition runs inside a guest.

use turnstile_accounting::Nanos;
use turnstile_images::{Load, Workload};
use turnstile_tests::e2e::{GRACE, Guests, TestHost, guest_report};

fn main() {
    println!(
        "{:<38} {:<8} {:>10} {:>10} {:>9}",
        "", "guests", "mean us", "max us", "count"
    );
    for guests in Guests::all() {
        let host = TestHost::start("dfq", Nanos::from_ms(10_000)).unwrap();
        let load = Load {
            duration_ns: 1_000_000_000,
            kernel_ns: 0,
            depth: 1,
            fence_every: 1,
            ..Load::default()
        };
        let vm = host
            .spawn(guests, "latency", 100, Workload::Load(load))
            .unwrap();
        let report = guest_report(&vm.join_within(GRACE, GRACE).unwrap()).unwrap();
        assert!(report.failed == 0 && report.fences > 0, "{}", report.text());
        println!(
            "{:<38} {:<8} {:>10.1} {:>10.1} {:>9}",
            "launch to fence seen, by interrupt",
            format!("{guests:?}"),
            report.turnaround_ns_sum as f64 / report.fences as f64 / 1e3,
            report.turnaround_ns_max as f64 / 1e3,
            report.fences
        );

        let count = 100_000;
        let paced = Workload::Doorbells { count, paced: true };
        let vm = host.spawn(guests, "stream", 100, paced).unwrap();
        let report = guest_report(&vm.join_within(GRACE, GRACE).unwrap()).unwrap();
        assert_eq!(report.doorbells, count, "{}", report.text());
        println!(
            "{:<38} {:<8} {:>10.3} {:>10} {:>9}",
            "NOP with a doorbell each, in a stream",
            format!("{guests:?}"),
            report.elapsed_ns as f64 / count as f64 / 1e3,
            "",
            count
        );
    }
}
