//! What the daemon gives up before it has threads: privileges, and files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use turnstile_daemon::accounts::Entry;
use turnstile_daemon::config::{Config, GpuKind};
use turnstile_daemon::resolve_all;
use turnstile_host::confine::{self, Files, Plan};

/// Gives up privileges that this daemon does not need, before it has threads.
pub(super) fn confine(config: &Config, file: &Path) -> anyhow::Result<()> {
    let cards = config.cards();
    let software = cards.iter().all(|card| card.gpu.kind == GpuKind::Soft);
    let safety = &config.safety;
    let files = safety.landlock.then(|| files(config, file));
    confine::plan(Plan {
        seccomp: safety.seccomp,
        software,
        api_files: files.clone().filter(|_| !software),
        keep_capabilities: safety.keep_capabilities,
    });
    if !software {
        return Ok(());
    }
    if !safety.keep_capabilities {
        confine::give_up_capabilities().context("Giving up capabilities failed")?;
    }
    if let Some(files) = files
        && !confine::restrict_files(&files).context("Giving up files failed")?
    {
        log::info!("This kernel has no Landlock: the daemon can reach what its user can reach");
    }
    // The name service loads its libraries now: memory that is mapped later cannot become code.
    let entry = Entry {
        user: Some("root".into()),
        ..Entry::default()
    };
    let _ = resolve_all(vec![("root".into(), entry)]);
    confine::enter(confine::Role::Process);
    Ok(())
}

/// The folders of the files in the configuration.
fn files(config: &Config, file: &Path) -> Files {
    let (ledger, api) = (&config.ledger, &config.api);
    let folders = |paths: &[&Option<PathBuf>]| -> Vec<PathBuf> {
        let named = paths.iter().filter_map(|path| path.as_deref());
        named.map(confine::folder_of).collect()
    };
    let trace = &config.gpu.soft.trace;
    let sockets = [&api.socket, &api.read_only_socket];
    let mut writable = folders(&[&ledger.path, &api.state, sockets[0], sockets[1], trace]);
    writable.push(confine::folder_of(&config.sockets.vmm));
    if let Some(fronts) = &config.vfio_user.folder {
        // Their sockets, and the devices by which doorbell writes are noticed.
        writable.extend([fronts.clone(), PathBuf::from("/dev")]);
    }
    // SQLite sorts large results there. Landlock does not restrict the connection to a PostgreSQL
    // server's socket.
    writable.push(std::env::temp_dir());
    let tls = [&api.tls.certificate, &api.tls.key, &api.tls.client_ca];
    let mut readable = folders(&tls);
    readable.extend(folders(&[&ledger.postgres_password_file, &ledger.prices]));
    // A reload reads the configuration again.
    readable.push(confine::folder_of(file));
    Files { readable, writable }
}
