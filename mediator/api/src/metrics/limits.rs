//! What accounts and API clients hold of the daemon's resources. The label `account` is empty for
//! all together. The bounds of the table bound how many series there are.

use prometheus::proto::{MetricFamily, MetricType};

use super::make::{family, metric};
use turnstile_daemon::limits::{Amount, LimitsSnapshot};

pub(super) fn families(limits: &LimitsSnapshot) -> [MetricFamily; 3] {
    let gauge = MetricType::GAUGE;
    let series = |value: fn(&Amount) -> u64| {
        let of_accounts = limits.accounts.iter().flat_map(|(account, amounts)| {
            let held = amounts.iter().filter(|(_, amount)| amount.used > 0);
            held.map(move |(name, amount)| (&**account, *name, amount))
        });
        let of_all = limits.all.iter().map(|(name, amount)| ("", *name, amount));
        let series = of_all.chain(of_accounts).map(|(account, name, amount)| {
            let labels = [("resource", name), ("account", account)];
            metric(gauge, &labels, value(amount) as f64)
        });
        series.collect()
    };
    let refused = limits.refused.iter().map(|(name, count)| {
        let labels = [("resource", *name)];
        metric(MetricType::COUNTER, &labels, *count as f64)
    });
    [
        family(
            "turnstile_limit_used",
            "What is held of a bounded resource, by account; the empty account is all.",
            gauge,
            series(|amount| amount.used),
        ),
        family(
            "turnstile_limit_max",
            "The bound of what is held.",
            gauge,
            series(|amount| amount.max),
        ),
        family(
            "turnstile_limit_refused_total",
            "Requests that were refused because they would have passed a bound.",
            MetricType::COUNTER,
            refused.collect(),
        ),
    ]
}
