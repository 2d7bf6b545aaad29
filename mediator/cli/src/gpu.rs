//! `turnstile gpu`: GPUs of a running daemon.

use std::process::ExitCode;

use clap::Subcommand;
use turnstile_api::client::{Call, Method};
use turnstile_api::gpus::{Engine, Gpu};

use turnstile_figures::columns::table;

use super::admin::{Admin, escaped};
use super::vm::DrainArgs;

/// Arguments of `gpu`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// GPUs that the daemon shares
    List,
    /// One GPU
    Get {
        /// Its identity, as listed
        id: String,
    },
    /// Close a GPU to further VMs; those on it stay
    Cordon {
        /// Its identity, as listed
        id: String,
    },
    /// Close a GPU to further VMs, and end the use of it by those on it once they have no work
    Drain {
        /// Its identity, as listed
        id: String,
        #[command(flatten)]
        drain: DrainArgs,
    },
    /// Take a GPU out of service: its tenants end at once, and declared VMs go to other GPUs
    Remove {
        /// Its identity, as listed
        id: String,
    },
    /// Open a GPU to further VMs again; a removed one is taken back
    Uncordon {
        /// Its identity, as listed
        id: String,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let admin = &args.admin;
    admin.exit(match &args.command {
        Command::List => admin.list("/v1/gpus", show),
        Command::Get { id } => admin.get(&format!("/v1/gpus/{}", escaped(id)), show),
        Command::Cordon { id } => set(admin, id, Method::PUT, "cordon"),
        Command::Drain { id, drain } => {
            set(admin, id, Method::PUT, &format!("drain{}", drain.query()))
        }
        Command::Remove { id } => set(admin, id, Method::PUT, "removal"),
        Command::Uncordon { id } => set(admin, id, Method::DELETE, "cordon"),
    })
}

/// Closes, drains or opens a GPU, and shows it as it is then.
fn set(admin: &Admin, id: &str, method: Method, what: &str) -> anyhow::Result<()> {
    let client = admin.client();
    let answer = client.call(&Call {
        method,
        path: &format!("/v1/gpus/{}/{what}", escaped(id)),
        body: None,
        if_match: None,
    })?;
    let gpu: Gpu = client.read(&answer)?;
    Ok(admin.show(&gpu, |gpu| show(std::slice::from_ref(gpu)))?)
}

fn show(gpus: &[Gpu]) {
    let rows: Vec<Vec<String>> = gpus
        .iter()
        .map(|gpu| {
            let compute = gpu.engines.iter().filter(|engine| engine.compute);
            let sum = |of: fn(&Engine) -> u64| compute.clone().map(of).sum::<u64>();
            let wall = sum(|engine| engine.wall_ns).max(1) as f64;
            let percent = |ns: u64| format!("{:.2}%", ns as f64 / wall * 100.0);
            vec![
                gpu.id.clone(),
                gpu.model.clone(),
                gpu.policy.clone(),
                match (&gpu.silent, gpu.removed, gpu.cordoned) {
                    (_, true, _) => "removed",
                    (Some(_), ..) => "silent",
                    (None, false, true) => "cordoned",
                    (None, false, false) => "open",
                }
                .into(),
                gpu.charge.as_str().into(),
                gpu.vms.to_string(),
                (gpu.memory_bytes >> 20).to_string(),
                percent(sum(|engine| engine.used_ns)),
                percent(sum(|engine| engine.switching_ns)),
                percent(sum(|engine| engine.idle_ns)),
            ]
        })
        .collect();
    let head = [
        "GPU", "MODEL", "POLICY", "STATE", "CHARGE", "VMS", "MEM-MIB", "USED", "SWITCH", "IDLE",
    ];
    table(&head, &rows);
    for gpu in gpus {
        if let Some(lacks) = &gpu.lacks {
            println!("{}: {lacks}", gpu.id);
        }
    }
}
