//! Messages of a CUDA guest's side, as the device process reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::guest_messages(bytes));
