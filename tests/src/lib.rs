//! End-to-end suites, the experiment lab, benchmarks.

pub mod e2e;
pub mod lab;
pub mod nested;
