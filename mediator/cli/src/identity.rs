//! `--instance-id`, `--project` and `--label`: what a tenant brings beside its name.
//!
//! In: arguments of `run`, `vmm` and `cuda-vm`. Out: metadata, checked by the daemon's rule before
//! anything starts, in the form in which they are sent.

use std::collections::BTreeMap;

use turnstile_accounting::Metadata;
use turnstile_daemon::{NAME_RULE, is_tenant_name};
use turnstile_vmm::wire;

/// Identity of a tenant.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Identity {
    /// UUID of its instance: the same resource in bills under any name and on any host
    #[arg(long, value_name = "UUID")]
    instance_id: Option<String>,
    /// Its project
    #[arg(long)]
    project: Option<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl Identity {
    /// The metadata, as they are sent.
    ///
    /// # Errors
    /// If a value is outside the limits.
    pub(crate) fn sent(&self) -> anyhow::Result<wire::Metadata> {
        let labels: BTreeMap<String, String> = self.labels.iter().cloned().collect();
        let metadata = Metadata::new(self.instance_id.as_deref(), self.project.clone(), labels)?;
        Ok(turnstile_daemon::sent(&metadata))
    }
}

/// A label as an argument.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=');
    let split = split.map(|(key, value)| (key.to_owned(), value.to_owned()));
    split.ok_or_else(|| "a label has the form KEY=VALUE".to_owned())
}

/// A name of a tenant as an argument.
pub(crate) fn tenant_name(text: &str) -> Result<String, String> {
    if is_tenant_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a name has {NAME_RULE}; give another name as a label, --label KEY=VALUE"
    ))
}
