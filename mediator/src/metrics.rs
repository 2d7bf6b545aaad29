//! What Prometheus reads: a snapshot as metrics. Every series of a tenant is there from the moment it is taken in, at zero.

use std::collections::BTreeMap;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder as _, TextEncoder};
use turnstile_accounting::{Nanos, TenantId};

use crate::daemon::{HostSnapshot, LedgerHealth, TenantKind, TenantSnapshot};
use crate::mediation::COMPUTE;

/// What does not change while the daemon runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The host.
    pub node: String,
    /// UUID of the GPU.
    pub gpu: String,
    /// Its model.
    pub model: String,
    /// Policy in force.
    pub policy: String,
}

/// A metric of a tenant.
struct Row {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    value: fn(&TenantSnapshot) -> Option<f64>,
}

/// Those of tenants; the labels are `vm` and `gpu`.
const TENANT: [Row; 13] = [
    counter(
        "turnstile_vm_gpu_seconds_total",
        "Engine time charged: what is billed.",
        |t| seconds(t.compute_ns),
    ),
    counter(
        "turnstile_vm_entitled_seconds_total",
        "Engine time by the weights of those who wanted the engine.",
        |t| seconds(t.entitled_ns),
    ),
    counter(
        "turnstile_vm_wait_seconds_total",
        "Time with work and without the engine.",
        |t| seconds(t.waited_ns),
    ),
    counter(
        "turnstile_vm_throttled_seconds_total",
        "Time held back.",
        |t| seconds(t.held_ns),
    ),
    counter(
        "turnstile_vm_copy_seconds_total",
        "Time of copy engines charged.",
        |t| seconds(t.copy_ns),
    ),
    counter(
        "turnstile_vm_doorbells_trapped_total",
        "Doorbell writes that trapped.",
        |t| Some(t.doorbells_trapped as f64),
    ),
    counter("turnstile_vm_gate_moves_total", "Gates moved.", |t| {
        Some(t.gate_moves as f64)
    }),
    gauge("turnstile_vm_weight", "Weight in force.", |t| {
        Some(f64::from(t.weight))
    }),
    gauge(
        "turnstile_vm_cap_ratio",
        "Upper limit of the share of the engine; 1 where there is none.",
        cap,
    ),
    gauge("turnstile_vm_backlogged", "1 while it has work.", |t| {
        Some(f64::from(u8::from(t.backlogged)))
    }),
    gauge("turnstile_vm_held", "1 while it is held back.", |t| {
        Some(f64::from(u8::from(!t.admitted)))
    }),
    gauge(
        "turnstile_vm_memory_bytes",
        "GPU memory on the GPU, where memory moves.",
        |t| t.memory.map(|m| m.resident_bytes as f64),
    ),
    gauge(
        "turnstile_vm_swapped_bytes",
        "GPU memory at the host, where memory moves.",
        |t| t.memory.map(|m| m.swapped_bytes as f64),
    ),
];

type Value = fn(&TenantSnapshot) -> Option<f64>;

const fn counter(name: &'static str, help: &'static str, value: Value) -> Row {
    let kind = MetricType::COUNTER;
    Row {
        name,
        help,
        kind,
        value,
    }
}

const fn gauge(name: &'static str, help: &'static str, value: Value) -> Row {
    let kind = MetricType::GAUGE;
    Row {
        name,
        help,
        kind,
        value,
    }
}

fn seconds(time: Nanos) -> Option<f64> {
    Some(time.0 as f64 / 1e9)
}

fn cap(tenant: &TenantSnapshot) -> Option<f64> {
    Some(tenant.cap.map_or(1.0, |cap| {
        cap.quota_ns().0 as f64 / cap.period_ns().0 as f64
    }))
}

type Labels<'a> = &'a [(&'a str, &'a str)];

fn metric(kind: MetricType, labels: Labels<'_>, value: f64) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    let mut metric = Metric::from_label(pairs.collect());
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn single(
    name: &str,
    help: &str,
    kind: MetricType,
    labels: Labels<'_>,
    value: f64,
) -> MetricFamily {
    family(name, help, kind, vec![metric(kind, labels, value)])
}

/// A host's snapshot as metrics; `uuids` are the tenants' ids in the ledger.
pub fn families(
    identity: &Identity,
    host: &HostSnapshot,
    ledger: Option<&LedgerHealth>,
    uuids: &BTreeMap<TenantId, String>,
) -> Vec<MetricFamily> {
    let gpu = identity.gpu.as_str();
    let unknown = String::new();
    let uuid = |tenant: &TenantSnapshot| uuids.get(&tenant.tenant).unwrap_or(&unknown).as_str();
    let of_gpu: Labels<'_> = &[("gpu", gpu)];
    let mut all = vec![
        single(
            "turnstile_build_info",
            "Version of the daemon.",
            MetricType::GAUGE,
            &[
                ("version", env!("CARGO_PKG_VERSION")),
                ("node", &identity.node),
            ],
            1.0,
        ),
        single(
            "turnstile_gpu_info",
            "The GPU and its policy.",
            MetricType::GAUGE,
            &[
                ("gpu", gpu),
                ("model", &identity.model),
                ("policy", &identity.policy),
            ],
            1.0,
        ),
        engine_time(gpu, host),
        single(
            "turnstile_gpu_unaccounted_seconds",
            "Wall time less everything accounted for; other than zero means that time was lost.",
            MetricType::GAUGE,
            of_gpu,
            host.conservation_error_ns as f64 / 1e9,
        ),
        single(
            "turnstile_gpu_untracked_processes",
            "Processes on the GPU that belong to no tenant.",
            MetricType::GAUGE,
            of_gpu,
            host.untracked.len() as f64,
        ),
        single(
            "turnstile_ledger_errors_total",
            "Usages that did not balance.",
            MetricType::COUNTER,
            of_gpu,
            host.ledger_errors as f64,
        ),
    ];
    let infos = host.tenants.iter().map(|tenant| {
        let kind = match tenant.kind {
            TenantKind::Vm => "vm",
            TenantKind::Program { .. } => "program",
        };
        let labels = [
            ("vm", uuid(tenant)),
            ("gpu", gpu),
            ("name", &tenant.name),
            ("kind", kind),
        ];
        metric(MetricType::GAUGE, &labels, 1.0)
    });
    let infos = infos.collect();
    all.push(family(
        "turnstile_vm_info",
        "The tenants.",
        MetricType::GAUGE,
        infos,
    ));
    for row in &TENANT {
        let metrics = host.tenants.iter().filter_map(|tenant| {
            let labels = [("vm", uuid(tenant)), ("gpu", gpu)];
            Some(metric(row.kind, &labels, (row.value)(tenant)?))
        });
        all.push(family(row.name, row.help, row.kind, metrics.collect()));
    }
    if let Some(ledger) = ledger {
        all.extend(durable(ledger));
    }
    // A family without series would be a head without a body, which readers refuse.
    all.retain(|family| !family.get_metric().is_empty());
    all
}

/// Where the compute engine's time went; adds up to the wall time.
fn engine_time(gpu: &str, host: &HostSnapshot) -> MetricFamily {
    let totals = host
        .engines
        .iter()
        .find(|engine| engine.engine == COMPUTE)
        .map(|engine| engine.totals)
        .unwrap_or_default();
    let states = [
        ("vm", totals.used_ns),
        ("switch", totals.switching_ns),
        ("idle", totals.idle_ns),
        ("fault", totals.fault_ns),
        ("unobserved", totals.unobserved_ns + totals.gap_ns),
    ];
    let metrics = states.map(|(state, time)| {
        let labels = [("gpu", gpu), ("state", state)];
        metric(MetricType::COUNTER, &labels, time.0 as f64 / 1e9)
    });
    family(
        "turnstile_gpu_time_seconds_total",
        "Where the engine's time went; adds up to the wall time.",
        MetricType::COUNTER,
        metrics.to_vec(),
    )
}

fn durable(ledger: &LedgerHealth) -> [MetricFamily; 4] {
    let (counter, gauge) = (MetricType::COUNTER, MetricType::GAUGE);
    [
        single(
            "turnstile_ledger_records_total",
            "Entries on the disk since the daemon began.",
            counter,
            &[],
            ledger.written as f64,
        ),
        single(
            "turnstile_ledger_refused_total",
            "Periods that did not balance, which are gaps of the bill.",
            counter,
            &[],
            ledger.refused as f64,
        ),
        single(
            "turnstile_ledger_lag_seconds",
            "How long ago the last entry on the disk ended: two windows at most while all is well.",
            gauge,
            &[],
            ledger.behind_ns.0 as f64 / 1e9,
        ),
        single(
            "turnstile_ledger_failing",
            "1 while windows cannot be written.",
            gauge,
            &[],
            f64::from(u8::from(ledger.failing)),
        ),
    ]
}

/// Metrics in Prometheus' text format.
///
/// # Errors
/// If a family has no series.
pub fn text(families: &[MetricFamily]) -> Result<String, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(families, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use turnstile_accounting::ledger::{EngineSnapshot, EngineTotals};
    use turnstile_accounting::{EngineId, Moment};

    use super::*;
    use crate::daemon::MemorySnapshot;

    fn identity() -> Identity {
        Identity {
            node: "node-17".into(),
            gpu: "GPU-1111".into(),
            model: "Software \"GPU\"".into(),
            policy: "dfq".into(),
        }
    }

    fn host() -> HostSnapshot {
        let tenant = |number, name: &str| TenantSnapshot {
            tenant: TenantId(number),
            name: name.into(),
            kind: TenantKind::Vm,
            weight: 300,
            cap: None,
            admitted: number == 1,
            compute_ns: Nanos(0),
            copy_ns: Nanos(0),
            engine_ns: Nanos(0),
            held_ns: Nanos(0),
            entitled_ns: Nanos(0),
            waited_ns: Nanos(0),
            backlogged: false,
            doorbells_trapped: 0,
            gate_moves: 0,
            memory: Some(MemorySnapshot::default()),
        };
        let mut busy = tenant(1, "batch");
        busy.compute_ns = Nanos(1_512_250_000_000);
        HostSnapshot {
            gpu: BTreeMap::new(),
            at: Moment(2_000_000_000_000),
            tenants: vec![busy, tenant(2, "new")],
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
            untracked: Vec::new(),
            ledger_errors: 0,
        }
    }

    fn written() -> String {
        let uuids = [
            (TenantId(1), "vm-one".to_owned()),
            (TenantId(2), "vm-two".to_owned()),
        ];
        let ledger = LedgerHealth::default();
        let all = families(&identity(), &host(), Some(&ledger), &uuids.into());
        text(&all).unwrap()
    }

    #[test]
    fn what_is_billed_is_told_in_seconds() {
        let text = written();
        let line = r#"turnstile_vm_gpu_seconds_total{vm="vm-one",gpu="GPU-1111"} 1512.25"#;
        assert!(text.lines().any(|seen| seen == line), "{text}");
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
        for row in &TENANT {
            let start = format!("{}{{vm=\"vm-two\"", row.name);
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
        let all = families(&identity(), &host, None, &BTreeMap::new());
        assert!(!text(&all).unwrap().contains("turnstile_vm_"));
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
        let said = promtool.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr) + String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.trim().is_empty(), "{text}");
    }

    #[test]
    fn what_rules_and_dashboard_ask_for_is_told() {
        let told = written();
        let rules = include_str!("../../docs/monitoring/rules.yml");
        let board = include_str!("../../docs/monitoring/grafana.json");
        let word = |c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c));
        let asked: std::collections::BTreeSet<&str> = [rules, board]
            .iter()
            .flat_map(|text| text.split(word))
            .filter(|name| name.starts_with("turnstile_"))
            .collect();
        assert!(asked.len() > 10, "{asked:?}");
        for name in asked {
            let head = format!("# TYPE {name} ");
            assert!(told.contains(&head), "{name} is not exposed");
        }
    }
}
