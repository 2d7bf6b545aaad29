//! `turnstile vm`: tenants of a running daemon, and what is set of them.

mod declare;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Subcommand;
use serde_json::{Map, Value, json};
use turnstile_api::client::ClientError;
use turnstile_api::vm::{Vm, VmMetadata};

use turnstile_figures::columns::table;
use turnstile_policies::{Cap, Weight};

use super::admin::{Admin, escaped};
use super::identity::label;
use declare::CreateArgs;
pub(crate) use declare::DrainArgs;

/// Arguments of `vm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Tenants that are connected, and those of which something is set
    List,
    /// One tenant
    Get {
        /// The tenant's name
        name: String,
    },
    /// Declare a VM, which gets a socket of its own, and print the socket
    Create(CreateArgs),
    /// Remove a declared VM and its socket, once it has no work
    Delete {
        /// The VM's name
        name: String,
        #[command(flatten)]
        drain: DrainArgs,
    },
    /// End a VM's use of its GPU once it has no work; a declared VM is then placed anew
    Drain {
        /// The VM's name
        name: String,
        #[command(flatten)]
        drain: DrainArgs,
    },
    /// Set something of a tenant, from the next decision on
    Set(SetArgs),
    /// Forget what is set of a tenant that is not connected, and free its name for other accounts
    Forget {
        /// The tenant's name
        name: String,
    },
}

#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
struct SetArgs {
    /// The tenant's name
    name: String,
    /// Its share relative to others
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Weight::MAX)))]
    weight: Option<u32>,
    /// The most of the engine that it gets, as in 25%, or max for no limit
    #[arg(long, value_parser = quota)]
    quota: Option<Quota>,
    /// Length of the periods that the quota is counted in, in milliseconds
    #[arg(long, requires = "quota", value_parser = clap::value_parser!(u64).range(PERIOD_MS))]
    period_ms: Option<u64>,
    /// Whether time slices of other tenants are short while it is resident for less than its part
    #[arg(long)]
    latency_target: Option<bool>,
    /// Whether its turns on its GPUs coincide, where kernels wait for each other
    #[arg(long)]
    gang: Option<bool>,
    /// GPU memory that is never taken from it, in MiB
    #[arg(long, value_name = "MIB")]
    memory_min: Option<Mib>,
    /// GPU memory above which its own goes first, in MiB, or max for no such bound
    #[arg(long, value_name = "MIB")]
    memory_high: Option<Mib>,
    /// GPU memory that it may allocate, in MiB, or max for what it brought
    #[arg(long, value_name = "MIB")]
    memory_max: Option<Mib>,
    /// UUID of its instance; an empty text for what it brought
    #[arg(long, value_name = "UUID")]
    instance_id: Option<String>,
    /// Its project; an empty text for what it brought
    #[arg(long)]
    project: Option<String>,
    /// A label; KEY- for what it brought. May be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label_change)]
    labels: Vec<(String, Option<String>)>,
    /// Also if it has not connected yet
    #[arg(long)]
    expect: bool,
}

/// A label as an argument: set, or unset.
fn label_change(text: &str) -> Result<(String, Option<String>), String> {
    match text.strip_suffix('-') {
        Some(key) if !text.contains('=') => Ok((key.to_owned(), None)),
        _ => label(text).map(|(key, value)| (key, Some(value))),
    }
}

/// Memory in MiB, or no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mib(Option<u32>);

impl Mib {
    pub(super) fn bytes(self) -> Option<u64> {
        self.0.map(|mib| u64::from(mib) << 20)
    }
}

impl FromStr for Mib {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "max" => Ok(Self(None)),
            text => text.parse().map(|mib| Self(Some(mib))),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quota {
    Max,
    Percent(f64),
}

/// Lengths of a quota's period, in milliseconds.
pub(super) const PERIOD_MS: std::ops::RangeInclusive<u64> =
    Cap::PERIOD_MIN.0 / 1_000_000..=Cap::PERIOD_MAX.0 / 1_000_000;

/// Period of a quota that is given without one, in microseconds.
const PERIOD_US: u64 = 100_000;

pub(super) fn quota(text: &str) -> Result<Quota, String> {
    if text == "max" {
        return Ok(Quota::Max);
    }
    let number = text.strip_suffix('%').and_then(|text| text.parse().ok());
    number
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(Quota::Percent)
        .ok_or_else(|| "a part of the engine as in 25%, or max".to_owned())
}

impl SetArgs {
    /// The changes to the limits of its memory.
    fn memory(&self) -> Map<String, Value> {
        let mut changes = Map::new();
        if let Some(min) = self.memory_min {
            changes.insert("min_bytes".into(), json!(min.bytes().unwrap_or(0)));
        }
        let others = [
            ("high_bytes", self.memory_high),
            ("max_bytes", self.memory_max),
        ];
        for (name, limit) in others {
            if let Some(limit) = limit {
                changes.insert(name.into(), json!(limit.bytes()));
            }
        }
        changes
    }

    /// The changes to instance id, project and labels.
    fn metadata(&self) -> Map<String, Value> {
        let texts = [
            ("instance_id", &self.instance_id),
            ("project", &self.project),
        ];
        let set = |(name, text): (&str, &Option<String>)| {
            let text = text.as_ref()?;
            Some((
                name.to_owned(),
                json!(Some(text).filter(|text| !text.is_empty())),
            ))
        };
        let mut changes: Map<String, Value> = texts.into_iter().filter_map(set).collect();
        let labels = self.labels.iter().cloned();
        let labels: BTreeMap<String, Option<String>> = labels.collect();
        if !labels.is_empty() {
            changes.insert("labels".into(), json!(labels));
        }
        changes
    }

    /// The changes to how it is scheduled.
    fn scheduling(&self) -> Map<String, Value> {
        let mut changes = Map::new();
        if let Some(weight) = self.weight {
            changes.insert("weight".into(), json!(weight));
        }
        if let Some(quota) = self.quota {
            quota.enter(self.period_ms, &mut changes);
        }
        if let Some(target) = self.latency_target {
            changes.insert("latency_target".into(), json!(target));
        }
        if let Some(gang) = self.gang {
            changes.insert("gang".into(), json!(gang));
        }
        changes
    }
}

impl Quota {
    /// Puts it into a patch, counted in periods of `period_ms`.
    pub(super) fn enter(self, period_ms: Option<u64>, changes: &mut Map<String, Value>) {
        let (quota_us, period_us) = match self {
            Self::Max => (None, None),
            Self::Percent(percent) => {
                let period_us = period_ms.map_or(PERIOD_US, |ms| ms * 1_000);
                // CAST: at most a second's microseconds
                let quota_us = (period_us as f64 * percent / 100.0).round() as u64;
                (Some(quota_us), Some(period_us))
            }
        };
        changes.insert("quota_us".into(), json!(quota_us));
        changes.insert("period_us".into(), json!(period_us));
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let admin = &args.admin;
    admin.exit(match &args.command {
        Command::List => admin.list("/v1/vms", show),
        Command::Get { name } => admin.get(&path(name, ""), show),
        Command::Create(create) => declare::create(admin, create),
        Command::Delete { name, drain } => declare::delete(admin, name, *drain),
        Command::Drain { name, drain } => declare::drain(admin, name, *drain),
        Command::Set(set) => run_set(admin, set),
        Command::Forget { name } => {
            let forgotten = admin.client().delete(&path(name, ""));
            forgotten.map_err(Into::into)
        }
    })
}

/// A tenant's resource.
fn path(name: &str, below: &str) -> String {
    format!("/v1/vms/{}{below}", escaped(name))
}

fn run_set(admin: &Admin, args: &SetArgs) -> anyhow::Result<()> {
    let name = &args.name;
    let parts = [
        ("scheduling", args.scheduling()),
        ("memory", args.memory()),
        ("metadata", args.metadata()),
    ];
    if parts.iter().all(|(_, changes)| changes.is_empty()) {
        let options = "--weight, --quota, --latency-target, --memory-max, --label";
        return Err(nothing_to_set(options).into());
    }
    for (part, changes) in parts {
        if changes.is_empty() {
            continue;
        }
        let body = args.expect.then(|| json!({ "name": name }));
        let made = body.map(|body| ("/v1/vms", body));
        admin
            .client()
            .patch(&path(name, &format!("/{part}")), changes, made)?;
    }
    admin.get(&path(name, ""), show)
}

/// The error of a command that sets nothing.
pub(super) fn nothing_to_set(options: &str) -> ClientError {
    ClientError::Nothing {
        options: options.to_owned(),
    }
}

/// A limit of memory in MiB.
pub(super) fn mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "max".to_owned(), |bytes| (bytes >> 20).to_string())
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.2}%", part * 100.0)
}

pub(super) fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}

/// Bytes in units of 10^9, as bills have them.
pub(super) fn gigabytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "-".to_owned(),
        |bytes| format!("{:.3}", bytes as f64 / 1e9),
    )
}

/// A quota as a part of the engine.
pub(super) fn cap(quota_us: Option<u64>, period_us: Option<u64>) -> String {
    match (quota_us, period_us) {
        (Some(quota), Some(period)) => percent(quota as f64 / period as f64),
        _ => "max".into(),
    }
}

/// Labels as KEY=VALUE, with commas between them, and the instance id as one of them.
fn labels(metadata: &VmMetadata) -> String {
    let id = metadata
        .instance_id
        .iter()
        .map(|id| format!("instance-id={id}"));
    let labels = metadata.labels.iter();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.escape_debug()));
    let all: Vec<String> = id.chain(labels).collect();
    match all.len() {
        0 => "-".into(),
        _ => all.join(","),
    }
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn show(vms: &[Vm]) {
    let absent = || "-".to_owned();
    let rows: Vec<Vec<String>> = vms
        .iter()
        .map(|vm| {
            let scheduling = &vm.scheduling;
            let cap = cap(scheduling.quota_us, scheduling.period_us);
            let state = match (vm.admitted, &vm.attachment, &vm.waiting) {
                (None, _, Some(waiting)) => format!("waiting {}", waiting.place),
                (None, None, None) => "absent".to_owned(),
                (None, Some(attachment), None) => attachment.state.name().to_owned(),
                (Some(true), ..) => "admitted".to_owned(),
                (Some(false), ..) => "held".to_owned(),
            };
            vec![
                vm.name.clone(),
                vm.kind.clone().unwrap_or_else(absent),
                state,
                match &*vm.gpus {
                    [] => vm.gpu.clone().unwrap_or_else(absent),
                    gpus => gpus.join(","),
                },
                vm.account.clone().unwrap_or_else(absent),
                scheduling.weight.to_string(),
                cap,
                yes(scheduling.latency_target),
                yes(scheduling.gang),
                mib(Some(vm.limits.min_bytes)),
                mib(vm.limits.high_bytes),
                mib(vm.limits.max_bytes),
                vm.entitled_ratio.map_or_else(absent, percent),
                vm.usage
                    .map_or_else(absent, |usage| seconds(usage.compute_ns)),
                vm.usage.map_or_else(absent, |usage| seconds(usage.copy_ns)),
                vm.usage
                    .map_or_else(absent, |usage| gigabytes(usage.copy_bytes)),
                vm.usage.map_or_else(absent, |usage| seconds(usage.held_ns)),
                vm.metadata.project.clone().unwrap_or_else(absent),
                labels(&vm.metadata),
            ]
        })
        .collect();
    let head = [
        "NAME",
        "KIND",
        "STATE",
        "GPU",
        "ACCOUNT",
        "WEIGHT",
        "CAP",
        "LATENCY",
        "GANG",
        "MEM-MIN",
        "MEM-HIGH",
        "MEM-MAX",
        "ENTITLED-1S",
        "GPU-SEC",
        "COPY-SEC",
        "COPY-GB",
        "HELD-SEC",
        "PROJECT",
        "LABELS",
    ];
    table(&head, &rows);
    let waiting = vms.iter().filter_map(|vm| Some((vm, vm.waiting.as_ref()?)));
    for (vm, waiting) in waiting {
        println!(
            "{} is {} in line: {}",
            vm.name, waiting.place, waiting.reason
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_parts_of_the_engine() {
        assert_eq!(quota("max"), Ok(Quota::Max));
        assert_eq!(quota("12.5%"), Ok(Quota::Percent(12.5)));
        for text in ["", "25", "101%", "-1%", "NaN%", "%"] {
            assert!(quota(text).is_err(), "{text}");
        }
    }

    #[test]
    fn labels_are_set_and_unset() {
        let set = |key: &str, value: &str| Ok((key.into(), Some(value.into())));
        assert_eq!(label_change("a=b=c-"), set("a", "b=c-"));
        assert_eq!(label_change("a="), set("a", ""));
        assert_eq!(label_change("a-"), Ok(("a".into(), None)));
        assert!(label_change("a").is_err());
    }

    #[test]
    fn a_name_is_escaped_in_the_path() {
        assert_eq!(path("a-1.b_c", "/scheduling"), "/v1/vms/a-1.b_c/scheduling");
        assert_eq!(path("../x?y", ""), "/v1/vms/..%2Fx%3Fy");
    }
}
