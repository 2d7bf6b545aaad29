//! How commands end: one table of exit statuses, and one form of errors.
//!
//! - In: the error of a subcommand.
//! - Out: a line `turnstile: what; remedy` on standard error, and an [`Exit`].
//! - Invariants: a closed standard output ends a command without a line. A backtrace is printed
//!   only where [`BACKTRACE`] is set.
//! - Callers: `main`, and the manual pages, which print the table.

use std::any::Any;
use std::backtrace::Backtrace;
use std::error::Error;
use std::io;
use std::panic;
use std::process::ExitCode;

use turnstile_accounting::export::ExportError;
use turnstile_accounting::store::StoreError;
use turnstile_api::client::ClientError;
use turnstile_daemon::DaemonError;
use turnstile_daemon::config::ConfigError;
use turnstile_daemon::socket::ListenError;
use turnstile_vmm::attach::AttachError;
use turnstile_vmm::vmm::VmError;
use turnstile_vmm::wire::WireError;

/// Variable that adds the list of causes to an error, and a backtrace to an internal fault.
pub(crate) const BACKTRACE: &str = "TURNSTILE_BACKTRACE";

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    NoDaemon = 4,
    Conflict = 5,
    Denied = 6,
    Guest = 7,
    BrokenPipe = 141,
}

/// Each status with its meaning and, where an error has none of its own, its remedy. Statuses of
/// `run` without an [`Exit`] are the program's.
pub(crate) const TABLE: [(u8, &str); 13] = [
    (Exit::Done as u8, "done"),
    (
        Exit::Failed as u8,
        "failed, or found to be broken (usage verify, doctor)",
    ),
    (
        Exit::Usage as u8,
        "wrong options or configuration; another attempt ends in the same way",
    ),
    (
        Exit::NotFound as u8,
        "no such tenant, account, GPU or ledger",
    ),
    (Exit::NoDaemon as u8, "no daemon listens"),
    (
        Exit::Conflict as u8,
        "in conflict with the present state: changed meanwhile, in use, not closed yet or discarded",
    ),
    (Exit::Denied as u8, "not permitted"),
    (
        Exit::Guest as u8,
        "vmm: the guest ended with an error, or was lost with its GPU",
    ),
    (
        70,
        "run: GPU memory of the program was lost with the daemon",
    ),
    (125, "run: the program was not started"),
    (126, "run: the command cannot be executed"),
    (127, "run: the command was not found"),
    (
        Exit::BrokenPipe as u8,
        "the reader of standard output has gone; run: 128 and the number of the program's signal",
    ),
];

impl Exit {
    /// The status of an error, by its causes.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let mut closed = false;
        for cause in error.chain() {
            if let Some(exit) = Self::known(cause) {
                return exit;
            }
            closed |= is_closed_pipe(cause);
        }
        match closed {
            true => Self::BrokenPipe,
            false => Self::Failed,
        }
    }

    fn known(cause: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(error) = cause.downcast_ref::<Ended>() {
            return Some(error.exit);
        }
        if cause.is::<ConfigError>() {
            return Some(Self::Usage);
        }
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return Some(Self::from_code(error.exit_code()));
        }
        if let Some(error) = cause.downcast_ref::<VmError>() {
            return match error {
                VmError::Attach(AttachError::Connect { .. }) => Some(Self::NoDaemon),
                VmError::Config(_) => Some(Self::Usage),
                // Its source has nothing to do with standard output.
                VmError::Attach(AttachError::Wire(_)) => Some(Self::Failed),
                _ => None,
            };
        }
        if cause.is::<WireError>() {
            return Some(Self::Failed);
        }
        if let Some(error) = cause.downcast_ref::<ListenError>() {
            return Some(Self::of_listen(error));
        }
        if let Some(DaemonError::Listen(error)) = cause.downcast_ref() {
            return Some(Self::of_listen(error));
        }
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return Self::of_store(error);
        }
        match cause.downcast_ref::<ExportError>()? {
            ExportError::NotClosed { .. }
            | ExportError::NotStarted { .. }
            | ExportError::Discarded { .. } => Some(Self::Conflict),
            ExportError::NoGpu | ExportError::NoTenant { .. } => Some(Self::NotFound),
            ExportError::Empty | ExportError::NotAnHour { .. } | ExportError::NoPrices => {
                Some(Self::Usage)
            }
            ExportError::Store(error) => Self::of_store(error),
            _ => None,
        }
    }

    fn of_listen(error: &ListenError) -> Self {
        match error {
            ListenError::InUse { .. } => Self::Conflict,
            _ => Self::Failed,
        }
    }

    fn of_store(error: &StoreError) -> Option<Self> {
        match error {
            StoreError::NotFound { .. } => Some(Self::NotFound),
            StoreError::Denied { .. } => Some(Self::Denied),
            _ => None,
        }
    }

    fn from_code(code: u8) -> Self {
        let all = [
            Self::Usage,
            Self::NotFound,
            Self::NoDaemon,
            Self::Conflict,
            Self::Denied,
        ];
        let found = all.into_iter().find(|exit| *exit as u8 == code);
        found.unwrap_or(Self::Failed)
    }

    /// What may help where an error itself names nothing.
    fn remedy(self) -> &'static str {
        match self {
            Self::Usage => "`turnstile help` has the options, `turnstile config show` the keys",
            Self::NotFound => {
                "`turnstile vm list` shows tenants, `turnstile account list` accounts"
            }
            Self::NoDaemon => "start one by `turnstile serve`",
            Self::Conflict => "read the present state, then try again",
            Self::Denied => "be root, or have a role (api.operators, api.viewers)",
            Self::Guest => "the guest's console is above",
            _ => "`turnstile doctor` looks for what is missing",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error that has its own status.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

fn is_closed_pipe(cause: &(dyn Error + 'static)) -> bool {
    let error = cause.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints an error in the form of all commands; returns its status.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    let exit = Exit::of(error);
    if exit != Exit::BrokenPipe {
        eprint!("{}", lines(error, exit));
        if std::env::var_os(BACKTRACE).is_some() {
            eprintln!("{error:?}");
        }
    }
    exit
}

/// The lines of an error: one, or one for each problem of a configuration.
fn lines(error: &anyhow::Error, exit: Exit) -> String {
    let text = format!("{error:#}");
    let line = |line: &str| {
        let line = line.trim();
        let what = uncapital(line);
        match line.contains("; ") {
            true => format!("turnstile: {what}\n"),
            false => format!("turnstile: {what}; {}\n", exit.remedy()),
        }
    };
    text.lines()
        .filter(|text| !text.trim().is_empty())
        .map(line)
        .collect()
}

/// A sentence's first letter in lower case, unless it begins a name.
fn uncapital(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => {
            let rest = &text[first.len_utf8()..];
            format!("{}{rest}", first.to_lowercase())
        }
        _ => text.to_owned(),
    }
}

/// The line of an error of the command line; none where clap prints help or the version.
pub(crate) fn usage_line(error: &clap::Error) -> Option<String> {
    use clap::error::ErrorKind;
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return None;
    }
    let text = error.render().to_string();
    let mut parts = text.split("\n\n");
    let what: Vec<&str> = parts.next()?.lines().map(str::trim).collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    let mut help = "turnstile".to_owned();
    let mut tips = Vec::new();
    for part in parts {
        for line in part.lines().map(str::trim) {
            if let Some(tip) = line.strip_prefix("tip: ") {
                tips.push(tip.to_owned());
            } else if let Some(usage) = line.strip_prefix("Usage: ") {
                let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
                let words: Vec<&str> = usage.split(' ').take_while(is_name).collect();
                help = words.join(" ");
            }
        }
    }
    tips.push(format!("`{help} --help` has all options"));
    Some(format!("turnstile: {what}; {}", tips.join("; ")))
}

/// Whether a panic comes from printing to a closed pipe (`turnstile vm list | head -1`).
pub(crate) fn is_broken_pipe(panic: &(dyn Any + Send)) -> bool {
    // SOURCE: `print_to` of the standard library.
    const MESSAGE: &str = "failed printing to stdout: Broken pipe";
    let text = panic.downcast_ref::<String>();
    text.is_some_and(|text| text.starts_with(MESSAGE))
}

/// Has panics print one line in the form of errors.
pub(crate) fn begin() {
    panic::set_hook(Box::new(|panic| {
        if is_broken_pipe(panic.payload()) {
            return;
        }
        let text = panic.payload_as_str().unwrap_or("no message");
        let place = panic
            .location()
            .map_or_else(String::new, |at| format!(" at {at}"));
        eprintln!(
            "turnstile: internal fault{place}: {text}; report it with the output of {BACKTRACE}=1"
        );
        if std::env::var_os(BACKTRACE).is_some() {
            eprintln!("{}", Backtrace::force_capture());
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use turnstile_accounting::record::UnixNanos;

    use super::*;

    #[test]
    fn every_refusal_has_its_status() {
        let code = |error: ExportError| Exit::of(&anyhow::Error::new(error).context("more"));
        let path = PathBuf::from("ledger");
        assert_eq!(code(ExportError::NoPrices), Exit::Usage);
        assert_eq!(code(ExportError::NoGpu), Exit::NotFound);
        let tenant = "absent".to_owned();
        assert_eq!(code(ExportError::NoTenant { tenant }), Exit::NotFound);
        let (node, gpu) = (String::new(), String::new());
        let until = UnixNanos(0);
        let open = ExportError::NotClosed { node, gpu, until };
        assert_eq!(code(open), Exit::Conflict);
        let denied = StoreError::Denied { path: path.clone() };
        assert_eq!(code(ExportError::Store(denied)), Exit::Denied);
        assert_eq!(
            Exit::of(&StoreError::NotFound { path }.into()),
            Exit::NotFound
        );
        assert_eq!(Exit::of(&StoreError::Order.into()), Exit::Failed);
        assert_eq!(Exit::of(&anyhow::anyhow!("something else")), Exit::Failed);
    }

    #[test]
    fn closed_output_is_no_failure_of_the_daemons_connection() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let output = anyhow::Error::new(pipe()).context("writing");
        assert_eq!(Exit::of(&output), Exit::BrokenPipe);
        let path = PathBuf::from("vmm.sock");
        let source = pipe();
        let connect = VmError::from(AttachError::Connect { path, source });
        assert_eq!(Exit::of(&connect.into()), Exit::NoDaemon);
    }

    #[test]
    fn each_line_has_one_form() {
        let error = anyhow::anyhow!("Too late").context("Reading X failed");
        let text = lines(&error, Exit::Failed);
        assert!(
            text.starts_with("turnstile: reading X failed: Too late; "),
            "{text}"
        );
        let own = lines(
            &anyhow::anyhow!("KVM is missing; load it\n\nx:1: no key; did you mean y?"),
            Exit::Usage,
        );
        assert_eq!(
            own,
            "turnstile: KVM is missing; load it\nturnstile: x:1: no key; did you mean y?\n"
        );
    }

    #[test]
    fn statuses_are_distinct() {
        let mut codes: Vec<u8> = TABLE.iter().map(|(code, _)| *code).collect();
        codes.dedup();
        assert_eq!(codes.len(), TABLE.len());
        assert!(codes.is_sorted());
    }
}
