//! A ledger's file in which somebody changed bytes: opened, verified, exported, gone on with.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::ledger(bytes));
