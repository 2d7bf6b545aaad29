//! Ring commands: what decodes is canonical.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: [u8; 64]| turnstile_tests::decoders::command(&bytes));
