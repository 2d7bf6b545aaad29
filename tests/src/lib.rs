//! End-to-end suites, the experiment lab, benchmarks.
