//! Price lists, in both languages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turnstile_accounting::export::PriceList;

fuzz_target!(|text: &str| {
    let _ = PriceList::from_toml(text);
    let _ = PriceList::from_json(text);
});
