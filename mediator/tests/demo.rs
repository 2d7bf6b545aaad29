//! The demo as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn demo(args: &[&str]) -> (Output, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_turnstile"))
        .args(["demo", "--json"])
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

/// One test, so that the demos run one after the other: they measure time on a machine of two cores.
#[test]
fn the_demo_shows_fair_shares_with_the_policy_and_unfair_ones_without() {
    let kvm = turnstile_vmm::vmm::kvm_available().is_ok();

    let (output, json) = demo(&["--seconds", "5"]);
    sound(&output, &json);
    assert_eq!(json["kvm"], kvm, "{json:#}");
    assert!(
        json["max_share_error_points"].as_f64().unwrap() <= 2.0,
        "{json:#}"
    );

    let (output, json) = demo(&["--seconds", "3", "--policy", "none"]);
    sound(&output, &json);
    let longest = &json["vms"][0];
    assert_eq!(longest["kernel_us"], 2000);
    assert!(
        longest["share_percent"].as_f64().unwrap() > 70.0,
        "{json:#}"
    );

    let (output, json) = demo(&["--seconds", "3", "--native"]);
    sound(&output, &json);
    assert_eq!(json["kvm"], false);
    assert!(
        json["max_share_error_points"].as_f64().unwrap() <= 2.0,
        "{json:#}"
    );

    for vm in json["vms"].as_array().unwrap() {
        assert!(vm.get("resident_bytes").is_none(), "memory does not move");
    }

    let (output, json) = demo(&["--seconds", "10", "--oversubscribe", "2.0"]);
    sound(&output, &json);
    let shares = json["max_share_error_points"].as_f64().unwrap();
    assert!(shares <= 2.0, "{json:#}");
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

    let (output, json) = demo(&["--seconds", "3", "--meter", "polled"]);
    sound(&output, &json);
    assert_eq!(json["meter"], "polled");
    assert!(
        json["max_share_error_points"].as_f64().unwrap() <= 5.0,
        "{json:#}"
    );
}
