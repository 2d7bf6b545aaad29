//! What is exposed, as a reader sees it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use turnstile_abi::ErrorCode;
use turnstile_accounting::ledger::{EngineSnapshot, EngineTotals};
use turnstile_accounting::{AccountId, EngineId, Metadata, Moment, Nanos, TenantId};

use super::tenants::ROWS;
use super::*;
use turnstile_daemon::histogram::Histogram;
use turnstile_daemon::limits::{Holder, Limits, LimitsSnapshot, Resource, rows};
use turnstile_daemon::{AccountSnapshot, MemorySnapshot, TenantSnapshot};

fn identity() -> Identity {
    Identity {
        node: "node-17".into(),
        gpu: "GPU-1111".into(),
        model: "Software \"GPU\"".into(),
        policy: "dfq".into(),
    }
}

/// What an account holds.
fn limits() -> LimitsSnapshot {
    let limits = Limits::new(rows(256));
    let holder = Holder {
        account: "gold".into(),
        tenant: Some(TenantId(1)),
        trusted: false,
    };
    let _held = limits.take(Resource::Objects, &holder, 3).unwrap();
    limits.snapshot()
}

/// A GPU with two tenants.
pub(crate) fn host() -> HostSnapshot {
    let tenant = |number, name: &str| TenantSnapshot {
        tenant: TenantId(number),
        account: "gold".into(),
        weight: 300,
        admitted: number == 1,
        copy_bytes: Some(0),
        memory_limit_bytes: Some(64 << 20),
        memory: Some(MemorySnapshot::default()),
        ..TenantSnapshot::of_name(name)
    };
    let mut busy = tenant(1, "batch");
    busy.compute_ns = Nanos(1_512_250_000_000);
    busy.faults.insert(ErrorCode::PageFault, 2);
    busy.latency.observe(Nanos::from_us(7));
    let labels = [("pod".to_owned(), "shop/\"web\"".to_owned())];
    let metadata = Metadata::new(None, Some("shop".into()), labels.into());
    busy.metadata = Arc::new(metadata.unwrap());
    HostSnapshot {
        gpu: BTreeMap::new(),
        at: Moment(2_000_000_000_000),
        memory_bytes: 1 << 30,
        tenants: vec![busy, tenant(2, "new")],
        accounts: vec![AccountSnapshot {
            id: AccountId(1),
            name: "gold".into(),
            weight: 300,
            cap: None,
            tenants: 2,
            compute_ns: Nanos(1_600_000_000_000),
            copy_ns: Nanos(0),
            copy_bytes: None,
        }],
        engines: vec![
            EngineSnapshot {
                engine: COMPUTE,
                totals: EngineTotals {
                    used_ns: Nanos(1_512_250_000_000),
                    idle_ns: Nanos(487_750_000_000),
                    ..EngineTotals::default()
                },
            },
            EngineSnapshot {
                engine: EngineId(1),
                totals: EngineTotals::default(),
            },
        ],
        conservation_error_ns: 0,
        lacks: None,
        untracked: Vec::new(),
        limits: limits(),
        departed: Vec::new(),
        settings: BTreeMap::new(),
        owners: BTreeMap::new(),
        ledger: None,
        ledger_reason: None,
        ledger_errors: 0,
        switches: Histogram::default(),
    }
}

fn written() -> String {
    exposed(&host())
}

/// What is exposed of a host, in Prometheus' format.
pub(super) fn exposed(host: &HostSnapshot) -> String {
    text(&all(host)).unwrap()
}

/// All families that are exposed of a host.
pub(super) fn all(host: &HostSnapshot) -> Vec<MetricFamily> {
    let tenants = host.tenants.iter().map(|tenant| tenant.tenant);
    let uuids = tenants.map(|tenant| (tenant, format!("vm-{}", tenant.0)));
    let ledger = LedgerHealth::default();
    let names = Names {
        uuids: uuids.collect(),
        projects: [("batch".to_owned(), "proj-9".to_owned())].into(),
    };
    let mut all = families(&identity(), host, &names);
    all.extend(of_daemon(("node-1", "1.2.3"), &host.limits, Some(&ledger)));
    all.extend(crate::measured_for_tests());
    joined(all)
}

#[test]
fn billed_time_is_exposed_in_seconds() {
    let text = written();
    let line =
        r#"turnstile_vm_gpu_seconds_total{vm="vm-1",gpu="GPU-1111",project_id="proj-9"} 1512.25"#;
    assert!(text.lines().any(|seen| seen == line), "{text}");
    let of_account = r#"turnstile_account_gpu_seconds_total{account="gold",gpu="GPU-1111"} 1600"#;
    assert!(text.lines().any(|seen| seen == of_account), "{text}");
    let sum: f64 = text
        .lines()
        .filter(|line| line.starts_with("turnstile_gpu_time_seconds_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert_eq!(sum, 2_000.0, "the states add up to the wall time");
}

#[test]
fn a_tenant_that_did_nothing_is_there_at_zero() {
    let text = written();
    for row in &ROWS {
        let start = format!("{}{{vm=\"vm-2\"", row.name);
        assert!(
            text.lines().any(|line| line.starts_with(&start)),
            "{}",
            row.name
        );
    }
}

#[test]
fn without_tenants_no_family_is_empty() {
    let mut host = host();
    host.tenants.clear();
    let all = families(&identity(), &host, &Names::default());
    assert!(!text(&joined(all)).unwrap().contains("turnstile_vm_"));
}

#[test]
fn two_gpus_are_series_of_the_same_families() {
    let host = host();
    let second = Identity {
        gpu: "GPU-2222".into(),
        ..identity()
    };
    let mut all = families(&identity(), &host, &Names::default());
    let of_one = joined(all.clone()).len();
    all.extend(families(&second, &host, &Names::default()));
    let all = joined(all);
    assert_eq!(all.len(), of_one, "each family is there once");
    let text = text(&all).unwrap();
    for gpu in ["GPU-1111", "GPU-2222"] {
        let memory = format!("turnstile_gpu_memory_bytes{{gpu=\"{gpu}\"}}");
        assert_eq!(text.matches(&memory).count(), 1, "{text}");
    }
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = checked else {
        println!("SKIPPED: promtool is not installed (package prometheus)");
        return;
    };
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(written().as_bytes()).unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.trim().is_empty(), "{text}");
}

#[test]
fn metrics_in_rules_and_dashboard_are_exposed() {
    let exposed = written();
    let rules = include_str!("../../../../docs/monitoring/rules.yml");
    let board = include_str!("../../../../docs/monitoring/grafana.json");
    let word = |c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c));
    let used: std::collections::BTreeSet<&str> = [rules, board]
        .iter()
        .flat_map(|text| text.split(word))
        .filter(|name| name.starts_with("turnstile_"))
        .collect();
    assert!(used.len() > 10, "{used:?}");
    for name in used {
        // Series of a histogram.
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        let head = format!("# TYPE {name} ");
        assert!(exposed.contains(&head), "{name} is not exposed");
    }
}

#[test]
fn departed_tenant_keeps_what_only_grows() {
    let mut host = host();
    let mut gone = TenantSnapshot::of_name("short-lived");
    (gone.tenant, gone.compute_ns) = (TenantId(7), Nanos(24_900_000_000));
    host.departed = vec![std::sync::Arc::new(gone)];
    let text = exposed(&host);
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("turnstile_vm_gpu_seconds_total{"), 3);
    assert!(text.contains(" 24.9\n"), "{text}");
    assert_eq!(
        series("turnstile_vm_held{"),
        2,
        "no state of a tenant that left"
    );
}
