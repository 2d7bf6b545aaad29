//! System calls that no safe crate wraps. The only place of this crate with `unsafe`.
#![allow(unsafe_code)]

mod memfd;

pub(crate) use memfd::memory_file;
