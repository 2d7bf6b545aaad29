//! Context-switch records of the vendor's driver.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::switch_records(bytes));
