//! `turnstile sealed-memory`: gives sealed memory to a VMM that does not seal its guest's memory.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use turnstile_abi::PAGE_BYTES;
use turnstile_host::memory_file::{inherited, memory_file};

/// Arguments of `sealed-memory`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Bytes of memory; K, M or G behind the number is 1024, 1024 K or 1024 M
    #[arg(long, value_parser = bytes)]
    size: u64,
    /// Number of the descriptor that the command inherits; to it the memory is the file
    /// /proc/self/fd/NUMBER
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(RawFd).range(3..))]
    fd: RawFd,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.strip_suffix(['K', 'k']) {
        Some(number) => (number, 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(number) => (number, 20),
            None => match text.strip_suffix(['G', 'g']) {
                Some(number) => (number, 30),
                None => (text, 0),
            },
        },
    };
    let number: u64 = number.parse().map_err(|_| "not a number".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(PAGE_BYTES))
        .ok_or_else(|| format!("not a whole number of pages of {PAGE_BYTES} bytes"))
}

/// Becomes the command, with the memory at the descriptor.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let file = memory_file("guest", args.size)
        .with_context(|| format!("Making a memory file of {} bytes failed", args.size))?;
    let _open = inherited(&file, args.fd)
        .with_context(|| format!("Descriptor {} cannot be had; --fd names another", args.fd))?;
    let [program, arguments @ ..] = args.command.as_slice() else {
        anyhow::bail!("No command");
    };
    let failed = Command::new(program).args(arguments).exec();
    Err(failed).with_context(|| format!("{} was not started", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("8K"), Ok(8 << 10));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("4g"), Ok(4 << 30));
        for wrong in ["", "M", "0", "5", "2K", "-1M", "1T", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
