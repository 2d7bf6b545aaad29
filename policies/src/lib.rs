//! Scheduling policies as pure functions of events.
#![forbid(unsafe_code)]
