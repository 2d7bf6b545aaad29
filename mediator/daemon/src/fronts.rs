//! Sockets for VMs of stock VMMs. This process serves their devices, and the daemon sees each of
//! them as a VMM.

use std::io;
use std::path::{Path, PathBuf};

use turnstile_vmm::front::{Front, FrontConfig};

use crate::socket::{ListenError, listen};

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
    #[error(transparent)]
    Listen(#[from] ListenError),
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
        let listener = listen(&path, 0o660)?;
        Front::start(config, listener).map_err(|source| FrontError::Start { path, source })
    };
    vms.into_iter().map(start).collect()
}
