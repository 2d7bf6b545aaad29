//! Manual pages, generated from the definition of the command line and the table of exit statuses.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::exit::{BACKTRACE, TABLE};

/// Arguments of `manual`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to write a page for each command
    #[arg(long)]
    folder: PathBuf,
}

/// Files that a command reads or writes.
const FILES: [(&str, &str); 6] = [
    (
        "/etc/turnstile/turnstile.toml",
        "configuration; conf.d/*.toml beside it are read after it, by name",
    ),
    (
        "/run/turnstile/vmm.sock",
        "socket of VMMs and programs; of a user without access, $XDG_RUNTIME_DIR/turnstile/vmm.sock",
    ),
    (
        "/run/turnstile/api.sock, api-ro.sock",
        "sockets of the admin API",
    ),
    ("/var/lib/turnstile/ledger", "ledger of the package"),
    (
        "/var/lib/turnstile/state.json",
        "what was set through the API, of the package",
    ),
    ("/usr/share/doc/turnstile", "pages on operation"),
];

/// Variables that have an effect.
const VARIABLES: [(&str, &str); 5] = [
    (
        "TURNSTILE_SECTION_KEY",
        "sets a key of the configuration, as TURNSTILE_LEDGER_WINDOW_MS=30000",
    ),
    (
        "TURNSTILE_SOCKETS_VMM, TURNSTILE_API_SOCKET",
        "the daemon's sockets, for clients too",
    ),
    (
        BACKTRACE,
        "if set, errors have their causes on lines of their own, and internal faults a backtrace",
    ),
    ("RUST_LOG", "which lines of the log are written"),
    (
        "XDG_RUNTIME_DIR",
        "folder of the run folder of a user without access to /run/turnstile",
    ),
];

/// An example of each subcommand. Those of a group are those of its members.
const EXAMPLES: [(&str, &str); 18] = [
    ("account", "turnstile account set uid-1000 --weight 300"),
    ("bench", "turnstile bench programs --quick"),
    (
        "completions",
        "turnstile completions bash > ~/.local/share/bash-completion/completions/turnstile",
    ),
    (
        "config",
        "turnstile config --set ledger.window_ms=30000 check",
    ),
    ("demo", "turnstile demo --seconds 5 --policy none"),
    (
        "cuda-vm",
        "turnstile cuda-vm --name web --weight 200 /run/turnstile/web.sock",
    ),
    ("doctor", "turnstile doctor"),
    ("gpu", "turnstile gpu list"),
    ("lab", "turnstile lab list"),
    ("run", "turnstile run --weight 300 -- python3 train.py"),
    (
        "sealed-memory",
        "turnstile sealed-memory --size 4G -- cloud-hypervisor --kernel vmlinux",
    ),
    (
        "serve",
        "turnstile serve --ledger /var/lib/turnstile/ledger",
    ),
    ("top", "turnstile top --batch -n 1"),
    ("ui", "turnstile ui"),
    (
        "usage",
        "turnstile usage export --month 2026-11 --format csv > november.csv",
    ),
    (
        "vfio-user",
        "turnstile vfio-user --folder /run/turnstile/vm --vm web:300",
    ),
    ("vm", "turnstile vm set web --weight 300 --quota 25%"),
    ("vmm", "turnstile vmm --name web --seconds 60"),
];

pub(crate) fn run(args: &Args, command: Command) -> anyhow::Result<()> {
    fs::create_dir_all(&args.folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, None, &args.folder)
        .with_context(|| format!("Writing manual pages to {}", args.folder.display()))
}

/// Writes the page of a command and those of its subcommands. `of` is the subcommand of
/// `turnstile` that it is or belongs to.
fn pages(command: &Command, of: Option<&str>, folder: &Path) -> io::Result<()> {
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        pages(inner, of.or(Some(inner.get_name())), folder)?;
    }
    let man = Man::new(command.clone());
    let mut file = File::create(folder.join(man.get_filename()))?;
    man.render(&mut file)?;
    let mut page = Roff::new();
    page.control("SH", ["EXIT STATUS"]);
    let statuses: Vec<(String, &str)> = (TABLE.iter())
        .map(|(code, meaning)| (code.to_string(), *meaning))
        .collect();
    list(
        &mut page,
        statuses.iter().map(|(code, meaning)| (&**code, *meaning)),
    );
    page.control("SH", ["ENVIRONMENT"]);
    list(&mut page, VARIABLES.into_iter());
    page.control("SH", ["FILES"]);
    list(&mut page, FILES.into_iter());
    page.control("SH", ["EXAMPLES"]);
    let own = EXAMPLES
        .iter()
        .filter(|(name, _)| of.is_none_or(|of| of == *name));
    for (_, line) in own {
        page.control("PP", []);
        page.text([bold(*line)]);
    }
    page.to_writer(&mut file)?;
    file.flush()
}

fn list<'a>(page: &mut Roff, rows: impl Iterator<Item = (&'a str, &'a str)>) {
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(name)]);
        page.text([roman(meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Args as Line;

    #[test]
    fn every_command_has_an_example_that_is_a_valid_command_line() {
        let command = Line::command();
        let names = command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set());
        let names: BTreeSet<&str> = names.map(Command::get_name).collect();
        let with_example: BTreeSet<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, with_example);
        if !cfg!(all(feature = "nvidia", feature = "dashboard")) {
            return;
        }
        for (name, line) in EXAMPLES {
            let words = line.split(' ').take_while(|word| *word != ">");
            let parsed = Line::try_parse_from(words);
            assert!(parsed.is_ok(), "{name}: {:?}", parsed.err());
        }
    }

    /// What is wrong with the options of a command, and of those below it.
    fn unlike(command: &Command, path: &str, found: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        for inner in command.get_subcommands() {
            unlike(inner, &path, found);
        }
        for option in command.get_arguments() {
            let possible = option.get_possible_values();
            let has = |form: &str| possible.iter().any(|value| value.get_name() == form);
            if has("json") != has("yaml") {
                found.push(format!("{path}: JSON or YAML alone: {option}"));
            }
            let own = option.get_long() == Some("output") && option.get_short() == Some('o');
            if has("json") && !own {
                found.push(format!("{path}: another spelling: {option}"));
            }
            if option.get_long() == Some("json") && !option.is_hide_set() {
                found.push(format!("{path}: the old spelling is shown"));
            }
        }
    }

    #[test]
    fn one_option_has_json_and_yaml_in_every_command() {
        let mut command = Line::command();
        command.build();
        let mut found = Vec::new();
        unlike(&command, "", &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }
}
