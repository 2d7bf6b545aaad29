//! Bytes from a VMM over vfio-user, as a stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnstile_tests::decoders::vfio_user(bytes));
