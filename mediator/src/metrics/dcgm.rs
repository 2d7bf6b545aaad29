//! A few figures under the names of NVIDIA's DCGM exporter, for tools that know no others (`metrics.dcgm_compat`).

use prometheus::proto::{MetricFamily, MetricType};

use super::Identity;
use super::make::{family, metric};
use crate::view::View;

/// How much of the last second each tenant had of the compute engine. To OpenCost and to dashboards for DCGM a tenant is a
/// container.
/// SOURCE: DCGM exporter, default counters and labels; OpenCost reads those with a container.
pub fn compat(identity: &Identity, view: &View) -> Vec<MetricFamily> {
    if view.tenants.is_empty() {
        return Vec::new();
    }
    let metrics = view.tenants.iter().map(|row| {
        let labels = [
            ("gpu", "0"),
            ("UUID", identity.gpu.as_str()),
            ("modelName", &identity.model),
            ("hostname", &identity.node),
            ("namespace", "turnstile"),
            ("pod", &row.name),
            ("container", &row.name),
        ];
        metric(MetricType::GAUGE, &labels, row.received)
    });
    vec![family(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Ratio of the last second in which the compute engine was the tenant's.",
        MetricType::GAUGE,
        metrics.collect(),
    )]
}
