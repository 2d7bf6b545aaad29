//! End-to-end suites, benchmarks.

pub mod cloud;
pub mod decoders;
pub mod e2e;
pub mod linux;
pub mod machine;
pub mod nested;
