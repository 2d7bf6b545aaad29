//! All decoders of foreign bytes, one function each: for the fuzz targets (`tests/fuzz`) and for
//! the bounded runs of the ordinary tests (`tests/tests/decoders.rs`). Each panics if a decoder
//! violates its contract.

mod http;
mod ledger;
mod nvidia;
mod ptx;
mod vfio_user;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use turnstile_abi::{Command, MAILBOX_ARGS, Request};
use turnstile_accounting::export::PriceList;
use turnstile_daemon::config::Layers;
use turnstile_preload_wire::{ToDaemon as ToDaemonOfProgram, ToLibrary};
use turnstile_vmm::wire::{FrameReader, Read, ToDaemon};

pub use http::http;
pub use ledger::ledger;
pub use nvidia::{guest_calls, guest_messages, switch_records};
pub use ptx::ptx;
pub use vfio_user::vfio_user;

/// Ring commands: what decodes encodes to the same bytes.
///
/// # Panics
/// If it does not.
pub fn command(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<64>() else {
        return;
    };
    if let Ok(command) = Command::decode(bytes) {
        assert_eq!(command.encode(), *bytes);
    }
}

/// Mailbox requests: what decodes is equal after encoding.
///
/// # Panics
/// If it is not.
pub fn mailbox(bytes: &[u8]) {
    let mut words = bytes.chunks_exact(8).map(|word| {
        // PANIC: none; the chunks are of this length.
        u64::from_le_bytes(word.try_into().unwrap_or_default())
    });
    // CAST: the rest of the word is left out.
    let op = words.next().unwrap_or(0) as u32;
    let args: [u64; MAILBOX_ARGS] = std::array::from_fn(|_| words.next().unwrap_or(0));
    if let Ok(request) = Request::decode(op, &args) {
        let (op, args) = request.encode();
        assert_eq!(Request::decode(op as u32, &args), Ok(request));
    }
}

/// Frames of a VMM, as the daemon reads them.
pub fn wire(bytes: &[u8]) {
    let (Ok((mut vmm, daemon)), true) = (UnixStream::pair(), bytes.len() < 64 << 10) else {
        return;
    };
    if vmm.set_nonblocking(true).is_err() || vmm.write_all(bytes).is_err() {
        return;
    }
    drop(vmm);
    let mut reader = FrameReader::new();
    while let Ok(Read::Frame(_)) = reader.read::<ToDaemon>(&daemon) {}
}

/// Frames between a program's preloaded library and the daemon, as both read them. What decodes
/// encodes to the same bytes, and is of one direction only. The first byte is the number of
/// descriptors with the frame.
///
/// # Panics
/// If it does not, or is of both directions.
pub fn program_memory(bytes: &[u8]) {
    let Some((first, frame)) = bytes.split_first() else {
        return;
    };
    let descriptors = usize::from(first % 3);
    if let Ok(message) = ToDaemonOfProgram::decode(frame, descriptors) {
        assert_eq!(message.encode(), frame);
        assert_eq!(message.descriptors(), descriptors);
        assert!(ToLibrary::decode(frame, descriptors).is_err());
    }
    if let Ok(message) = ToLibrary::decode(frame, descriptors) {
        assert_eq!(message.encode(), frame);
        assert_eq!(message.descriptors(), descriptors);
    }
}

/// Price lists, in TOML and in JSON.
pub fn prices(text: &str) {
    let _ = PriceList::from_toml(text);
    let _ = PriceList::from_json(text);
}

/// The configuration in each of its forms: an accepted one prints, and reads back as the same.
///
/// # Panics
/// If it reads back as another one.
pub fn config(text: &str) {
    let mut layers = Layers::new();
    layers.text(Path::new("file"), text);
    for line in text.lines() {
        layers.assignment(line);
        if let Some((name, value)) = line.split_once('=') {
            layers.variables([(format!("TURNSTILE_{name}"), value.to_owned())].into_iter());
        }
    }
    let _ = layers.finish();
    let read = |text: &str| {
        let mut layers = Layers::new();
        layers.text(Path::new("file"), text);
        layers.finish()
    };
    if let Ok(effective) = read(text) {
        let shown = effective.to_toml();
        assert_eq!(
            read(&shown).map(|again| again.config).ok(),
            Some(effective.config)
        );
    }
}
