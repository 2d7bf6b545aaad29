//! Price lists, in both languages.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| turnstile_tests::decoders::prices(text));
