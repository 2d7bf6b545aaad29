//! End-to-end suites, the experiment lab, benchmarks.

pub mod cloud;
pub mod decoders;
pub mod e2e;
pub mod lab;
pub mod linux;
pub mod machine;
pub mod nested;
