//! From the configuration to the API that a daemon has.

use std::path::PathBuf;

use turnstile_mediator::api::{Access, ApiConfig};
use turnstile_mediator::config::Config;

/// The API of a daemon that is told this.
pub(super) fn config(config: &Config) -> anyhow::Result<ApiConfig> {
    let api = &config.api;
    let beside = |named: &Option<PathBuf>, name| {
        let beside = || config.sockets.vmm.with_file_name(name);
        Some(named.clone().unwrap_or_else(beside))
    };
    Ok(ApiConfig {
        socket: beside(&api.socket, "api.sock"),
        read_only_socket: beside(&api.read_only_socket, "api-ro.sock"),
        access: Access::new(&api.operators, &api.viewers)?,
        state: api.state.clone(),
    })
}
