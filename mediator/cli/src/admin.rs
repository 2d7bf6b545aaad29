//! Shared parts of the commands that use a running daemon's API. With `-o json` a refusal is
//! printed as problem+json, with `-o yaml` as the same in YAML.

use std::path::PathBuf;
use std::process::ExitCode;

use super::exit;
use serde::Serialize;
use serde::de::DeserializeOwned;
use turnstile_api::client::{Client, ClientError, default_socket};
use turnstile_figures::output::{Output, OutputError};

/// The daemon, and how results are shown.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Admin {
    /// The daemon's API socket
    #[arg(long, global = true, default_value_os_t = default_socket(), hide_default_value = true, value_name = "SOCKET")]
    pub(crate) api: PathBuf,
    /// How results are shown: JSON and YAML are stable, tables are for people
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub(crate) output: Output,
}

impl Admin {
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.api)
    }

    /// Requests a list and shows all of it.
    pub(crate) fn list<T: DeserializeOwned + Serialize>(
        &self,
        path: &str,
        table: impl FnOnce(&[T]),
    ) -> anyhow::Result<()> {
        let all: Vec<T> = self.client().list(path)?;
        Ok(self.show(&all, |all| table(all))?)
    }

    /// Requests one resource and shows it.
    pub(crate) fn get<T: DeserializeOwned + Serialize>(
        &self,
        path: &str,
        table: impl FnOnce(&[T]),
    ) -> anyhow::Result<()> {
        let one: T = self.client().get(path)?;
        Ok(self.show(&one, |one| table(std::slice::from_ref(one)))?)
    }

    /// Shows a result.
    pub(crate) fn show<T: Serialize>(
        &self,
        result: &T,
        table: impl FnOnce(&T),
    ) -> Result<(), OutputError> {
        self.output.print(result, table)
    }

    /// The exit code for a command's result.
    pub(crate) fn exit(&self, done: anyhow::Result<()>) -> ExitCode {
        let Err(error) = done else {
            return ExitCode::SUCCESS;
        };
        if let Some(refusal @ ClientError::Refused(problem)) = error.downcast_ref()
            && let Ok(Some(text)) = self.output.text(problem)
        {
            eprint!("{text}");
            return refusal.exit_code().into();
        }
        exit::report(&error).into()
    }
}

/// A name within a path.
pub(crate) fn escaped(name: &str) -> String {
    let permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.bytes()
        .map(|byte| match byte {
            byte if permitted(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
