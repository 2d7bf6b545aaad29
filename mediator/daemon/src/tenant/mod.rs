//! What the daemon holds of a tenant: its memory, its pages, its gates.

pub mod gates;
pub(crate) mod guest_memory;
pub mod pages;
pub mod requests;
