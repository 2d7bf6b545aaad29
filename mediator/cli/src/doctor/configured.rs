//! Whether what is configured can work: configuration, GPU, sockets, ledger, files, disk, daemon.
//!
//! - In: the configuration's layers, as `serve` reads them, and the caller's own access.
//! - Out: a finding for each part. A part that is configured and cannot work is broken; a daemon
//!   that does not run is not.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use turnstile_accounting::export::PriceList;
use turnstile_api::StateFile;
use turnstile_api::client::{Client, ClientError};
use turnstile_daemon::config::{Config, ConfigError, GpuKind, LedgerSection};
use turnstile_host::run_folder;

use crate::finding::{Feature, Finding, with_causes};
use crate::gpus::on_this_host;
use crate::ledger;
use crate::options::Files;
use crate::serve::NVIDIA_CONTROL;

/// Free bytes below which a ledger's disk is too small. SOURCE: docs/SPECIFICATION.md: 100 MB a
/// day with 256 tenants.
const DISK_BYTES_MIN: u64 = 100_000_000;

pub(super) fn findings(files: &Files) -> Vec<Finding> {
    let configuration = Feature {
        name: "Configuration",
        needed_for: "turnstile serve",
        remedy: "Correct these lines; `turnstile config show` prints all keys",
    };
    let effective = match files.layers().map(|layers| layers.finish()) {
        Ok(Ok(effective)) => effective,
        Ok(Err(error)) => {
            let text = error.to_string().replace('\n', "; ");
            return vec![configuration.configured(Err(text))];
        }
        Err(error) => return vec![configuration.configured(Err(format!("{error:#}")))],
    };
    let read = match effective.files.len() {
        0 => "sound; no file was read".to_owned(),
        count => format!("sound; {count} files were read"),
    };
    let config = &effective.config;
    let mut found = vec![
        configuration.configured(Ok(read)),
        gpus(on_this_host(&effective).as_ref()),
        sockets(config),
        daemon(config),
        kept(&config.ledger),
        disk(config),
    ];
    found.extend(named_files(config));
    found
}

/// All GPUs that `serve` shares.
fn gpus(config: Result<&Config, &ConfigError>) -> Finding {
    let feature = Feature {
        name: "Configured GPU",
        needed_for: "turnstile serve",
        remedy: "Name another by gpu.kind, gpu.index, gpu.device or [[card]], or load its driver",
    };
    let found = config.map_err(ToString::to_string);
    feature.configured(found.and_then(|config| {
        let all: Result<Vec<String>, String> = config.cards().iter().map(gpu).collect();
        Ok(all?.join("; "))
    }))
}

/// What a GPU is.
///
/// # Errors
/// What it needs and the host does not have.
fn gpu(config: &Config) -> Result<String, String> {
    let (kind, index) = (config.gpu.kind.name(), config.gpu.index);
    let device = config.gpu.device.clone().unwrap_or_default();
    let (name, needed): (String, Vec<PathBuf>) = match config.gpu.kind {
        GpuKind::Soft | GpuKind::VfioFake => (index.to_string(), Vec::new()),
        GpuKind::Nvidia => {
            let node = format!("/dev/nvidia{index}");
            (index.to_string(), vec![NVIDIA_CONTROL.into(), node.into()])
        }
        GpuKind::Vfio => {
            let folder = Path::new("/sys/bus/pci/devices").join(&device);
            (device, vec![folder])
        }
        GpuKind::VfioUser => (device.clone(), vec![device.into()]),
    };
    match needed.iter().find(|path| !path.exists()) {
        None => Ok(format!("{kind} GPU {name}")),
        Some(path) => Err(format!("{kind} GPU {name}, and no {}", path.display())),
    }
}

/// Why this user cannot make files in a folder; the folder of the run folder may be made.
fn writable(folder: &Path) -> Result<(), String> {
    let existing = match folder.exists() || folder != run_folder::own() {
        true => folder,
        false => folder.parent().unwrap_or(folder),
    };
    access(existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("{}: {error}", existing.display()))
}

fn folder_of(path: &Path) -> &Path {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn sockets(config: &Config) -> Finding {
    let feature = Feature {
        name: "Sockets",
        needed_for: "VMs, programs, the API",
        remedy: "Make the folder, with access for this user, or name another by sockets.vmm, api.socket or vfio_user.folder",
    };
    let api = &config.api;
    let sockets = [
        Some(&config.sockets.vmm),
        api.socket.as_ref(),
        api.read_only_socket.as_ref(),
    ];
    let folders = sockets.into_iter().flatten().map(|path| folder_of(path));
    let folders = folders.chain(config.vfio_user.folder.as_deref());
    let wrong: Vec<String> = folders
        .filter_map(|folder| writable(folder).err())
        .collect();
    feature.configured(match wrong.first() {
        None => Ok(config.sockets.vmm.display().to_string()),
        Some(why) => Err(why.clone()),
    })
}

/// The daemon that this user's clients find.
fn daemon(config: &Config) -> Finding {
    let feature = Feature {
        name: "Daemon",
        needed_for: "VMs, programs, the API",
        remedy: "Read its log: journalctl -u turnstile",
    };
    let beside = || config.sockets.vmm.with_file_name(run_folder::API);
    let socket = config.api.socket.clone().unwrap_or_else(beside);
    match Client::new(&socket).get::<serde_json::Value>("/readyz") {
        Ok(_) => feature.configured(Ok(format!("ready, on {}", socket.display()))),
        Err(ClientError::Unreachable { .. }) => {
            feature.not_probed(&format!("none listens on {}", socket.display()))
        }
        Err(error) => feature.configured(Err(with_causes(&error))),
    }
}

fn kept(section: &LedgerSection) -> Finding {
    let feature = Feature {
        name: "Ledger",
        needed_for: "bills",
        remedy: "Give this user access, restore a backup, or name another by ledger.path or ledger.postgres",
    };
    if section.path.is_none() && section.postgres.is_none() {
        return feature.not_probed("none is kept; ledger.path names a file");
    }
    if let Some(path) = section.path.as_deref().filter(|path| !path.exists()) {
        let made = writable(folder_of(path));
        return feature.configured(made.map(|()| format!("{} will be made", path.display())));
    }
    let gpus = ledger::read(section).and_then(|mut store| Ok(store.gpus()?));
    feature.configured(match gpus {
        Ok(gpus) => Ok(format!("readable, with {} GPUs", gpus.len())),
        Err(error) => Err(format!("{error:#}")),
    })
}

fn disk(config: &Config) -> Finding {
    let feature = Feature {
        name: "Disk",
        needed_for: "ledger, settings",
        remedy: "Free some, or name another folder by ledger.path and api.state",
    };
    let paths = [config.ledger.path.as_deref(), config.api.state.as_deref()];
    let folders: Vec<&Path> = paths.into_iter().flatten().map(folder_of).collect();
    if folders.is_empty() {
        return feature.not_probed("nothing is kept on a disk");
    }
    let mut texts = Vec::new();
    for folder in folders {
        match statvfs(folder) {
            Ok(found) => {
                let free = found.f_bavail.saturating_mul(found.f_frsize);
                let text = format!("{} MB free in {}", free / 1_000_000, folder.display());
                if free < DISK_BYTES_MIN {
                    return feature.configured(Err(text));
                }
                texts.push(text);
            }
            Err(error) => {
                return feature.configured(Err(format!("{}: {error}", folder.display())));
            }
        }
    }
    texts.dedup();
    feature.configured(Ok(texts.join(", ")))
}

/// Files that keys name: settings, certificates, prices, a password.
fn named_files(config: &Config) -> Vec<Finding> {
    let feature = |name| Feature {
        name,
        needed_for: "turnstile serve",
        remedy: "Correct the file, give this user access, or leave its key out",
    };
    let mut found = Vec::new();
    if let Some(path) = &config.api.state {
        let kept = StateFile::new(path.clone()).load();
        let state = kept.map(|kept| format!("{} tenants with settings", kept.tenants.len()));
        let state = state.map_err(|error| with_causes(&error));
        found.push(feature("Kept settings").configured(state));
    }
    if let Some(path) = &config.ledger.prices {
        let prices = PriceList::read(path).map(|_| path.display().to_string());
        let prices = prices.map_err(|error| format!("{}: {}", path.display(), with_causes(&error)));
        found.push(feature("Price list").configured(prices));
    }
    let tls = &config.api.tls;
    let files = [
        &tls.certificate,
        &tls.key,
        &tls.client_ca,
        &config.ledger.postgres_password_file,
    ];
    let files: Vec<&PathBuf> = files.into_iter().flatten().collect();
    if !files.is_empty() {
        let open = |path: &&PathBuf| {
            let error = File::open(path).err()?;
            Some(format!("{}: {error}", path.display()))
        };
        let wrong: Vec<String> = files.iter().filter_map(open).collect();
        let readable = match wrong.is_empty() {
            true => Ok(format!("{} readable", files.len())),
            false => Err(wrong.join(", ")),
        };
        found.push(feature("Keys and passwords").configured(readable));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;

    fn of(config: &Config) -> Vec<Finding> {
        let mut found = vec![
            gpus(Ok(config)),
            sockets(config),
            kept(&config.ledger),
            disk(config),
        ];
        found.extend(named_files(config));
        found
    }

    fn broken(config: &Config) -> Vec<&'static str> {
        let found = of(config).into_iter();
        let broken = found.filter(|finding| finding.state == State::Broken);
        broken.map(|finding| finding.feature).collect()
    }

    #[test]
    fn what_is_configured_and_cannot_work_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.gpu.kind = GpuKind::Soft;
        config.sockets.vmm = folder.path().join("vmm.sock");
        assert_eq!(broken(&config), [""; 0]);
        config.ledger.path = Some(folder.path().join("ledger"));
        config.api.state = Some(folder.path().join("state.json"));
        assert_eq!(broken(&config), [""; 0], "both will be made");
        std::fs::write(folder.path().join("ledger"), "no ledger").unwrap();
        std::fs::write(folder.path().join("state.json"), "{").unwrap();
        config.ledger.prices = Some(folder.path().join("missing.toml"));
        config.api.tls.key = Some(folder.path().join("missing.pem"));
        config.gpu.kind = GpuKind::VfioUser;
        config.gpu.device = Some("/nowhere".into());
        config.sockets.vmm = folder.path().join("missing/vmm.sock");
        let all = [
            "Configured GPU",
            "Sockets",
            "Ledger",
            "Kept settings",
            "Price list",
            "Keys and passwords",
        ];
        assert_eq!(broken(&config), all);
        config.ledger.path = Some(folder.path().join("missing/ledger"));
        assert!(broken(&config).contains(&"Disk"));
    }
}
