//! A ledger's file with changed bytes: opened, verified, exported and continued.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::ledger(bytes));
