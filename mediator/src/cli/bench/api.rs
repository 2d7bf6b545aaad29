//! What asking the admin API costs: requests at a fixed rate, each timed from when it was due.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};
use turnstile_mediator::api::client::DEFAULT_SOCKET;
use turnstile_mediator::bench::percentile::Percentiles;

/// Arguments of `bench api`.
#[derive(clap::Args, Debug)]
pub(crate) struct ApiArgs {
    /// The daemon's API socket
    #[arg(long, default_value = DEFAULT_SOCKET)]
    api: PathBuf,
    /// Requests a second, all connections together
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// For how many seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Connections
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    connections: u32,
    /// What is asked for
    #[arg(long, default_value = "/v1/vms")]
    path: String,
}

/// What came out.
#[derive(Debug, Serialize)]
struct Result {
    requests: u64,
    failed: u64,
    seconds: f64,
    /// From when a request was due to its last byte.
    latency: Percentiles,
}

pub(crate) fn run(args: &ApiArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(load(args))?;
    println!("{}", serde_json::to_string_pretty(&result)?);
    anyhow::ensure!(result.failed == 0, "{} requests failed", result.failed);
    Ok(())
}

async fn load(args: &ApiArgs) -> anyhow::Result<Result> {
    let each = args.rate * args.seconds / args.connections;
    let apart = Duration::from_secs(1) * args.connections / args.rate;
    let path = Arc::new(args.path.clone());
    let begin = Instant::now() + Duration::from_millis(100);
    let mut connections = Vec::new();
    for number in 0..args.connections {
        let stream = UnixStream::connect(&args.api).await;
        let stream = stream.with_context(|| args.api.display().to_string())?;
        // One after the other, so that requests are evenly spread.
        let first = begin + apart * number / args.connections;
        let asking = ask(stream, path.clone(), first, apart, each);
        connections.push(tokio::spawn(asking));
    }
    let (mut latencies_ns, mut failed) = (Vec::new(), 0);
    for connection in connections {
        let (own_ns, own_failed) = connection.await??;
        latencies_ns.extend(own_ns);
        failed += own_failed;
    }
    Ok(Result {
        requests: latencies_ns.len() as u64,
        failed,
        seconds: begin.elapsed().as_secs_f64(),
        latency: Percentiles::of(latencies_ns),
    })
}

async fn ask(
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
        // What was late does not make the next one late: it is due when it is due.
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
