//! The bench on a real GPU, in short. Without one these tests print that they are skipped. Each has
//! the GPU to itself, so they run one after another.
//!
//! TURNSTILE names another binary than the one built beside them.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

static GPU: Mutex<()> = Mutex::new(());

/// The GPU for this test alone; `None`, with a message, if there is none.
fn gpu() -> Option<MutexGuard<'static, ()>> {
    if !Path::new("/proc/driver/nvidia/version").exists() {
        eprintln!("SKIPPED: no NVIDIA GPU");
        return None;
    }
    Some(GPU.lock().unwrap_or_else(PoisonError::into_inner))
}

fn turnstile(words: &[&str]) -> Value {
    let binary = std::env::var("TURNSTILE");
    let binary = binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_turnstile"));
    let output = Command::new(binary).args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    // The last line for a load, the whole for a bench.
    let text = String::from_utf8(output.stdout).unwrap();
    let last = || serde_json::from_str(text.lines().last().unwrap_or_default());
    serde_json::from_str(&text).or_else(|_| last()).unwrap()
}

fn load(words: &[&str]) -> Value {
    let mut all = vec!["nvidia-load"];
    all.extend(words);
    turnstile(&all)["done"].take()
}

fn percent_of_buckets(buckets: &Value) -> f64 {
    let buckets = buckets.as_array().unwrap();
    let sum: f64 = buckets.iter().map(|ns| ns.as_f64().unwrap()).sum();
    sum / buckets.len() as f64 / 1e5
}

#[test]
fn a_load_alone_accounts_for_all_of_its_time() {
    let Some(_gpu) = gpu() else { return };
    let busy = load(&["--kernel", "2ms", "--seconds", "1"]);
    let executed = percent_of_buckets(&busy["executed_ns"]);
    let occupied = percent_of_buckets(&busy["occupied_ns"]);
    assert!((98.0..=100.0).contains(&executed), "{executed} %");
    assert!((99.5..=100.0).contains(&occupied), "{occupied} %");
    let kernel_us = busy["kernel_length"]["p50_ns"].as_f64().unwrap() / 1e3;
    assert!((1_960.0..2_040.0).contains(&kernel_us), "{kernel_us} us");
    let kernels = busy["kernels"].as_f64().unwrap();
    assert!((executed / 100.0 * 1e6 / kernel_us - kernels).abs() < 3.0);
    assert_eq!(busy["gaps"], 0);
    assert!(busy["clock_error_ns"].as_u64().unwrap() < 50_000);
}

#[test]
fn endless_kernel_fills_the_engine_and_idle_context_uses_none() {
    let Some(_gpu) = gpu() else { return };
    let endless = load(&["--kernel", "endless", "--seconds", "1"]);
    let executed = percent_of_buckets(&endless["executed_ns"]);
    assert!((99.5..=100.0).contains(&executed), "{executed} %");
    let idle = load(&["--pattern", "idle", "--seconds", "0.3"]);
    assert_eq!(percent_of_buckets(&idle["executed_ns"]), 0.0);
}

#[test]
fn bursts_alone_are_served_in_full() {
    let Some(_gpu) = gpu() else { return };
    let words = ["--kernel", "200us", "--pattern", "bursty", "--seconds", "3"];
    let executed = percent_of_buckets(&load(&words)["executed_ns"]);
    assert!((25.0..38.0).contains(&executed), "{executed} %");
}

#[test]
fn the_driver_alone_favours_long_kernels() {
    let Some(_gpu) = gpu() else { return };
    let report = turnstile(&[
        "bench",
        "share",
        "--gpu",
        "nvidia",
        "--only",
        "native",
        "--seconds",
        "2.5",
        "--cell",
        "1:2ms,1:200us",
        "-o",
        "json",
    ]);
    let cell = &report["native"][0];
    let share = |index: usize| cell["tenants"][index]["executed_percent"].as_f64().unwrap();
    let rate = |index: usize| {
        cell["tenants"][index]["kernels_per_second"]
            .as_f64()
            .unwrap()
    };
    // The GPU alternates, one kernel each.
    assert!((rate(0) - rate(1)).abs() < 0.05 * rate(0), "{cell}");
    assert!((75.0..85.0).contains(&share(0)), "{cell}");
    assert!((6.0..10.0).contains(&share(1)), "{cell}");
    assert!(cell["worst_sliding"]["points"].as_f64().unwrap() > 30.0);
}

#[test]
fn two_endless_kernels_see_each_other_as_gaps() {
    let Some(_gpu) = gpu() else { return };
    let report = turnstile(&[
        "bench",
        "share",
        "--gpu",
        "nvidia",
        "--only",
        "native",
        "--seconds",
        "2.5",
        "--cell",
        "1:endless,1:endless",
        "-o",
        "json",
    ]);
    for tenant in report["native"][0]["tenants"].as_array().unwrap() {
        let share = tenant["share_percent"].as_f64().unwrap();
        assert!((48.0..52.0).contains(&share), "{tenant}");
        assert!(
            tenant["gaps_per_second"].as_f64().unwrap() > 50.0,
            "{tenant}"
        );
    }
}

#[test]
fn a_suspended_kernel_stops_within_a_millisecond() {
    let Some(_gpu) = gpu() else { return };
    let report = turnstile(&["bench", "suspend", "--trials", "50", "-o", "json"]);
    for kind in report["kinds"].as_array().unwrap() {
        assert_eq!(kind["not_stopped"], 0, "{kind}");
        let last = kind["to_last_instruction"]["p99_ns"].as_u64().unwrap();
        assert!((1..1_000_000).contains(&last), "{kind}");
    }
}

#[test]
fn kill_of_another_process_leaves_no_tenant_suspended() {
    let Some(_gpu) = gpu() else { return };
    let report = turnstile(&["bench", "kills", "-o", "json"]);
    for kill in report["kills"].as_array().unwrap() {
        let runs_ms = kill["runs_again_ms"].as_f64().unwrap();
        assert!(runs_ms < 1_000.0, "{kill}");
        if kill["what"] != "tenant" {
            assert!(kill["held_again_ms"].as_f64().is_some(), "{kill}");
        }
    }
    assert_eq!(report["found"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["conservation_error_ns"], 0);
}

#[test]
fn a_pair_under_the_daemon_gets_its_weights() {
    let Some(_gpu) = gpu() else { return };
    let report = turnstile(&[
        "bench",
        "share",
        "--gpu",
        "nvidia",
        "--only",
        "scheduled",
        "--seconds",
        "3",
        "--cell",
        "3:2ms,1:200us",
        "-o",
        "json",
    ]);
    let cell = &report["scheduled"][0];
    let share = cell["tenants"][0]["share_percent"].as_f64().unwrap();
    assert!((72.0..78.0).contains(&share), "{cell}");
}

#[test]
fn memory_leaves_the_gpu_under_a_running_kernel_and_returns() {
    let Some(_gpu) = gpu() else { return };
    let words = [
        "bench",
        "swap",
        "--gib",
        "1",
        "--checkpoint-gib",
        "0",
        "-o",
        "json",
    ];
    let report = turnstile(&words);
    let size = &report["sizes"][0];
    assert_eq!(size["wrong_words"], 0, "{size}");
    let count = |nth: usize| size["counts"][nth].as_f64().unwrap();
    assert!(count(0) > 10.0 && count(2) > 10.0, "{size}");
    assert_eq!(count(1), 0.0, "it was suspended: {size}");
    for way in ["out", "in"] {
        let percent = size[way]["percent_of_link"].as_f64().unwrap();
        assert!(percent > 80.0, "{size}");
    }
    let bytes = |name: &str| report["returned"][name].as_u64().unwrap();
    let returned = bytes("swapped_bytes") - bytes("resident_bytes");
    assert_eq!(returned, bytes("tenant_bytes"), "others can have it");
    let kept = bytes("swapped_bytes") - bytes("leaked_bytes");
    assert_eq!(
        kept,
        bytes("leaked_handle_bytes"),
        "a handle keeps its memory"
    );
}
