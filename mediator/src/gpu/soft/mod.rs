//! The software GPU.

pub mod ptx;
