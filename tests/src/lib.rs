//! End-to-end suites, the experiment lab, benchmarks.

pub mod lab;
