//! The crate's only unsafe code: what C calls, and calls to VFIO.

pub mod c_api;
mod vfio;

pub(crate) use vfio::{file_of, map_dma};
