//! Metrics in the OpenMetrics text format: the same series as in Prometheus' own.
//!
//! - In: families of the [`prometheus`] crate. Out: text that ends with `# EOF`.
//! - Invariants: samples have the names and labels of the other format, so that rules and
//!   dashboards fit both. A family's own name lacks `_total` of a counter and `_info`.
//! - Caller: `/metrics`, where a reader requests it.
//!
//! SOURCE: OpenMetrics 1.0.0, <https://prometheus.io/docs/specs/om/open_metrics_spec/>

use std::fmt;

use prometheus::proto::{Histogram, Metric, MetricFamily, MetricType};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType as OpenType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

/// Units that end a name.
const UNITS: [(&str, &str); 3] = [
    ("_seconds", "seconds"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
];

/// Metrics in the OpenMetrics text format.
///
/// # Errors
/// If a family has another type than those that the daemon exposes.
pub(crate) fn open_text(families: Vec<MetricFamily>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut all = String::new();
    text::encode(&mut all, &registry)?;
    Ok(all)
}

#[derive(Debug)]
struct Families(Vec<MetricFamily>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|one| family(one, &mut encoder))
    }
}

/// The type of a family, and its name without what samples add.
fn typed(family: &MetricFamily) -> Result<(OpenType, &str), fmt::Error> {
    let name = family.name();
    let less = |suffix| name.strip_suffix(suffix);
    Ok(match (family.get_field_type(), less("_info")) {
        (MetricType::COUNTER, _) => (OpenType::Counter, less("_total").ok_or(fmt::Error)?),
        (MetricType::GAUGE, Some(about)) => (OpenType::Info, about),
        (MetricType::GAUGE, None) => (OpenType::Gauge, name),
        (MetricType::HISTOGRAM, _) => (OpenType::Histogram, name),
        _ => return Err(fmt::Error),
    })
}

fn family(family: &MetricFamily, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let (kind, name) = typed(family)?;
    let unit = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, *unit)));
    let (name, unit) = match unit {
        Some((name, unit)) => (name, Some(Unit::Other(unit.to_owned()))),
        None => (name, None),
    };
    let mut of_family = encoder.encode_descriptor(name, family.help(), unit.as_ref(), kind)?;
    for metric in family.get_metric() {
        let pairs = metric.get_label().iter();
        let labels: Vec<(&str, &str)> = pairs.map(|pair| (pair.name(), pair.value())).collect();
        series(metric, kind, of_family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// A series' labels are given once, by its family.
const NO_LABELS: [(&str, &str); 0] = [];

/// None of the daemon's samples has one.
type NoExemplar<'a> = Option<&'a Exemplar<NoLabelSet, f64>>;

fn series(metric: &Metric, kind: OpenType, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        OpenType::Counter => {
            encoder.encode_counter(&metric.get_counter().get_value(), NoExemplar::None)
        }
        OpenType::Info => encoder.encode_info(&NO_LABELS),
        OpenType::Histogram => {
            let histogram = metric.get_histogram();
            let (sum, count) = (histogram.get_sample_sum(), histogram.get_sample_count());
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets(histogram), None)
        }
        _ => encoder.encode_gauge(&metric.get_gauge().get_value()),
    }
}

/// Upper bounds, the infinite one last, and how many are in each bucket alone.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds = histogram.get_bucket().iter();
    let bounds = bounds.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
    let finite = bounds.filter(|(bound, _)| bound.is_finite());
    let all = finite.chain([(f64::INFINITY, histogram.get_sample_count())]);
    let alone = all.scan(0, |below, (bound, count)| {
        let alone = count - *below;
        *below = count;
        Some((bound, alone))
    });
    alone.collect()
}
