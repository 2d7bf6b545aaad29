//! `turnstile account`: accounts of a running daemon, and what is set of them.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};
use turnstile_api::accounts::Account;

use turnstile_figures::columns::table;
use turnstile_policies::Weight;

use super::admin::{Admin, escaped};
use super::vm::{Mib, PERIOD_MS, Quota, cap, mib, nothing_to_set, quota};

/// Arguments of `account`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Accounts of the configuration and the API, and those of which a tenant has connected
    List,
    /// One account
    Get {
        /// The account's name
        name: String,
    },
    /// Set something of an account: weight and quota hold from the next decision on, the rest for
    /// tenants that connect from now on
    Set(SetArgs),
    /// Forget what was set of an account without tenants, and free its tenants' names
    Forget {
        /// The account's name
        name: String,
    },
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    /// The account's name
    name: String,
    /// Tenant names that belong to it, as in web-*; may be repeated, replaces those before
    #[arg(long = "match", value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Unix user, by name or number: its tenants belong to the account; or any
    #[arg(long)]
    user: Option<String>,
    /// Its share relative to other accounts
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Weight::MAX)))]
    weight: Option<u32>,
    /// The largest weight that one of its tenants may claim
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Weight::MAX)))]
    weight_max: Option<u32>,
    /// The most of the engine that its tenants get together, as in 25%, or max for no limit
    #[arg(long, value_parser = quota)]
    quota: Option<Quota>,
    /// Length of the periods that the quota is counted in, in milliseconds
    #[arg(long, requires = "quota", value_parser = clap::value_parser!(u64).range(PERIOD_MS))]
    period_ms: Option<u64>,
    /// GPU memory that its tenants may claim together, in MiB, or max for no limit
    #[arg(long, value_name = "MIB")]
    memory_max: Option<Mib>,
    /// Tenants that it may have connected at a time; 0 for no limit
    #[arg(long)]
    tenants_max: Option<u32>,
    /// Also if there is no such account yet
    #[arg(long)]
    new: bool,
}

impl SetArgs {
    fn changes(&self) -> Map<String, Value> {
        let mut changes = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                changes.insert(name.to_owned(), value);
            }
        };
        let named = !self.patterns.is_empty();
        put("match", named.then(|| json!(self.patterns)));
        let user = self.user.as_deref();
        put(
            "user",
            user.map(|user| json!(Some(user).filter(|user| *user != "any"))),
        );
        put("weight", self.weight.map(|weight| json!(weight)));
        put("weight_max", self.weight_max.map(|weight| json!(weight)));
        put(
            "memory_max_bytes",
            self.memory_max.map(|mib| json!(mib.bytes())),
        );
        let tenants = self.tenants_max;
        put(
            "tenants_max",
            tenants.map(|max| json!(Some(max).filter(|max| *max > 0))),
        );
        if let Some(quota) = self.quota {
            quota.enter(self.period_ms, &mut changes);
        }
        changes
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let admin = &args.admin;
    admin.exit(match &args.command {
        Command::List => admin.list("/v1/accounts", show),
        Command::Get { name } => admin.get(&path(name), show),
        Command::Set(set) => run_set(admin, set),
        Command::Forget { name } => {
            let forgotten = admin.client().delete(&path(name));
            forgotten.map_err(Into::into)
        }
    })
}

/// An account's resource.
fn path(name: &str) -> String {
    format!("/v1/accounts/{}", escaped(name))
}

fn run_set(admin: &Admin, args: &SetArgs) -> anyhow::Result<()> {
    let name = &args.name;
    let body = args.new.then(|| json!({ "name": name }));
    let made = body.map(|body| ("/v1/accounts", body));
    if args.changes().is_empty() && made.is_none() {
        let options = "--weight, --quota, --memory-max, --match, --user";
        return Err(nothing_to_set(options).into());
    }
    admin.client().patch(&path(name), args.changes(), made)?;
    admin.get(&path(name), show)
}

fn show(accounts: &[Account]) {
    let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
    let row = |account: &Account| {
        vec![
            account.name.clone(),
            account.origin.clone(),
            or(
                Some(account.patterns.join(" ")).filter(|text| !text.is_empty()),
                "-",
            ),
            or(account.user.clone(), "-"),
            account.weight.to_string(),
            account.weight_max.to_string(),
            cap(account.quota_us, account.period_us),
            mib(account.memory_max_bytes),
            or(account.tenants_max.map(|max| max.to_string()), "max"),
        ]
    };
    let rows: Vec<Vec<String>> = accounts.iter().map(row).collect();
    let head = [
        "NAME",
        "FROM",
        "MATCH",
        "USER",
        "WEIGHT",
        "WEIGHT-MAX",
        "CAP",
        "MEM-MAX",
        "TENANTS-MAX",
    ];
    table(&head, &rows);
}
