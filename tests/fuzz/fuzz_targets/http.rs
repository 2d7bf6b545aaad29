//! Requests to the admin API, as bytes on its socket.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::http(bytes));
