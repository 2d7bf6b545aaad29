//! The interposed calls of the C library, and raw memory. The crate's only unsafe code.
#![allow(unsafe_code)]

mod files;
mod memory;
mod state;
mod stats;

pub(crate) use memory::{copy_out, high, lay, lay_private, read, write};

/// Sets `errno` and returns -1.
fn fail(errno: i32) -> i32 {
    // SAFETY: `errno` is a variable of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The value of a call, or -1 with `errno`.
fn returned(result: std::io::Result<i32>) -> i32 {
    result.unwrap_or_else(|error| fail(error.raw_os_error().unwrap_or(libc::EIO)))
}
