//! CDI documents: what a container runtime gives to the containers of a claim.
//!
//! In: a claim's tenants, with their sockets. Out: one document for each claim, with a device for
//! each of its shares. A document is replaced as a whole.

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::claim::Tenant;
use super::names::{CDI_KIND, VARIABLE};

/// SOURCE: CDI specification: of all that is used here, the mounts are the newest.
const VERSION: &str = "0.5.0";
/// Kind and names of the vendor's own devices, as `nvidia-ctk cdi generate` writes them.
const VENDOR_KIND: &str = "nvidia.com/gpu";

/// The command and its libraries, as the package installs them on the host.
const COMMAND: &str = "/usr/bin/turnstile";
const LIBRARIES: &str = "/usr/lib/turnstile";

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// It could not be written.
    #[error("Writing {} failed; the driver needs to write to that folder", path.display())]
    Write {
        /// The document.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It could not be removed.
    #[error("Removing {} failed", path.display())]
    Remove {
        /// The document.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// How a tenant reaches its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By the socket of its VM.
    Socket(PathBuf),
    /// As a program that `turnstile run` starts.
    Program {
        /// Socket of the daemon.
        daemon: PathBuf,
        /// The GPU by the vendor's name; none where the GPU is of no vendor.
        vendor: Option<String>,
    },
}

/// Names of the CDI devices of a tenant.
pub(crate) fn ids(claim: Uuid, number: usize, tenant: &Tenant, reach: &Reach) -> Vec<String> {
    let own = format!("{CDI_KIND}={}", device_name(claim, number, tenant));
    let vendor = match reach {
        Reach::Program { vendor, .. } => vendor.as_ref(),
        Reach::Socket(_) => None,
    };
    let vendor = vendor.map(|gpu| format!("{VENDOR_KIND}={gpu}"));
    std::iter::once(own).chain(vendor).collect()
}

fn device_name(claim: Uuid, number: usize, tenant: &Tenant) -> String {
    match &tenant.share_id {
        Some(share) => format!("{claim}-{share}"),
        None => format!("{claim}-{number}"),
    }
}

fn mount(host: &Path, container: &Path) -> Value {
    json!({
        "hostPath": host,
        "containerPath": container,
        "options": ["bind", "ro", "nosuid", "nodev"],
    })
}

/// A variable of a container: its request is in the name, as a container may have several.
fn variable(what: &str, request: &str, value: &str) -> String {
    let request = request.to_ascii_uppercase().replace(['-', '/', '.'], "_");
    format!("{VARIABLE}_{what}_{request}={value}")
}

fn device(claim: Uuid, number: usize, tenant: &Tenant, reach: &Reach) -> Value {
    let request = &tenant.request;
    let mut env = vec![variable("NAME", request, &tenant.name)];
    let mounts = match reach {
        Reach::Socket(socket) => {
            env.push(variable("SOCKET", request, &socket.to_string_lossy()));
            // The folder: the daemon makes the socket in it anew.
            let folder = socket.parent().unwrap_or(socket);
            vec![mount(folder, folder)]
        }
        Reach::Program { daemon, .. } => {
            let memory = tenant.memory_bytes.to_string();
            env.push(variable("MEMORY", request, &memory));
            let paths = [Path::new(COMMAND), Path::new(LIBRARIES), daemon];
            paths.map(|path| mount(path, path)).into()
        }
    };
    json!({
        "name": device_name(claim, number, tenant),
        "containerEdits": { "env": env, "mounts": mounts },
    })
}

/// The document of a claim.
pub(crate) fn document(claim: Uuid, tenants: &[(Tenant, Reach)]) -> Value {
    let numbered = tenants.iter().enumerate();
    let devices = numbered.map(|(number, (tenant, reach))| device(claim, number, tenant, reach));
    json!({
        "cdiVersion": VERSION,
        "kind": CDI_KIND,
        "devices": devices.collect::<Vec<_>>(),
    })
}

fn path(folder: &Path, claim: Uuid) -> PathBuf {
    folder.join(format!("{}-{claim}.json", CDI_KIND.replace('/', "-")))
}

/// Writes a claim's document, over one that was there.
///
/// # Errors
/// If the folder takes none.
pub(crate) fn write(
    folder: &Path,
    claim: Uuid,
    tenants: &[(Tenant, Reach)],
) -> Result<(), CdiError> {
    let path = path(folder, claim);
    let write = || {
        // Its name does not end as that of a document until it is whole.
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(document(claim, tenants).to_string().as_bytes())?;
        file.persist(&path)?;
        Ok(())
    };
    write().map_err(|source| CdiError::Write {
        path: path.clone(),
        source,
    })
}

/// Removes a claim's document, if there is one.
///
/// # Errors
/// If it stays.
pub(crate) fn remove(folder: &Path, claim: Uuid) -> Result<(), CdiError> {
    let path = path(folder, claim);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(CdiError::Remove { path, source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GpuConfig;

    const CLAIM: Uuid = Uuid::from_u128(7);

    fn tenant(request: &str, share_id: Option<&str>) -> Tenant {
        Tenant {
            name: "team.train.00000000".into(),
            instance: Uuid::from_u128(8),
            request: request.into(),
            device: "gpu-0".into(),
            share_id: share_id.map(str::to_owned),
            share: 50,
            memory_bytes: 2 << 20,
            config: GpuConfig::default(),
        }
    }

    #[test]
    fn program_gets_the_command_and_the_vendors_device_but_no_api() {
        let tenant = tenant("big-gpu", Some("s1"));
        let reach = Reach::Program {
            daemon: "/run/turnstile/vmm.sock".into(),
            vendor: Some("GPU-1".into()),
        };
        let ids = ids(CLAIM, 0, &tenant, &reach);
        let own = format!("{CDI_KIND}={CLAIM}-s1");
        assert_eq!(ids, [own, "nvidia.com/gpu=GPU-1".to_owned()]);
        let document = document(CLAIM, &[(tenant, reach)]);
        let edits = &document["devices"][0]["containerEdits"];
        let paths: Vec<&Value> = edits["mounts"].as_array().unwrap().iter().collect();
        let paths: Vec<&str> = paths
            .iter()
            .map(|one| one["hostPath"].as_str().unwrap())
            .collect();
        assert_eq!(paths, [COMMAND, LIBRARIES, "/run/turnstile/vmm.sock"]);
        assert_eq!(edits["env"][1], "TURNSTILE_CLAIM_MEMORY_BIG_GPU=2097152");
    }

    #[test]
    fn share_without_an_id_has_its_number() {
        let reach = Reach::Socket("/run/turnstile/vms/x/vmm.sock".into());
        let ids = ids(CLAIM, 3, &tenant("gpu", None), &reach);
        assert_eq!(ids, [format!("{CDI_KIND}={CLAIM}-3")]);
    }
}
