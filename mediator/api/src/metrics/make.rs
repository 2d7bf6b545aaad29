//! Families and series, as the text format wants them.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram as ProtoHistogram, LabelPair, Metric, MetricFamily,
    MetricType,
};

use turnstile_daemon::histogram::Histogram;

pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

fn bare(labels: Labels<'_>) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    Metric::from_label(pairs.collect())
}

/// A series of one number.
pub(super) fn metric(kind: MetricType, labels: Labels<'_>, value: f64) -> Metric {
    let mut metric = bare(labels);
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

/// The series of a histogram of lengths, in seconds.
pub(super) fn lengths(labels: Labels<'_>, histogram: &Histogram) -> Metric {
    let mut metric = bare(labels);
    let mut exported = ProtoHistogram::default();
    let buckets = histogram.cumulative().map(|(bound, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.0 as f64 / 1e9);
        bucket.set_cumulative_count(count);
        bucket
    });
    exported.set_bucket(buckets.collect());
    exported.set_sample_count(histogram.count());
    exported.set_sample_sum(histogram.sum().0 as f64 / 1e9);
    metric.set_histogram(exported);
    metric
}

pub(super) fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    metrics: Vec<Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// A family of one series.
pub(super) fn single(
    name: &str,
    help: &str,
    kind: MetricType,
    labels: Labels<'_>,
    value: f64,
) -> MetricFamily {
    family(name, help, kind, vec![metric(kind, labels, value)])
}
