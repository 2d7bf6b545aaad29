//! What the API counts of itself: requests, how long they took, and exports.

use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts};

/// Upper bounds in seconds; the promise is 5 ms.
const BOUNDS: [f64; 10] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.1, 1.0, 10.0,
];

/// Counters of one API.
#[derive(Debug)]
pub(super) struct Measured {
    requests: IntCounterVec,
    durations: Histogram,
    exports_failed: IntCounter,
    export_at: Gauge,
}

impl Measured {
    /// None where names are not as Prometheus wants them, which a test rules out.
    pub(super) fn new() -> Option<Self> {
        let requests = Opts::new("turnstile_api_requests_total", "Requests to the admin API.");
        let durations = HistogramOpts::new(
            "turnstile_api_request_duration_seconds",
            "From a request's head to the head of its answer.",
        );
        Some(Self {
            requests: IntCounterVec::new(requests, &["route", "method", "code"]).ok()?,
            durations: Histogram::with_opts(durations.buckets(BOUNDS.to_vec())).ok()?,
            exports_failed: IntCounter::new(
                "turnstile_export_failures_total",
                "Exports over the admin API that the ledger's state or the host made fail.",
            )
            .ok()?,
            export_at: Gauge::new(
                "turnstile_export_last_success_timestamp_seconds",
                "When the last export over the admin API succeeded; 0 for never.",
            )
            .ok()?,
        })
    }

    /// A request was answered. `route` is a pattern, so that there are as many as the document has.
    pub(super) fn request(&self, route: &str, method: &str, code: u16, seconds: f64) {
        // All unknown methods share one series.
        let known = ["GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS"];
        let method = if known.contains(&method) {
            method
        } else {
            "other"
        };
        let code = code.to_string();
        self.requests
            .with_label_values(&[route, method, &code])
            .inc();
        self.durations.observe(seconds);
    }

    /// An export ended; 4xx but 409 are the caller's own fault.
    pub(super) fn export(&self, failed: Option<u16>) {
        match failed {
            None => {
                let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
                self.export_at.set(now.map_or(0.0, |now| now.as_secs_f64()));
            }
            Some(409 | 500..) => self.exports_failed.inc(),
            Some(_) => {}
        }
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let mut all = self.requests.collect();
        all.extend(self.durations.collect());
        all.extend(self.exports_failed.collect());
        all.extend(self.export_at.collect());
        all.retain(|family| !family.get_metric().is_empty());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_of_few_series() {
        let measured = Measured::new().unwrap();
        measured.request("/v1/vms", "GET", 200, 0.000_2);
        measured.request("/v1/vms", "BREW", 405, 0.000_2);
        measured.request("/v1/vms", "STEW", 405, 0.000_2);
        measured.export(Some(400));
        measured.export(Some(409));
        measured.export(None);
        let text = crate::metrics::text(&measured.families()).unwrap();
        let has = |line: &str| text.lines().any(|seen| seen == line);
        assert!(
            has(r#"turnstile_api_requests_total{code="405",method="other",route="/v1/vms"} 2"#),
            "{text}"
        );
        assert!(has("turnstile_api_request_duration_seconds_count 3"));
        assert!(has(
            r#"turnstile_api_request_duration_seconds_bucket{le="0.00025"} 3"#
        ));
        assert!(has("turnstile_export_failures_total 1"));
        assert!(!has("turnstile_export_last_success_timestamp_seconds 0"));
    }
}
