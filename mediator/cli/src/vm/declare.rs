//! `turnstile vm create`, `delete` and `drain`: VMs with sockets of their own.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use turnstile_api::attachment::AttachmentBody;
use turnstile_api::client::{Call, Client, ClientError, Method};
use turnstile_api::vm::Vm;
use turnstile_daemon::declared::{AttachmentKind, Life};
use turnstile_policies::Weight;
use uuid::Uuid;

use super::{Mib, PERIOD_MS, Quota, path, quota, show};
use crate::admin::Admin;
use crate::identity::{Identity, tenant_name};

/// Interval at which the end of a drain is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// TIMEOUT: between the end of a drain's time and the end of the tenant's connection.
const GRACE: Duration = Duration::from_secs(10);

/// What connects to a VM's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Attach {
    /// A VMM with the plug-in in it, as turnstile vmm
    Vmm,
    /// A stock VMM, over vfio-user
    VfioUser,
}

#[derive(clap::Args, Debug)]
// FIELDS: options of a command.
pub(super) struct CreateArgs {
    /// The VM's name
    #[arg(value_parser = tenant_name)]
    name: String,
    #[command(flatten)]
    identity: Identity,
    /// The account that it belongs to; without it, that of its VMM's user
    #[arg(long)]
    account: Option<String>,
    /// The GPU that takes it; without it, one with room
    #[arg(long, value_name = "ID")]
    gpu: Option<String>,
    /// GPU memory that it may own, in MiB; without it, as much as the daemon gives by default
    #[arg(long, value_name = "MIB")]
    gpu_memory_mib: Option<u32>,
    /// Its share relative to others
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Weight::MAX)))]
    weight: Option<u32>,
    /// The most of the engine that it gets, as in 25%
    #[arg(long, value_parser = quota)]
    quota: Option<Quota>,
    /// Length of the periods that the quota is counted in, in milliseconds
    #[arg(long, requires = "quota", value_parser = clap::value_parser!(u64).range(PERIOD_MS))]
    period_ms: Option<u64>,
    /// GPU memory that it may allocate, in MiB
    #[arg(long, value_name = "MIB")]
    memory_max: Option<Mib>,
    /// What connects
    #[arg(long, value_enum, default_value_t = Attach::Vmm)]
    attach: Attach,
    /// User that owns the socket
    #[arg(long)]
    owner: Option<String>,
    /// Group of the socket
    #[arg(long)]
    group: Option<String>,
    /// Permissions of the socket, in octal digits
    #[arg(long, default_value = "0660")]
    mode: String,
}

#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct DrainArgs {
    /// Seconds in which a VM has to be found without work
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout: u64,
    /// End a VM that still has work then
    #[arg(long)]
    force: bool,
}

impl DrainArgs {
    pub(crate) fn query(self) -> String {
        format!("?timeout_s={}&force={}", self.timeout, self.force)
    }

    fn late(self, name: &str) -> ClientError {
        ClientError::Busy {
            name: name.to_owned(),
            seconds: self.timeout,
        }
    }
}

impl CreateArgs {
    fn body(&self) -> anyhow::Result<Value> {
        let metadata = self.identity.sent()?;
        let instance = metadata.instance_id;
        let instance = instance.unwrap_or_else(|| Uuid::new_v4().to_string());
        let attachment = AttachmentBody {
            kind: match self.attach {
                Attach::Vmm => AttachmentKind::Vmm,
                Attach::VfioUser => AttachmentKind::VfioUser,
            },
            owner: self.owner.clone(),
            group: self.group.clone(),
            mode: Some(self.mode.clone()),
        };
        let mut body = json!({
            "name": self.name,
            "metadata": {
                "instance_id": instance,
                "project": metadata.project,
                "labels": metadata.labels,
            },
            "account": self.account,
            "gpu": self.gpu,
            "gpu_memory_bytes": self.gpu_memory_mib.map(|mib| u64::from(mib) << 20),
            "attachment": attachment,
        });
        if let Some(max) = self.memory_max.and_then(Mib::bytes) {
            body["memory"] = json!({ "max_bytes": max });
        }
        let mut scheduling = Map::new();
        if let Some(quota) = self.quota {
            quota.enter(self.period_ms, &mut scheduling);
        }
        if self.weight.is_some() || !scheduling.is_empty() {
            let weight = self.weight.unwrap_or(Weight::DEFAULT.get());
            scheduling.insert("weight".into(), json!(weight));
            body["scheduling"] = Value::Object(scheduling);
        }
        Ok(body)
    }
}

pub(super) fn create(admin: &Admin, args: &CreateArgs) -> anyhow::Result<()> {
    let body = args.body().map_err(|error| ClientError::Argument {
        text: format!("{error:#}"),
    })?;
    let client = admin.client();
    let answer = client.call(&Call {
        method: Method::POST,
        path: "/v1/vms",
        body: Some(("application/json", body.to_string().into_bytes())),
        if_match: None,
    })?;
    let vm: Vm = client.read(&answer)?;
    Ok(admin.show(&vm, |vm| match &vm.attachment {
        Some(attachment) => println!("{}", attachment.socket),
        None => show(std::slice::from_ref(vm)),
    })?)
}

/// The VM as it is now; none if it is no more.
fn look(client: &Client, name: &str) -> Result<Option<Vm>, ClientError> {
    match client.get(&path(name, "")) {
        Ok(vm) => Ok(Some(vm)),
        Err(ClientError::Refused(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until `done`; what it is given is none once the VM is no more.
fn wait(
    client: &Client,
    name: &str,
    args: DrainArgs,
    done: impl Fn(Option<&Vm>) -> bool,
) -> Result<(), ClientError> {
    let until = Instant::now() + Duration::from_secs(args.timeout) + GRACE;
    loop {
        let vm = look(client, name)?;
        if done(vm.as_ref()) {
            return Ok(());
        }
        let life = vm.and_then(|vm| vm.attachment).map(|one| one.state);
        if life == Some(Life::Attached) || Instant::now() >= until {
            return Err(args.late(name));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

pub(super) fn delete(admin: &Admin, name: &str, args: DrainArgs) -> anyhow::Result<()> {
    let client = admin.client();
    client.delete(&path(name, &args.query()))?;
    Ok(wait(&client, name, args, |vm| vm.is_none())?)
}

pub(super) fn drain(admin: &Admin, name: &str, args: DrainArgs) -> anyhow::Result<()> {
    let client = admin.client();
    let number = look(&client, name)?.and_then(|vm| vm.number);
    client.call(&Call {
        method: Method::POST,
        path: &path(name, &format!("/drain{}", args.query())),
        body: None,
        if_match: None,
    })?;
    // Its VMM may connect again at once, as another tenant.
    let is_gone = |vm: Option<&Vm>| number.is_none() || vm.and_then(|vm| vm.number) != number;
    wait(&client, name, args, is_gone)?;
    if let Some(vm) = look(&client, name)? {
        admin.show(&vm, |vm| show(std::slice::from_ref(vm)))?;
    }
    Ok(())
}
