//! Mailbox requests: what decodes survives encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turnstile_abi::Request;

fuzz_target!(|words: (u32, [u64; 8])| {
    if let Ok(request) = Request::decode(words.0, &words.1) {
        let (op, args) = request.encode();
        assert_eq!(Request::decode(op as u32, &args), Ok(request));
    }
});
