//! The crate's only unsafe code: what C calls.

pub mod c_api;
