//! A few metrics under the names of NVIDIA's DCGM exporter, for tools without others
//! (`metrics.dcgm_compat`).

use prometheus::proto::{MetricFamily, MetricType};

use super::Identity;
use super::make::{family, metric};
use crate::view::View;

/// Each tenant's part of the compute engine in the last second. To OpenCost and to DCGM dashboards
/// a tenant is a container. SOURCE: DCGM exporter, default counters and labels; OpenCost reads
/// those with a container.
pub(crate) fn compat(identity: &Identity, view: &View) -> Vec<MetricFamily> {
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
