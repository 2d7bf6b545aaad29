//! Frames between a program's preloaded library and the daemon, as both read them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turnstile_preload_wire::{ToDaemon, ToLibrary};

fuzz_target!(|input: (u8, &[u8])| {
    let (descriptors, frame) = (usize::from(input.0 % 3), input.1);
    if let Ok(message) = ToDaemon::decode(frame, descriptors) {
        assert_eq!(message.encode(), frame);
        assert_eq!(message.descriptors(), descriptors);
        assert!(ToLibrary::decode(frame, descriptors).is_err());
    }
    if let Ok(message) = ToLibrary::decode(frame, descriptors) {
        assert_eq!(message.encode(), frame);
        assert_eq!(message.descriptors(), descriptors);
    }
});
