//! `turnstile serve`: the daemon in the foreground. It prints a snapshot of each GPU on SIGUSR1.

mod confined;
mod start;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::record::GpuIdentity;
use turnstile_api::{Api, ApiConfig, DebtFile, StateFile};
use turnstile_daemon::config::{
    Config, ConfigError, Effective, GpuKind, Origin, Problem, Reloaded, SuspendKind, changed,
};
use turnstile_daemon::{AccountsConfig, Daemon, Homecoming, resolve_all};
use turnstile_host::run_folder;
use turnstile_policies::Weight;
use turnstile_vmm::front::Front;

use super::gpus;
use super::ledger;
use super::logging;
use super::options::{DEFAULT_PATH, Options};
use super::service::Service;
use super::vfio_user;
use confined::confine;
use start::identity;
pub(crate) use start::{meter, start};

/// Control node of NVIDIA's driver.
pub(crate) const NVIDIA_CONTROL: &str = "/dev/nvidiactl";

/// Sizes the card so that `vms` VMs together own `factor` times its memory, and the host pool so
/// that it holds all of that.
pub(crate) fn oversubscribe(config: &mut Config, factor: f64, vms: u64) -> anyhow::Result<()> {
    let moves = match config.gpu.kind {
        GpuKind::Soft => config.gpu.soft.suspend != SuspendKind::Drains,
        GpuKind::Nvidia => true,
        GpuKind::Vfio | GpuKind::VfioUser | GpuKind::VfioFake => false,
    };
    anyhow::ensure!(
        moves,
        "Only the software GPU and NVIDIA's move memory, and not where queued commands drain"
    );
    let own = config.memory.vm_mib << 20;
    // CAST: a few GiB, which an f64 holds exactly; the card has whole chunks.
    let card = (own as f64 * vms as f64 / factor) as u64 / CHUNK_BYTES * CHUNK_BYTES;
    anyhow::ensure!(
        card >= own,
        "A VM of {} MiB does not fit on a card of {} MiB; oversubscribe at most as many times as there are VMs",
        own >> 20,
        card >> 20
    );
    config.gpu.soft.memory_mib = card >> 20;
    config.memory.card_mib = card >> 20;
    config.memory.host_pool_mib = config.memory.host_pool_mib.max((own * vms) >> 20);
    Ok(())
}

/// Names the API's sockets, which are beside that of VMMs unless configured.
fn name_sockets(config: &mut Config) {
    let beside = |name| config.sockets.vmm.with_file_name(name);
    let (own, read_only) = (beside(run_folder::API), beside("api-ro.sock"));
    let api = &mut config.api;
    api.socket.get_or_insert(own);
    api.read_only_socket.get_or_insert(read_only);
}

/// Starts the admin API of a daemon.
fn api(config: &Config, daemon: &Daemon) -> anyhow::Result<Api> {
    let api = ApiConfig {
        section: config.api.clone(),
        metrics: config.metrics.clone(),
        prices: config.ledger.prices.clone(),
        ledger: config.ledger.path.clone(),
        version: crate::VERSION.to_owned(),
    };
    Ok(Api::start(api, daemon.fleet().clone())?)
}

/// Serves the devices of stock VMMs' VMs.
pub(crate) fn fronts(config: &Config) -> anyhow::Result<Vec<Front>> {
    let section = &config.vfio_user;
    match &section.folder {
        Some(folder) => {
            vfio_user::serve(&config.sockets.vmm, folder, &section.vms, section.doorbells)
        }
        None => Ok(Vec::new()),
    }
}

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// Print a snapshot at the end, as on SIGUSR1
    #[arg(long, hide = true)]
    snapshot_at_end: bool,
}

/// What a daemon over a software GPU that no layer named has to print.
/// On a host with an NVIDIA GPU such a daemon would bill software kernels. Under the packaged
/// configuration no reader would notice, so it is an error there.
fn software_by_default(effective: &Effective, nvidia: bool) -> Result<Option<String>, ConfigError> {
    let kind = &effective.settings["gpu.kind"];
    let cards = &effective.config.card;
    let all_named = !cards.is_empty() && cards.iter().all(|card| card.kind.is_some());
    if !nvidia || kind.origin != Origin::Default || all_named {
        return Ok(None);
    }
    let text = "this host has an NVIDIA GPU, and gpu.kind is not set; set it to \"nvidia\", or to \"soft\" for the software GPU";
    let packaged = (effective.files.iter()).find(|path| *path == Path::new(DEFAULT_PATH));
    match packaged {
        Some(path) => Err(ConfigError(vec![Problem {
            origin: Origin::File {
                path: path.clone(),
                line: 1,
            },
            text: text.to_owned(),
        }])),
        None => Ok(Some(format!("{text}. The software GPU is used"))),
    }
}

/// What a daemon prints at its start: its GPU, where it listens, its ledger, and the files that it
/// read.
fn started(
    effective: &Effective,
    config: &Config,
    policies: &[String],
) -> anyhow::Result<[String; 4]> {
    let gpu = |(card, policy): (&Config, &String)| -> anyhow::Result<String> {
        let GpuIdentity { gpu, model, .. } = identity(card)?;
        Ok(format!("{model} ({gpu}), policy {policy}"))
    };
    let cards = config.cards();
    let gpus = cards.iter().zip(policies).map(gpu);
    let gpus = gpus.collect::<anyhow::Result<Vec<_>>>()?;
    let api = &config.api;
    let show = |path: &PathBuf| path.display().to_string();
    let mut listens = vec![format!("{} (VMs and programs)", show(&config.sockets.vmm))];
    let sockets = [&api.socket, &api.read_only_socket];
    listens.extend(
        sockets
            .into_iter()
            .flatten()
            .map(|path| format!("{} (API)", show(path))),
    );
    listens.extend(
        api.listen
            .map(|address| format!("{address} (API over TLS)")),
    );
    listens.extend(
        config
            .metrics
            .listen
            .map(|address| format!("{address} (metrics)")),
    );
    let folder = config.vfio_user.folder.as_ref();
    listens.extend(folder.map(|folder| format!("{} (stock VMMs)", show(folder))));
    let section = &config.ledger;
    let ledger = match (&section.path, &section.postgres) {
        (Some(path), _) => format!("Ledger: {}, node {}", show(path), ledger::node(section)),
        (None, Some(_)) => format!("Ledger: PostgreSQL, node {}", ledger::node(section)),
        (None, None) => "Ledger: none is kept; ledger.path, or --ledger, names a file".to_owned(),
    };
    let files: Vec<String> = effective.files.iter().map(show).collect();
    let files = match files.as_slice() {
        [] => format!("no file; {DEFAULT_PATH} is not there"),
        files => files.join(", "),
    };
    Ok([
        format!("GPU: {}", gpus.join("; ")),
        format!("Listening on {}", listens.join(", ")),
        ledger,
        format!("Configuration: {files}"),
    ])
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut effective = args.options.effective()?;
    let mut config = gpus::on_this_host(&effective)?;
    name_sockets(&mut config);
    let unmeant = software_by_default(&effective, Path::new(NVIDIA_CONTROL).exists())?;
    logging::begin_daemon(&config.log);
    if let Some(text) = unmeant {
        log::warn!("{text}");
    }
    if config.sockets.vmm.parent() == Some(&*run_folder::own()) {
        let folder = run_folder::own();
        run_folder::make(&folder).with_context(|| {
            format!(
                "Making {} failed; name another folder by --socket",
                folder.display()
            )
        })?;
    }
    raise_file_limit();
    // Before the threads, so that none of them takes the signal.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1])?;
    confine(&config, args.options.file())?;
    let mut daemon = start(&config)?;
    let api = api(&config, &daemon)?;
    let members = daemon.fleet().members().iter();
    let policies: Vec<String> = members.map(|one| one.host.policy().to_owned()).collect();
    let gpus = match &policies[..] {
        [policy] => format!("{} GPU, policy {policy}", config.gpu.kind.name()),
        all => format!("{} GPUs", all.len()),
    };
    let status = format!("{gpus}, listening on {}", config.sockets.vmm.display());
    let fronts = fronts(&config)?;
    for line in started(&effective, &config, &policies)? {
        log::info!("{line}");
    }
    let service = Service::ready(&status, daemon.periods().to_vec())?;
    let print_snapshot = |daemon: &Daemon| -> anyhow::Result<()> {
        for member in daemon.fleet().members() {
            println!("{}", serde_json::to_string_pretty(&member.host.snapshot())?);
        }
        Ok(())
    };
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => print_snapshot(&daemon)?,
            SIGHUP => {
                service.reloading();
                match reload(&args.options, &effective, &daemon, &api) {
                    Ok(now) => effective = now,
                    Err(error) => log::error!("Nothing was reloaded: {error:#}"),
                }
                service.again(&status);
            }
            _ => break,
        }
    }
    log::info!("Stopping; VMs see a lost device");
    bring_memory_back(&daemon, &mut signals);
    drop(service);
    // Before tenants leave.
    let state = config.api.state.clone().map(StateFile::new);
    if let Some(file) = state.as_ref().map(DebtFile::beside)
        && let Err(error) = file.save(daemon.fleet())
    {
        log::warn!("Lags of tenants are not kept: {error}");
    }
    drop((fronts, api));
    let complete = daemon.close();
    if args.snapshot_at_end {
        print_snapshot(&daemon)?;
    }
    anyhow::ensure!(
        complete,
        "The ledger lacks the end of this run; the log says why"
    );
    Ok(())
}

/// Brings programs' memory from the host back to the GPU, as much as fits, because programs that
/// lack some end with the daemon. Another signal to end stops the wait.
fn bring_memory_back(daemon: &Daemon, signals: &mut Signals) {
    /// TIMEOUT: 128 GiB take three seconds (measured on an H200). The service manager waits for
    /// longer (`TimeoutStopSec`).
    const LIMIT: Duration = Duration::from_secs(20);
    const REPORT_INTERVAL: Duration = Duration::from_secs(1);
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    let begin = Instant::now();
    let mut reported_at: Option<Instant> = None;
    let members = daemon.fleet().members();
    for member in members {
        member.host.bring_memory_back();
    }
    let left = loop {
        let home = members.iter().map(|member| member.host.homecoming());
        let home = home.fold(Homecoming::default(), Homecoming::and);
        let ends = |signal| matches!(signal, SIGINT | SIGTERM);
        if home.left_bytes == 0 || begin.elapsed() >= LIMIT || signals.pending().any(ends) {
            break home;
        }
        if reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            reported_at = Some(Instant::now());
            let mib = home.left_bytes.div_ceil(1 << 20);
            log::info!("Bringing back GPU memory of programs, {mib} MiB left");
        }
        thread::sleep(POLL_INTERVAL);
    };
    if left.left_bytes > 0 {
        let mib = left.left_bytes.div_ceil(1 << 20);
        log::warn!("{mib} MiB of GPU memory did not come back; programs that lack some end");
    } else if reported_at.is_some() {
        log::info!("GPU memory of programs is back");
    }
    for name in left.lost {
        log::warn!("The GPU has no room for the memory of {name}, which ends");
    }
}

/// Applies what may change while the daemon runs, all of it or nothing, and prints what waits for a
/// restart.
fn reload(
    options: &Options,
    before: &Effective,
    daemon: &Daemon,
    api: &Api,
) -> anyhow::Result<Effective> {
    let mut now = options.effective()?;
    let Reloaded { taken, waiting } = changed(before, &now);
    let config = &now.config;
    let weight = Weight::new(config.scheduling.default_weight)?;
    let prices = config.ledger.prices.as_deref();
    let AccountsConfig {
        entries, fronts, ..
    } = AccountsConfig::from(config);
    let entries = resolve_all(entries)?;
    api.reload(&config.api, &config.metrics, prices)?;
    daemon.fleet().configure_accounts(&entries, &fronts);
    daemon.fleet().set_default_weight(weight);
    let list = |keys: &[&str]| match keys {
        [] => "nothing".to_owned(),
        keys => keys.join(", "),
    };
    log::info!(
        "Reloaded; now in force: {}; waits for a restart: {}",
        list(&taken),
        list(&waiting)
    );
    // Keys that are not in force are reported again by the next reload.
    for key in waiting {
        if let Some(setting) = before.settings.get(key) {
            now.settings.insert(key, setting.clone());
        }
    }
    Ok(now)
}

/// Raises the limit of open files to the permitted maximum: a VM takes some forty, and the 1,024 of
/// most shells are too few.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    if let Err(error) = raised {
        log::warn!("The limit of open files stays: {error}");
    }
}

#[cfg(test)]
mod tests {
    use turnstile_daemon::config::Layers;

    use super::*;

    fn effective(path: &str, text: &str) -> Effective {
        let mut layers = Layers::new();
        layers.text(Path::new(path), text);
        layers.finish().unwrap()
    }

    #[test]
    fn software_gpu_beside_an_nvidia_gpu_has_to_be_meant() {
        let (none, meant) = ("", "[gpu]\nkind = \"soft\"\n");
        for text in [none, meant] {
            assert!(
                software_by_default(&effective(DEFAULT_PATH, text), false)
                    .unwrap()
                    .is_none()
            );
        }
        assert!(
            software_by_default(&effective(DEFAULT_PATH, meant), true)
                .unwrap()
                .is_none()
        );
        let cards = "[[card]]\nkind = \"nvidia\"\n";
        let named = software_by_default(&effective(DEFAULT_PATH, cards), true);
        assert!(named.unwrap().is_none());
        let error = software_by_default(&effective(DEFAULT_PATH, none), true).unwrap_err();
        assert!(error.to_string().contains("gpu.kind is not set"), "{error}");
        let warned = software_by_default(&effective("own.toml", none), true).unwrap();
        assert!(warned.is_some());
    }

    #[test]
    fn start_names_gpu_sockets_ledger_and_files() {
        let effective = effective("site.toml", "[ledger]\npath = \"/var/l\"\nnode = \"n\"\n");
        let mut config = effective.config.clone();
        config.sockets.vmm = "/run/x/vmm.sock".into();
        name_sockets(&mut config);
        let policies = ["dfq".to_owned()];
        let lines = started(&effective, &config, &policies).unwrap();
        assert_eq!(lines[0], "GPU: Software GPU (software-0), policy dfq");
        assert_eq!(
            lines[1],
            "Listening on /run/x/vmm.sock (VMs and programs), /run/x/api.sock (API), /run/x/api-ro.sock (API)"
        );
        assert_eq!(lines[2], "Ledger: /var/l, node n");
        assert_eq!(lines[3], "Configuration: site.toml");
        config.ledger.path = None;
        let lines = started(&effective, &config, &policies).unwrap();
        assert!(lines[2].contains("none is kept"));
    }
}
