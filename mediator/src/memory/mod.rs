//! GPU memory beyond what the card has.

pub mod pool;
