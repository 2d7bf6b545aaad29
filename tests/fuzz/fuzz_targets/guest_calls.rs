//! Calls of a CUDA guest, as the device process checks them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::guest_calls(bytes));
