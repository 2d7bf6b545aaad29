//! System calls on the driver's device files, and the vendor's libraries. The only place of the NVIDIA backend with `unsafe`.
#![allow(unsafe_code)]

pub(super) mod abi;
mod cuda;
mod ioctl;
mod map;
pub(super) mod notify;
mod nvml;

pub(super) use cuda::{Cuda, CudaFailure};
pub(super) use ioctl::{
    alloc, control, control_empty, free, map_memory, read_register, register_fd,
};
pub(super) use map::SharedPages;
pub(super) use nvml::{Nvml, NvmlFailure, UtilisationSample};
