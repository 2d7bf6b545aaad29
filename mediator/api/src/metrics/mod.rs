//! Prometheus metrics from a snapshot. Every series of a tenant exists from its admission on, at
//! zero.

mod accounts;
mod dcgm;
mod limits;
mod make;
mod open;
mod tenants;

use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{Encoder as _, TextEncoder};

use make::{family, lengths, metric, single};
use turnstile_daemon::limits::LimitsSnapshot;
use turnstile_daemon::{HostSnapshot, LedgerHealth};
use turnstile_mediation::COMPUTE;

pub(crate) use dcgm::compat;
pub(crate) use open::open_text;
pub(crate) use tenants::Names;

/// What does not change while the daemon runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The host.
    pub node: String,
    /// UUID of the GPU.
    pub gpu: String,
    /// Its model.
    pub model: String,
    /// Policy in force.
    pub policy: String,
}

/// The metrics of one GPU.
pub(crate) fn families(
    identity: &Identity,
    host: &HostSnapshot,
    names: &Names,
) -> Vec<MetricFamily> {
    let gpu = identity.gpu.as_str();
    let of_gpu: make::Labels<'_> = &[("gpu", gpu)];
    let mut all = vec![
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
            "turnstile_gpu_memory_bytes",
            "GPU memory that there is.",
            MetricType::GAUGE,
            of_gpu,
            host.memory_bytes as f64,
        ),
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
    all.push(family(
        "turnstile_switch_duration_seconds",
        "Lengths of the compute engine's switches from one context to another.",
        MetricType::HISTOGRAM,
        vec![lengths(of_gpu, &host.switches)],
    ));
    all.extend(tenants::families(gpu, host, names));
    all.extend(accounts::families(gpu, host));
    all
}

/// The metrics of the daemon, whatever GPUs it has.
pub(crate) fn of_daemon(
    (node, version): (&str, &str),
    limits: &LimitsSnapshot,
    ledger: Option<&LedgerHealth>,
) -> Vec<MetricFamily> {
    let mut all = vec![single(
        "turnstile_build_info",
        "Version of the daemon.",
        MetricType::GAUGE,
        &[("version", version), ("node", node)],
        1.0,
    )];
    all.extend(limits::families(limits));
    all.extend(ledger.into_iter().flat_map(durable));
    all
}

/// One family of each name, with the series of all GPUs; none without series, which readers refuse.
pub(crate) fn joined(all: Vec<MetricFamily>) -> Vec<MetricFamily> {
    let mut joined: Vec<MetricFamily> = Vec::with_capacity(all.len());
    for mut family in all {
        let same = joined.iter_mut().find(|one| one.name() == family.name());
        match same {
            Some(first) => first.mut_metric().append(&mut family.take_metric()),
            None => joined.push(family),
        }
    }
    joined.retain(|family| !family.get_metric().is_empty());
    joined
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

fn durable(ledger: &LedgerHealth) -> [MetricFamily; 5] {
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
            "turnstile_ledger_window_seconds",
            "Length of the ledger's windows.",
            gauge,
            &[],
            ledger.window_ns.0 as f64 / 1e9,
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
pub(crate) fn text(families: &[MetricFamily]) -> Result<String, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(families, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod alerts;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
pub(crate) mod tests;
