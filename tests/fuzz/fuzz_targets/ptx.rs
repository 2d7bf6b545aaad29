//! Modules: loading refuses or succeeds, and what was loaded runs to an end within its budget.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| turnstile_tests::decoders::ptx(text));
