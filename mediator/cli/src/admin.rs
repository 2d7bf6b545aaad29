//! Shared parts of the commands that use a running daemon's API. With `-o json` a refusal is
//! printed as problem+json.

use std::path::PathBuf;
use std::process::ExitCode;

use super::exit;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;
use turnstile_api::client::{Client, ClientError, default_socket};

/// The daemon, and how results are shown.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Admin {
    /// The daemon's API socket
    #[arg(long, global = true, default_value_os_t = default_socket(), hide_default_value = true, value_name = "SOCKET")]
    pub(crate) api: PathBuf,
    /// How results are shown: JSON is stable, tables are for people
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table
    Table,
    /// JSON
    Json,
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
    ) -> Result<(), ClientError> {
        let all: Vec<T> = self.client().list(path)?;
        self.show(&all, |all| table(all));
        Ok(())
    }

    /// Requests one resource and shows it.
    pub(crate) fn get<T: DeserializeOwned + Serialize>(
        &self,
        path: &str,
        table: impl FnOnce(&[T]),
    ) -> Result<(), ClientError> {
        let one: T = self.client().get(path)?;
        self.show(&one, |one| table(std::slice::from_ref(one)));
        Ok(())
    }

    /// Shows a result.
    pub(crate) fn show<T: Serialize>(&self, result: &T, table: impl FnOnce(&T)) {
        match self.output {
            Output::Table => table(result),
            Output::Json => println!(
                "{}",
                serde_json::to_string_pretty(result).unwrap_or_default()
            ),
        }
    }

    /// The exit code for a command's result.
    pub(crate) fn exit(&self, done: Result<(), ClientError>) -> ExitCode {
        let Err(error) = done else {
            return ExitCode::SUCCESS;
        };
        if let (ClientError::Refused(problem), Output::Json) = (&error, self.output) {
            eprintln!(
                "{}",
                serde_json::to_string_pretty(problem).unwrap_or_default()
            );
            return error.exit_code().into();
        }
        exit::report(&error.into()).into()
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
