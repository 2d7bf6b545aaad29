//! The demo as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn demo(args: &[&str]) -> (Output, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_turnstile"))
        .args(["demo", "-o", "json"])
        .args(args)
        .output()
        .unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    (output, json)
}

fn sound(output: &Output, json: &Value) {
    assert!(output.status.success(), "{json:#}");
    assert_eq!(json["results_failed"], 0, "{json:#}");
    assert!(
        json["results_verified"].as_u64().unwrap() > 1000,
        "{json:#}"
    );
    assert_eq!(json["conservation_error_ns"], 0, "{json:#}");
}

/// The same with shares within `points`; repeated, twice at most, where they are not. The software
/// GPU computes on the machine's own processors, so other processes take time from the tenant that
/// runs.
fn fair(args: &[&str], points: f64) -> Value {
    let mut shares = Vec::new();
    for _ in 0..3 {
        let (output, json) = demo(args);
        sound(&output, &json);
        shares.push(json["max_share_error_points"].as_f64().unwrap());
        if shares.last().is_some_and(|last| *last <= points) {
            return json;
        }
    }
    panic!("{args:?}: off by {shares:?} points");
}

/// One test, so that the demos run one after the other: they measure time on a machine of two
/// cores.
#[test]
fn the_demo_shows_fair_shares_with_the_policy_and_unfair_ones_without() {
    let kvm =
        turnstile_vmm::vmm::kvm_available().is_ok() && turnstile_images::guest_built().is_ok();

    let json = fair(&["--seconds", "5"], 2.0);
    assert_eq!(json["kvm"], kvm, "{json:#}");

    let (output, json) = demo(&["--seconds", "3", "--policy", "none"]);
    sound(&output, &json);
    let longest = &json["vms"][0];
    assert_eq!(longest["kernel_us"], 2000);
    assert!(
        longest["share_percent"].as_f64().unwrap() > 70.0,
        "{json:#}"
    );

    let json = fair(&["--seconds", "3", "--native"], 2.0);
    assert_eq!(json["kvm"], false);
    for vm in json["vms"].as_array().unwrap() {
        assert!(vm.get("resident_bytes").is_none(), "memory does not move");
    }

    let json = fair(&["--seconds", "10", "--oversubscribe", "2.0"], 2.0);
    let sum = |field: &str| -> u64 {
        let vms = json["vms"].as_array().unwrap();
        vms.iter().map(|vm| vm[field].as_u64().unwrap()).sum()
    };
    let card = 96 << 20;
    assert!(sum("allocated_bytes") >= 2 * card - (6 << 20), "{json:#}");
    assert!(sum("resident_bytes") <= card, "{json:#}");
    for vm in json["vms"].as_array().unwrap() {
        for field in [
            "swapped_out_bytes",
            "swapped_in_bytes",
            "moved_bytes",
            "copy_ns",
        ] {
            assert!(vm[field].as_u64().unwrap() > 0, "{field}: {json:#}");
        }
    }

    let json = fair(&["--seconds", "3", "--meter", "polled"], 5.0);
    assert_eq!(json["meter"], "polled");
}
