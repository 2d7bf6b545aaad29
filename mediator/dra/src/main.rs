//! `turnstile-dra`: the driver of one node, as a DaemonSet runs it.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use turnstile_api::client::default_socket;
use turnstile_dra::cluster::Cluster;
use turnstile_dra::daemon::Daemon;
use turnstile_dra::driver::{Driver, Folders};
use turnstile_dra::grpc;
use turnstile_dra::names::{ACCOUNT, CDI_FOLDER, PLUGINS, REGISTRY};

/// Gives claims of Kubernetes their shares of this node's GPUs.
#[derive(Parser, Debug)]
#[command(version = env!("TURNSTILE_VERSION"))]
struct Args {
    /// Name of this node
    #[arg(long)]
    node: String,
    /// Socket of the daemon's admin API
    #[arg(long, default_value_os_t = default_socket())]
    api: PathBuf,
    /// Account that the tenants belong to: their shares are weights within it
    #[arg(long, default_value = ACCOUNT)]
    account: String,
    /// Folder of the kubelet for sockets of plugins
    #[arg(long, default_value = PLUGINS)]
    plugins: PathBuf,
    /// Folder in which the kubelet looks for plugins
    #[arg(long, default_value = REGISTRY)]
    registry: PathBuf,
    /// Folder of CDI documents
    #[arg(long, default_value = CDI_FOLDER)]
    cdi: PathBuf,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let args = Args::parse();
    let client = kube::Client::try_default().await;
    let client = client.context("No API server is known; run in a pod, or set KUBECONFIG")?;
    let folders = Folders {
        plugins: args.plugins,
        registry: args.registry,
        cdi: args.cdi,
    };
    let daemon = Daemon::new(&args.api, &args.account);
    let driver = Driver::new(daemon, Cluster::new(client, &args.node), folders);
    let (ended, end) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        ended.send_replace(true);
    });
    Ok(grpc::run(driver, end).await?)
}
