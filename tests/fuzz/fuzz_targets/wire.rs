//! Frames of a VMM, as the daemon reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::wire(bytes));
