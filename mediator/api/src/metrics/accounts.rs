//! What is exposed of each account; the labels are `account` and `gpu`. The book of accounts bounds
//! how many series there are.

use prometheus::proto::{MetricFamily, MetricType};

use super::make::{family, metric};
use turnstile_daemon::{AccountSnapshot, HostSnapshot};

type Value = fn(&AccountSnapshot) -> Option<f64>;

const FAMILIES: [(&str, &str, MetricType, Value); 5] = [
    (
        "turnstile_account_gpu_seconds_total",
        "Engine time charged to its tenants, those that have left included.",
        MetricType::COUNTER,
        |account| Some(account.compute_ns.0 as f64 / 1e9),
    ),
    (
        "turnstile_account_copy_seconds_total",
        "Time of copy engines charged to its tenants, those that have left included.",
        MetricType::COUNTER,
        |account| Some(account.copy_ns.0 as f64 / 1e9),
    ),
    (
        "turnstile_account_copy_bytes_total",
        "Bytes that copy engines moved in that time, where the GPU counts them.",
        MetricType::COUNTER,
        |account| account.copy_bytes.map(|bytes| bytes as f64),
    ),
    (
        "turnstile_account_weight",
        "Share relative to other accounts.",
        MetricType::GAUGE,
        |account| Some(f64::from(account.weight)),
    ),
    (
        "turnstile_account_tenants",
        "Tenants connected.",
        MetricType::GAUGE,
        |account| Some(f64::from(account.tenants)),
    ),
];

pub(super) fn families(gpu: &str, host: &HostSnapshot) -> impl Iterator<Item = MetricFamily> {
    FAMILIES.into_iter().map(move |(name, help, kind, value)| {
        let series = host.accounts.iter().filter_map(|account| {
            let labels = [("account", account.name.as_str()), ("gpu", gpu)];
            Some(metric(kind, &labels, value(account)?))
        });
        family(name, help, kind, series.collect())
    })
}
