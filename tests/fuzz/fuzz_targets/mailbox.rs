//! Mailbox requests: what decodes survives encoding.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::mailbox(bytes));
