//! Ring commands: what decodes is canonical.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turnstile_abi::Command;

fuzz_target!(|bytes: [u8; 64]| {
    if let Ok(command) = Command::decode(&bytes) {
        assert_eq!(command.encode(), bytes);
    }
});
