//! Cost of the admin API: requests at a fixed rate, each timed from its due time, and their effect
//! on the shares of the tenants that run meanwhile.
//!
//! Shares are compared in pairs: a stretch with requests and one of the same length without, right
//! after each other, in alternating order. Slow changes of the host are then in both, and the
//! scatter of the differences shows their error.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep_until};
use turnstile_api::client::{Client, default_socket};
use turnstile_api::view::Sample;
use turnstile_figures::columns::table;
use turnstile_figures::output::OutputArgs;
use turnstile_figures::percentile::Percentiles;

/// Arguments of `bench api`.
#[derive(clap::Args, Debug)]
pub(crate) struct ApiArgs {
    /// The daemon's API socket
    #[arg(long, default_value_os_t = default_socket(), hide_default_value = true)]
    api: PathBuf,
    /// Requests a second, all connections together
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Seconds in which requests are sent, all pairs together; the bench takes twice as long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Pairs of stretches with and without requests
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Connections
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    connections: u32,
    /// Requested path
    #[arg(long, default_value = "/v1/vms")]
    path: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Results of the bench.
#[derive(Debug, Serialize)]
struct Outcome {
    requests: u64,
    failed: u64,
    pairs: u32,
    /// Length of a stretch.
    stretch_s: f64,
    /// From when a request was due to its last byte.
    latency: Percentiles,
    /// Of the tenants that were there all the time.
    shares: Vec<Share>,
}

/// A tenant's part of what all of them used, in percent.
#[derive(Debug, PartialEq, Serialize)]
struct Share {
    name: String,
    without: f64,
    with: f64,
    /// Mean of the differences of pairs: with requests minus without.
    difference: f64,
    /// Standard error of that mean; none of one pair.
    standard_error: Option<f64>,
}

/// Shares of one stretch, by name.
type Shares = BTreeMap<String, f64>;

pub(crate) fn run(args: &ApiArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let stretch = Duration::from_secs(args.seconds.into()) / args.pairs;
    let client = Client::new(&args.api);
    let (mut latencies_ns, mut failed, mut pairs) = (Vec::new(), 0, Vec::new());
    for pair in 0..args.pairs {
        let mut with = || -> anyhow::Result<Shares> {
            shares(&client, || {
                let (own_ns, own_failed) = load(&runtime, args, stretch)?;
                latencies_ns.extend(own_ns);
                failed += own_failed;
                Ok(())
            })
        };
        let without = || {
            shares(&client, || {
                // TIMEOUT: the stretch itself
                std::thread::sleep(stretch);
                Ok(())
            })
        };
        pairs.push(if pair % 2 == 0 {
            let first = without()?;
            (first, with()?)
        } else {
            let first = with()?;
            (without()?, first)
        });
    }
    let outcome = Outcome {
        requests: latencies_ns.len() as u64,
        failed,
        pairs: args.pairs,
        stretch_s: stretch.as_secs_f64(),
        latency: Percentiles::of(latencies_ns),
        shares: compare(&pairs),
    };
    args.output.print(&outcome, print)?;
    anyhow::ensure!(failed == 0, "{failed} requests failed");
    Ok(())
}

fn print(outcome: &Outcome) {
    let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
    println!(
        "{} requests, {} failed; milliseconds from due to the last byte, p50 / p99 / max: {} / {} / {}",
        outcome.requests,
        outcome.failed,
        ms(outcome.latency.p50_ns),
        ms(outcome.latency.p99_ns),
        ms(outcome.latency.max_ns),
    );
    println!(
        "shares in {} pairs of {} s with and without requests, in percent",
        outcome.pairs, outcome.stretch_s
    );
    let points = |points: f64| format!("{points:.2}");
    let row = |share: &Share| {
        vec![
            share.name.clone(),
            points(share.without),
            points(share.with),
            points(share.difference),
            share.standard_error.map_or_else(|| "-".to_owned(), points),
        ]
    };
    let rows: Vec<Vec<String>> = outcome.shares.iter().map(row).collect();
    table(&["NAME", "WITHOUT", "WITH", "DIFFERENCE", "ERROR"], &rows);
}

/// Each tenant's part of what all used while `during` ran.
fn shares(client: &Client, during: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Shares> {
    let sample = || client.get::<Sample>("/v1/live/sample");
    let before = sample()?;
    during()?;
    let after = sample()?;
    let was = |number| {
        let mut tenants = before.tenants.iter();
        tenants.find(|tenant| tenant.tenant == number)
    };
    let used: Vec<(&String, u64)> = (after.tenants.iter())
        .filter_map(|now| Some((&now.name, now.compute_ns - was(now.tenant)?.compute_ns)))
        .collect();
    let sum = used.iter().map(|(_, ns)| ns).sum::<u64>().max(1) as f64;
    let share = |(name, ns): (&String, u64)| (name.clone(), ns as f64 / sum * 100.0);
    Ok(used.into_iter().map(share).collect())
}

/// The shares, in pairs without and with requests, of the tenants that are in all of them.
fn compare(pairs: &[(Shares, Shares)]) -> Vec<Share> {
    let Some((first, _)) = pairs.first() else {
        return Vec::new();
    };
    let count = pairs.len() as f64;
    let of = |name: &String| -> Option<Share> {
        let both: Option<Vec<(f64, f64)>> = pairs
            .iter()
            .map(|(without, with)| Some((*without.get(name)?, *with.get(name)?)))
            .collect();
        let both = both?;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| both.iter().map(of).sum::<f64>() / count;
        let difference = mean(&|(without, with)| with - without);
        let squares = mean(&|(without, with)| (with - without - difference).powi(2));
        Some(Share {
            name: name.clone(),
            without: mean(&|(without, _)| *without),
            with: mean(&|(_, with)| *with),
            difference,
            standard_error: (count > 1.0).then(|| (squares / (count - 1.0)).sqrt()),
        })
    };
    first.keys().filter_map(of).collect()
}

/// Latencies of one stretch of requests, and how many failed.
fn load(runtime: &Runtime, args: &ApiArgs, stretch: Duration) -> anyhow::Result<(Vec<u64>, u64)> {
    runtime.block_on(async {
        // CAST: a few thousand requests
        let each =
            (f64::from(args.rate) * stretch.as_secs_f64() / f64::from(args.connections)) as u32;
        let apart = Duration::from_secs(1) * args.connections / args.rate;
        let path = Arc::new(args.path.clone());
        let begin = Instant::now();
        let mut connections = Vec::new();
        for number in 0..args.connections {
            let stream = UnixStream::connect(&args.api).await;
            let stream = stream.with_context(|| args.api.display().to_string())?;
            // One after the other, so that requests are evenly spread.
            let first = begin + apart * number / args.connections;
            let queries = query(stream, path.clone(), first, apart, each.max(1));
            connections.push(tokio::spawn(queries));
        }
        let (mut latencies_ns, mut failed) = (Vec::new(), 0);
        for connection in connections {
            let (own_ns, own_failed) = connection.await??;
            latencies_ns.extend(own_ns);
            failed += own_failed;
        }
        Ok((latencies_ns, failed))
    })
}

async fn query(
    stream: UnixStream,
    path: Arc<String>,
    first: Instant,
    apart: Duration,
    count: u32,
) -> anyhow::Result<(Vec<u64>, u64)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (mut latencies_ns, mut failed) = (Vec::new(), 0);
    for number in 0..count {
        // A late request does not delay the due time of the next.
        let due = first + apart * number;
        sleep_until(due).await;
        let request = hyper::Request::get(&**path)
            .header("host", "turnstile")
            .body(Empty::<hyper::body::Bytes>::new())?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        failed += u64::from(!response.status().is_success());
        response.into_body().collect().await?;
        // CAST: a latency of less than 584 years
        latencies_ns.push(due.elapsed().as_nanos() as u64);
    }
    Ok((latencies_ns, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_that_of_pairs_and_has_an_error() {
        let shares = |part: f64| -> Shares { [("a".to_owned(), part)].into() };
        // The host drifts by ten points; requests cost half a point, less or more by a tenth.
        let pairs = [(shares(70.0), shares(69.4)), (shares(80.0), shares(79.6))];
        let [share] = &compare(&pairs)[..] else {
            panic!("one tenant")
        };
        assert!((share.difference + 0.5).abs() < 1e-9, "{share:?}");
        assert!(
            (share.standard_error.unwrap() - 0.1).abs() < 1e-9,
            "{share:?}"
        );
        assert_eq!(compare(&pairs[..1])[0].standard_error, None);
        assert_eq!(compare(&[(shares(1.0), Shares::new())]), []);
    }
}
