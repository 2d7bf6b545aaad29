//! Alert rules over what is exposed in half an hour of three tenants: `promtool test rules`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use turnstile_accounting::entitled::{Account, Claimant, Entitlements, Quota};
use turnstile_accounting::{AccountId, Nanos, TenantId};

use super::tests::{exposed, host};

const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/monitoring/rules.yml"
);
/// Minutes between start and judgement: every `for` of the rules has passed.
const MINUTES: usize = 30;

/// A tenant, and its use and want in the ten windows of 10 ms of each 100 ms.
struct Tenant {
    weight: u32,
    /// Of each 100 ms.
    quota_ms: Option<u64>,
    used_us: [u64; 10],
    wanted_us: [u64; 10],
}

const BUSY: [u64; 10] = [10_000; 10];

/// What each tenant used, was entitled to, and waited in a second.
fn second(scene: &[Tenant]) -> Vec<[Nanos; 3]> {
    let mut book = Entitlements::default();
    let mut used = vec![Nanos::ZERO; scene.len()];
    for at in (0..10).cycle().take(100) {
        let claimant = |(tenant, number): (&Tenant, u32)| Claimant {
            tenant: TenantId(number),
            account: Account {
                id: AccountId(number),
                weight: tenant.weight,
                quota: None,
            },
            weight: tenant.weight,
            quota: tenant.quota_ms.map(|quota_ms| Quota {
                quota_ns: Nanos::from_ms(quota_ms),
                period_ns: Nanos::from_ms(100),
            }),
            used_ns: Nanos::from_us(tenant.used_us[at]),
            wanted_ns: Nanos::from_us(tenant.wanted_us[at]),
        };
        let mut claimants: Vec<Claimant> = scene.iter().zip(1..).map(claimant).collect();
        for (sum, claimant) in used.iter_mut().zip(&claimants) {
            *sum += claimant.used_ns;
        }
        book.window(Nanos::from_ms(10), &mut claimants);
    }
    let of = |(used, number)| {
        let due = book.of(TenantId(number));
        [used, due.entitled_ns, due.waited_ns]
    };
    used.into_iter().zip(1..).map(of).collect()
}

/// The series that Prometheus has read, a sample each minute.
fn series(scene: &[Tenant]) -> BTreeMap<String, Vec<String>> {
    let rates = second(scene);
    let mut series: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for minute in 0..=MINUTES {
        let seconds = 60 * minute as u64;
        let mut host = host();
        let like = host.tenants[1].clone();
        host.tenants.clear();
        for (rates, number) in rates.iter().zip(1..) {
            let mut tenant = like.clone();
            tenant.tenant = TenantId(number);
            tenant.name = format!("tenant-{number}");
            let [used, entitled, waited] = rates.map(|rate| Nanos(rate.0 * seconds));
            (tenant.compute_ns, tenant.entitled_ns, tenant.waited_ns) = (used, entitled, waited);
            host.tenants.push(tenant);
        }
        for line in exposed(&host).lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let known = series.entry(name.to_owned()).or_default();
            known.push(value.to_owned());
        }
    }
    series
}

/// What `promtool` finds wrong if these tenants are starved, and all other rules are silent.
fn promtool(scene: &[Tenant], starved: &[(&str, &str)]) -> Option<Result<(), String>> {
    let mut test = format!("rule_files: [{RULES}]\nevaluation_interval: 30s\ntests:\n");
    test += "  - interval: 1m\n    input_series:\n";
    for (name, values) in series(scene) {
        let name = name.replace('\'', "''");
        writeln!(
            test,
            "      - series: '{name}'\n        values: '{}'",
            values.join(" ")
        )
        .unwrap();
    }
    test += "    alert_rule_test:\n";
    let rules = std::fs::read_to_string(RULES).unwrap();
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() >= 9, "{alerts:?}");
    for alert in alerts {
        writeln!(
            test,
            "      - eval_time: {MINUTES}m\n        alertname: {alert}\n        exp_alerts:"
        )
        .unwrap();
        for (vm, part) in starved.iter().filter(|_| alert == "TurnstileStarvation") {
            write!(test, "          - exp_labels: {{severity: warning, gpu: GPU-1111, vm: {vm}}}\n            exp_annotations:\n").unwrap();
            writeln!(
                test,
                "              summary: VM {vm} receives {part} of what it is entitled to"
            )
            .unwrap();
            let described = rules
                .lines()
                .find(|line| line.contains("description: It has work and gets less"))
                .unwrap();
            writeln!(test, "              {}", described.trim()).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.yml");
    std::fs::write(&path, test).unwrap();
    let Ok(done) = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&path)
        .output()
    else {
        println!("skipped: promtool is not installed (Debian package prometheus)");
        return None;
    };
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    Some(if done.status.success() {
        Ok(())
    } else {
        Err(text.into_owned())
    })
}

/// Weights 200:300:100, of which the first has a quota of 25 % and uses it at the start of each
/// period: entitled to 25, 56.25 and 18.75 %.
fn capped() -> [Tenant; 3] {
    let tenant = |weight, quota_ms, used_us| Tenant {
        weight,
        quota_ms,
        used_us,
        wanted_us: BUSY,
    };
    [
        tenant(200, Some(25), [10_000, 10_000, 5_000, 0, 0, 0, 0, 0, 0, 0]),
        tenant(
            300,
            None,
            [
                0, 0, 5_000, 10_000, 10_000, 10_000, 10_000, 10_000, 1_250, 0,
            ],
        ),
        tenant(100, None, [0, 0, 0, 0, 0, 0, 0, 0, 8_750, 10_000]),
    ]
}

#[test]
fn capped_tenant_that_is_served_exactly_fires_no_alert() {
    // Hundredths of a percent of the second; roundings are below one.
    let part = |time: &Nanos| (time.0 + 50_000) / 100_000;
    let parts: Vec<(u64, u64)> = second(&capped())
        .iter()
        .map(|[used, entitled, _]| (part(used), part(entitled)))
        .collect();
    assert_eq!(parts, [2_500, 5_625, 1_875].map(|right| (right, right)));
    if let Some(result) = promtool(&capped(), &[]) {
        result.unwrap();
    }
}

#[test]
fn starved_tenant_fires_an_alert_also_without_work_at_the_end_of_windows() {
    let mut scene = capped();
    // The third wants half of each window and gets 2 of its 18.75 %.
    (scene[1].used_us[8], scene[1].used_us[9]) = (10_000, 8_000);
    (scene[2].used_us[8], scene[2].used_us[9]) = (0, 2_000);
    scene[2].wanted_us = [5_000; 10];
    if let Some(result) = promtool(&scene, &[("vm-3", "10.67%")]) {
        result.unwrap();
        assert!(
            promtool(&scene, &[]).unwrap().is_err(),
            "promtool compares alerts"
        );
    }
}
