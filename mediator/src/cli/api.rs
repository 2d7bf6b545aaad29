//! Arguments that give a daemon its API.

use std::path::{Path, PathBuf};

use turnstile_mediator::api::{Access, ApiConfig, Principal};

/// Where the API listens, and for whom.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ApiArgs {
    /// Unix socket of the admin API; api.sock beside --socket unless named
    #[arg(long)]
    api_socket: Option<PathBuf>,
    /// Unix socket of the admin API on which nobody may write; api-ro.sock beside --socket unless named
    #[arg(long)]
    api_read_only_socket: Option<PathBuf>,
    /// Who may look and change beside root and the daemon's user, as uid:1000 or gid:1000; may be repeated
    #[arg(long, value_name = "WHO")]
    api_operator: Vec<Principal>,
    /// Who may look, as uid:1000 or gid:1000; may be repeated
    #[arg(long, value_name = "WHO")]
    api_viewer: Vec<Principal>,
    /// Keep what is set over restarts, in this file; forgotten when the daemon ends unless it is named
    #[arg(long)]
    state: Option<PathBuf>,
}

impl ApiArgs {
    /// The configuration of a daemon that VMMs find at `socket`.
    pub(crate) fn config(&self, socket: &Path) -> ApiConfig {
        let beside = |named: &Option<PathBuf>, name| {
            Some(named.clone().unwrap_or_else(|| socket.with_file_name(name)))
        };
        ApiConfig {
            socket: beside(&self.api_socket, "api.sock"),
            read_only_socket: beside(&self.api_read_only_socket, "api-ro.sock"),
            access: Access {
                operators: self.api_operator.clone(),
                viewers: self.api_viewer.clone(),
            },
            state: self.state.clone(),
        }
    }
}
