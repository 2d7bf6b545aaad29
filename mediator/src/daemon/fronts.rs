//! Sockets for VMs of stock VMMs, whose devices this process serves: to the daemon each is a VMM of its own.

use std::io;
use std::path::{Path, PathBuf};

use turnstile_vmm::front::{Front, FrontConfig};

use super::{DaemonError, listen};

/// Why a VM's socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The folder of the sockets.
    #[error("Making the folder {} for vfio-user sockets failed", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket.
    #[error("The vfio-user socket of a VM could not be made")]
    Listen(#[source] Box<DaemonError>),
    /// A thread.
    #[error("No thread could be had for the vfio-user socket {}", path.display())]
    Start {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Serves the devices of these VMs, each on `folder`/NAME.sock, until what is returned is dropped.
///
/// # Errors
/// When a socket or a thread cannot be had.
pub fn serve_fronts(
    folder: &Path,
    vms: impl IntoIterator<Item = FrontConfig>,
) -> Result<Vec<Front>, FrontError> {
    std::fs::create_dir_all(folder).map_err(|source| FrontError::Folder {
        path: folder.to_owned(),
        source,
    })?;
    let start = |config: FrontConfig| {
        let path = folder.join(format!("{}.sock", config.name));
        let listener = listen(&path).map_err(|error| FrontError::Listen(Box::new(error)))?;
        Front::start(config, listener).map_err(|source| FrontError::Start { path, source })
    };
    vms.into_iter().map(start).collect()
}
