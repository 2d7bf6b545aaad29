//! `turnstile-domain`: adds the device to a domain of libvirt. KubeVirt's sidecar calls it by the
//! name `onDefineDomain`.

use std::env;
use std::io::{Read, Write as _};

use anyhow::Context;
use clap::Parser;
use turnstile_dra::domain::with_devices;
use turnstile_dra::names::{SOCKET_VARIABLE, SOCKETS_ANNOTATION};

/// Prints the XML of a domain with guest memory that can be shared, and the device of QEMU.
///
/// Sockets are those of --socket; else of the VMI's annotation turnstile.dev/sockets; else of the
/// variables of a claim.
#[derive(Parser, Debug)]
#[command(version = env!("TURNSTILE_VERSION"))]
struct Args {
    /// The domain's XML; read from standard input without this option
    #[arg(long)]
    domain: Option<String>,
    /// The VirtualMachineInstance of KubeVirt, as JSON
    #[arg(long)]
    vmi: Option<String>,
    /// A VM's socket, once for each device
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<String>,
}

/// The sockets that the VMI names, separated by commas.
fn of_vmi(vmi: &str) -> anyhow::Result<Vec<String>> {
    let vmi: serde_json::Value = serde_json::from_str(vmi).context("--vmi is no JSON")?;
    let listed = vmi["metadata"]["annotations"][SOCKETS_ANNOTATION].as_str();
    let sockets = listed.into_iter().flat_map(|listed| listed.split(','));
    let sockets = sockets.map(|socket| socket.trim().to_owned());
    Ok(sockets.filter(|socket| !socket.is_empty()).collect())
}

/// The sockets of the claims that this container has.
fn of_claims() -> Vec<String> {
    let mut variables: Vec<(String, String)> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(SOCKET_VARIABLE))
        .collect();
    variables.sort();
    variables.into_iter().map(|(_, socket)| socket).collect()
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut sockets = args.sockets;
    if let (true, Some(vmi)) = (sockets.is_empty(), &args.vmi) {
        sockets = of_vmi(vmi)?;
    }
    if sockets.is_empty() {
        sockets = of_claims();
    }
    let domain = match args.domain {
        Some(domain) => domain,
        None => {
            let mut domain = String::new();
            let read = std::io::stdin().read_to_string(&mut domain);
            read.context("The domain's XML cannot be read from standard input")?;
            domain
        }
    };
    let changed = with_devices(&domain, &sockets)?;
    std::io::stdout().write_all(changed.as_bytes())?;
    Ok(())
}
