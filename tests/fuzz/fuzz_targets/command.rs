//! Ring commands: what decodes encodes to the same bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: [u8; 64]| turnstile_tests::decoders::command(&bytes));
