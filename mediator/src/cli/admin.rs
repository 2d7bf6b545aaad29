//! Shared parts of the commands that use a running daemon's API.
//!
//! Exit codes: 0 done; 1 failed; 2 wrong usage, or refused as wrong; 3 not found; 4 no daemon; 5
//! changed meanwhile, or in conflict with what is there; 6 not permitted. Errors go to standard
//! error, with `-o json` as problem+json.

use std::path::PathBuf;
use std::process::ExitCode;

use axum::http::Method;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use turnstile_mediator::api::MERGE_PATCH;
use turnstile_mediator::api::client::{Ask, Client, ClientError, DEFAULT_SOCKET};
use turnstile_mediator::api::page::Page;

/// The daemon, and how results are shown.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Admin {
    /// The daemon's API socket
    #[arg(long, global = true, default_value = DEFAULT_SOCKET, value_name = "SOCKET")]
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

    /// All pages of a list.
    fn all<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let (client, mut all, mut cursor) = (self.client(), Vec::new(), String::new());
        loop {
            let page: Page<T> = client.get(&format!("{path}?limit=1000{cursor}"))?;
            all.extend(page.items);
            match page.next_cursor {
                // Names have no character that would have to be escaped.
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(all),
            }
        }
    }

    /// Requests a list and shows all of it.
    pub(crate) fn list<T: DeserializeOwned + Serialize>(
        &self,
        path: &str,
        table: impl FnOnce(&[T]),
    ) -> Result<(), ClientError> {
        let all: Vec<T> = self.all(path)?;
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

    /// Changes a resource by a merge patch, unless its version changed meanwhile. A resource that
    /// does not exist is created first, if `made` has the collection's path and the body.
    pub(crate) fn patch(
        &self,
        path: &str,
        changes: Map<String, Value>,
        made: Option<(&str, Value)>,
    ) -> Result<(), ClientError> {
        let client = self.client();
        let get = Ask {
            method: Method::GET,
            path,
            body: None,
            if_match: None,
        };
        // A change that another caller makes between these two is not overwritten.
        let etag = match (client.ask(&get), made) {
            (Err(ClientError::Refused(problem)), Some((all, body))) if problem.status == 404 => {
                client.ask(&Ask {
                    method: Method::POST,
                    path: all,
                    body: Some(("application/json", body.to_string().into_bytes())),
                    if_match: None,
                })?;
                client.ask(&get)?.etag
            }
            (answer, _) => answer?.etag,
        };
        let body = Value::Object(changes).to_string().into_bytes();
        client.ask(&Ask {
            method: Method::PATCH,
            body: Some((MERGE_PATCH, body)),
            if_match: etag.as_deref(),
            ..get
        })?;
        Ok(())
    }

    /// Deletes a resource, whatever its version.
    pub(crate) fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.client().ask(&Ask {
            method: Method::DELETE,
            path,
            body: None,
            if_match: Some("*"),
        })?;
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
        match (&error, self.output) {
            (ClientError::Refused(problem), Output::Json) => eprintln!(
                "{}",
                serde_json::to_string_pretty(problem).unwrap_or_default()
            ),
            _ => eprintln!("turnstile: {:#}", anyhow::anyhow!("{error}")),
        }
        error.exit_code().into()
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

/// Columns, each as wide as its widest cell; all but the first to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let widest = cells(column).map(|cell| cell.chars().count()).max();
            widest.unwrap_or(0).max(name.len())
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            if column == 0 {
                text.push_str(&format!("{cell:<width$}"));
            } else {
                text.push_str(&format!("  {cell:>width$}"));
            }
        }
        println!("{}", text.trim_end());
    };
    line(head.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}
