//! Price lists, in TOML and in JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| turnstile_tests::decoders::prices(text));
