//! Modules: loading refuses or succeeds, and a loaded module ends within its budget.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| turnstile_tests::decoders::ptx(text));
