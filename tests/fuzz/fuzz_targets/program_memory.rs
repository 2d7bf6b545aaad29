//! Frames between a program's preloaded library and the daemon, as both read them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::program_memory(bytes));
