//! GPUs: the software GPU and, behind the same trait, real ones.

pub mod soft;
