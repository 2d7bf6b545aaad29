//! `turnstile completions`: what a shell may offer. Names of tenants and accounts are read from the
//! running daemon, by the hidden subcommand `names`.

use std::io::{self, Write};

use clap::{Command, ValueEnum};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use super::admin::Admin;

/// Arguments of `completions`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

/// Arguments of `names`.
#[derive(clap::Args, Debug)]
pub(crate) struct NamesArgs {
    #[command(flatten)]
    admin: Admin,
    /// Of what
    kind: Kind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Vms,
    Accounts,
}

/// A resource with a name; the rest is not read.
#[derive(Deserialize, Serialize)]
struct Named {
    name: String,
}

/// Prints the names that a daemon has, a line each; none without a daemon.
pub(crate) fn names(args: &NamesArgs) -> anyhow::Result<()> {
    let path = match args.kind {
        Kind::Vms => "/v1/vms",
        Kind::Accounts => "/v1/accounts",
    };
    for Named { name } in args.admin.client().list::<Named>(path)? {
        println!("{name}");
    }
    Ok(())
}

/// The word before the name of a tenant or account, by the command before it.
const BASH: &str = r#"
_turnstile_names() {
    local kind=
    case "${COMP_WORDS[1]} $3" in
        "vm get" | "vm set" | "vm forget" | "usage --tenant") kind=vms ;;
        "account get" | "account set" | "account forget") kind=accounts ;;
    esac
    if [ -z "$kind" ]; then
        _turnstile "$@"
    else
        COMPREPLY=($(compgen -W "$(turnstile names $kind 2>/dev/null)" -- "$2"))
    fi
}
complete -F _turnstile_names -o bashdefault -o default turnstile
"#;

const FISH: &str = r#"
complete -c turnstile -n "__fish_seen_subcommand_from vm; and __fish_seen_subcommand_from get set forget" -f -a "(turnstile names vms 2>/dev/null)"
complete -c turnstile -n "__fish_seen_subcommand_from account; and __fish_seen_subcommand_from get set forget" -f -a "(turnstile names accounts 2>/dev/null)"
complete -c turnstile -n "__fish_seen_subcommand_from usage" -l tenant -x -a "(turnstile names vms 2>/dev/null)"
"#;

const ZSH: &str = r#"
_turnstile_vms() { compadd -- ${(f)"$(turnstile names vms 2>/dev/null)"} }
_turnstile_accounts() { compadd -- ${(f)"$(turnstile names accounts 2>/dev/null)"} }
"#;

/// Prints the completions of a shell.
pub(crate) fn run(args: &Args, mut command: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "turnstile", &mut text);
    let text = String::from_utf8(text)?;
    let text = match args.shell {
        Shell::Bash => text + BASH,
        Shell::Fish => text + FISH,
        // The functions stand before the script's last part, which runs it.
        Shell::Zsh => {
            let quote = r"'\''";
            let own = |what: &str| format!("The {what}{quote}s name:_default'");
            let named = |what: &str, by: &str| format!("The {what}{quote}s name:_turnstile_{by}'");
            let text = text
                .replace(&own("tenant"), &named("tenant", "vms"))
                .replace(&own("account"), &named("account", "accounts"))
                .replace(
                    "One tenant, by name or id]:TENANT:_default",
                    "One tenant, by name or id]:TENANT:_turnstile_vms",
                );
            text.replacen("\n_turnstile() {", &format!("{ZSH}\n_turnstile() {{"), 1)
        }
        _ => text,
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
