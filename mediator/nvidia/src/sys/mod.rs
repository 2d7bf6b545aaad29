//! System calls on the driver's device files, and the vendor's libraries. The only place of the
//! NVIDIA backend with `unsafe`.
#![allow(unsafe_code)]

pub(super) mod abi;
mod bell;
mod confine;
#[allow(
    dead_code,
    reason = "the whole of what programs of this backend use, together or not"
)]
mod cuda;
mod ioctl;
mod map;
pub(super) mod notify;

pub(super) use bell::{Doorbells, Muffled};
pub(super) use confine::{become_user, is_superuser, no_new_privileges};
pub use cuda::CudaFailure;
#[allow(unused_imports, reason = "some are for programs of other modules")]
pub(super) use cuda::{
    Checkpoint, Chunk, Context, Cuda, DeviceBuffer, Event, Function, GuestWindow, HostBuffer,
    LaunchShape, Limit, Mapping, Module, ModuleFailure, Reservation, Stream, WaitUntil,
};
pub(super) use ioctl::{
    Caching, alloc, cards, control, control_empty, free, map_memory, read_register, register_fd,
};
pub(super) use map::SharedPages;
