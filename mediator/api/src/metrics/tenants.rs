//! Metrics of each tenant.

use std::collections::BTreeMap;

use prometheus::proto::{Metric, MetricFamily, MetricType};
use turnstile_accounting::{Metadata, Nanos, TenantId};

use super::make::{family, lengths, metric};
use turnstile_daemon::{HostSnapshot, TenantKind, TenantSnapshot};

/// Sources of tenants' labels beside the snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// Ids in the ledger.
    pub uuids: BTreeMap<TenantId, String>,
    /// Projects that tenants are charged to, by tenant name.
    pub projects: BTreeMap<String, String>,
}

/// A metric of a tenant that is one number.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) value: fn(&TenantSnapshot) -> Option<f64>,
}

/// Those of tenants; the labels are `vm` and `gpu`.
pub(super) const ROWS: [Row; 19] = [
    counter(
        "turnstile_vm_gpu_seconds_total",
        "Engine time charged: what is billed.",
        |t| seconds(t.compute_ns),
    ),
    counter(
        "turnstile_vm_entitled_seconds_total",
        "Engine time entitled to, by weights, quotas and what each tenant wanted.",
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
        "turnstile_vm_periods_total",
        "Decisions about it, as nr_periods of cpu.stat.",
        |t| Some(t.tally.periods as f64),
    ),
    counter(
        "turnstile_vm_throttled_periods_total",
        "Periods between decisions in which it was held back for some time.",
        |t| Some(t.tally.throttled_periods as f64),
    ),
    counter(
        "turnstile_vm_slices_total",
        "Times that it came onto the compute engine.",
        |t| Some(t.slices as f64),
    ),
    counter(
        "turnstile_vm_copy_seconds_total",
        "Time of copy engines charged.",
        |t| seconds(t.copy_ns),
    ),
    counter(
        "turnstile_vm_copy_bytes_total",
        "Bytes that copy engines moved in that time, where the GPU counts them.",
        |t| t.copy_bytes.map(|bytes| bytes as f64),
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
        "GPU memory on the GPU, where the GPU tells.",
        |t| {
            let resident = t.memory.map(|memory| memory.resident_bytes);
            resident.or(t.memory_held_bytes).map(|bytes| bytes as f64)
        },
    ),
    gauge(
        "turnstile_vm_memory_limit_bytes",
        "GPU memory that it may hold; absent without a limit.",
        |t| t.memory_limit_bytes.map(|bytes| bytes as f64),
    ),
    gauge(
        "turnstile_vm_swapped_bytes",
        "GPU memory at the host, where memory moves.",
        |t| t.memory.map(|m| m.swapped_bytes as f64),
    ),
    counter(
        "turnstile_vm_moved_bytes_total",
        "GPU memory that was copied to or from the host because of it, where memory moves.",
        |t| t.memory.map(|m| m.moved_bytes as f64),
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

/// The metric that is billed, which alone has the project.
const BILLED: &str = "turnstile_vm_gpu_seconds_total";

/// A fault's kind as a label: `PageFault` is `page_fault`.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// Metadata as labels of a series. Characters that names of Prometheus lack are `_`; a name that
/// then is not the first of its kind gets a number, as kube-state-metrics does it.
fn described(metadata: &Metadata) -> Vec<(String, String)> {
    let id = metadata.instance_id().map(|id| id.to_string());
    let project = metadata.project().map(str::to_owned);
    let known = [("instance_id", id), ("project", project)].into_iter();
    let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let mut all: Vec<(String, String)> = known.collect();
    let mut taken = BTreeMap::<String, u32>::new();
    for (key, value) in metadata.labels() {
        let plain = key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let count = taken.entry(plain.clone()).or_default();
        *count += 1;
        let name = match count {
            1 => format!("label_{plain}"),
            more => format!("label_{plain}_conflict{more}"),
        };
        all.push((name, value.clone()));
    }
    all
}

/// All families of tenants; those without series are empty.
pub(super) fn families(gpu: &str, host: &HostSnapshot, names: &Names) -> Vec<MetricFamily> {
    let unknown = String::new();
    let uuid = |t: &TenantSnapshot| names.uuids.get(&t.tenant).unwrap_or(&unknown).as_str();
    // Departed tenants keep what only grows: a scraper sees all that they used.
    let departed = host.departed.iter().map(|tenant| &**tenant);
    let tenants: Vec<&TenantSnapshot> = host.tenants.iter().chain(departed).collect();
    let present = host.tenants.len();
    let each = |make: &dyn Fn(&TenantSnapshot, &str) -> Vec<Metric>| -> Vec<Metric> {
        tenants.iter().flat_map(|t| make(t, uuid(t))).collect()
    };
    let mut all = vec![family(
        "turnstile_vm_info",
        "The tenants, with instance id, project and labels; a label is label_KEY.",
        MetricType::GAUGE,
        each(&|t, vm| {
            let kind = match t.kind {
                TenantKind::Vm => "vm",
                TenantKind::Program { .. } => "program",
            };
            let (name, account) = (t.name.as_str(), t.account.as_str());
            let labels = [
                ("vm", vm),
                ("gpu", gpu),
                ("name", name),
                ("kind", kind),
                ("account", account),
            ];
            let metadata = described(&t.metadata);
            let metadata = metadata.iter().map(|(name, value)| (&**name, &**value));
            let labels: Vec<(&str, &str)> = labels.into_iter().chain(metadata).collect();
            vec![metric(MetricType::GAUGE, &labels, 1.0)]
        }),
    )];
    for row in &ROWS {
        let shown = match row.kind {
            MetricType::COUNTER => tenants.len(),
            _ => present,
        };
        let metrics = tenants[..shown].iter().flat_map(|t| {
            let vm = uuid(t);
            let mut labels = vec![("vm", vm), ("gpu", gpu)];
            if let (BILLED, Some(project)) = (row.name, names.projects.get(&t.name)) {
                labels.push(("project_id", project));
            }
            let value = (row.value)(t);
            value
                .map(|value| metric(row.kind, &labels, value))
                .into_iter()
                .collect::<Vec<Metric>>()
        });
        all.push(family(row.name, row.help, row.kind, metrics.collect()));
    }
    all.push(family(
        "turnstile_vm_preemptions_total",
        "Times that it was held back: ahead of its share, another's turn, or its quota used up.",
        MetricType::COUNTER,
        each(&|t, vm| {
            let reasons = [
                ("ahead", t.tally.held_ahead),
                ("turn", t.tally.held_turn),
                ("capped", t.tally.held_capped),
            ];
            let of = |(reason, count)| {
                let labels = [("vm", vm), ("gpu", gpu), ("reason", reason)];
                metric(MetricType::COUNTER, &labels, count as f64)
            };
            reasons.map(of).to_vec()
        }),
    ));
    all.push(family(
        "turnstile_vm_faults_total",
        "Channels of it that ended with an error, by its kind, where the GPU counts them.",
        MetricType::COUNTER,
        each(&|t, vm| {
            let of = |(code, count): (&turnstile_abi::ErrorCode, &u64)| {
                let kind = snake(&format!("{code:?}"));
                let labels = [("vm", vm), ("gpu", gpu), ("kind", &kind)];
                metric(MetricType::COUNTER, &labels, *count as f64)
            };
            t.faults.iter().map(of).collect()
        }),
    ));
    all.push(family(
        "turnstile_vm_schedule_latency_seconds",
        "From a doorbell write that trapped to its being on the compute engine.",
        MetricType::HISTOGRAM,
        each(&|t, vm| vec![lengths(&[("vm", vm), ("gpu", gpu)], &t.latency)]),
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_names_of_prometheus_and_none_is_twice() {
        let labels = [("a.b", "1"), ("a/b", "2"), ("a_b", "3"), ("c", "")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let metadata = Metadata::new(None, Some("p".into()), labels.into()).unwrap();
        let expected = [
            ("project", "p"),
            ("label_a_b", "1"),
            ("label_a_b_conflict2", "2"),
            ("label_a_b_conflict3", "3"),
            ("label_c", ""),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(described(&metadata), expected);
        assert!(described(&Metadata::default()).is_empty());
    }

    #[test]
    fn kinds_are_words() {
        assert_eq!(snake("PageFault"), "page_fault");
        assert_eq!(snake("None"), "none");
    }
}
