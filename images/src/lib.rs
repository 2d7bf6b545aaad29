//! Guests and kernels that the tests and the demo run.
