//! Frames of a VMM, as the daemon reads them.
#![no_main]

use std::io::Write;
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use turnstile_vmm::wire::{FrameReader, Read, ToDaemon};

fuzz_target!(|bytes: &[u8]| {
    let (Ok((mut vmm, daemon)), true) = (UnixStream::pair(), bytes.len() < 64 << 10) else { return };
    if vmm.set_nonblocking(true).is_err() || vmm.write_all(bytes).is_err() {
        return;
    }
    drop(vmm);
    let mut reader = FrameReader::new();
    while let Ok(Read::Frame(_)) = reader.read::<ToDaemon>(&daemon) {}
});
