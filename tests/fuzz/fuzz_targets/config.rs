//! The configuration: files, variables, assignments.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| turnstile_tests::decoders::config(text));
