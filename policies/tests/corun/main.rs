//! The rule `owed` on a model of an engine that slices by itself: parts, attacks, accounts, quotas.
//!
//! The model is fitted to measured pairs of programs; nothing here ran on a GPU. Each table has a
//! short test that runs by default and a full one: `cargo test --release -p turnstile-policies
//! --test corun -- --include-ignored`.

mod accounts;
mod attacks;
mod fit;
mod laws;
mod leaving;
mod many;
mod meter;
mod pairs;
mod quotas;
mod targets;
