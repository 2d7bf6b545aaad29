//! How programs find the driver's functions, and get those of this library instead.
//!
//! - *Linked with the library*: this library exports the same names and comes first.
//! - *dlsym*: [`dlsym`] is interposed before the C library's.
//! - *cuGetProcAddress*: the one here returns functions of this library (`calls.rs`). The CUDA
//!   runtime, linked statically or not, and its users call this one.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{names, tenant};

/// The C library's own `dlsym`.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The address of the C library's `dlsym`, found on first use: other initialisers run before this
/// library's.
fn real() -> *mut c_void {
    let known = REAL.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    /// SOURCE: glibc's abilist of libc.so or libdl.so: the first version of the symbol on each
    /// machine.
    #[cfg(target_arch = "x86_64")]
    const FIRST: &CStr = c"GLIBC_2.2.5";
    #[cfg(not(target_arch = "x86_64"))]
    const FIRST: &CStr = c"GLIBC_2.17";
    // SAFETY: C strings; `dlvsym` is not interposed.
    let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), FIRST.as_ptr()) };
    REAL.store(found, Ordering::Release);
    found
}

/// Calls the C library's `dlsym` for a loaded library; null if there is no such name.
pub(super) fn find(library: *mut c_void, name: &str) -> *mut c_void {
    let mut text = [0_u8; 64];
    let real = real();
    if real.is_null() || name.len() >= text.len() {
        return ptr::null_mut();
    }
    text[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the C library's function of this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) };
    // SAFETY: a library that was opened, and a string that ends with zero.
    unsafe { real(library, text.as_ptr().cast()) }
}

/// The answer of [`dlsym`]; null where the C library has to answer.
///
/// # Safety
/// `name` is a C string.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn resolve(library: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = real();
    if real.is_null() || name.is_null() || !tenant::is_on() {
        return ptr::null_mut();
    }
    // With these the search begins at the caller, which only the C library's function can
    // determine; or it finds this library's function by itself.
    if library == libc::RTLD_DEFAULT || library == libc::RTLD_NEXT {
        return ptr::null_mut();
    }
    // SAFETY: by the caller's contract.
    let text = unsafe { CStr::from_ptr(name) };
    let Some(ours) = names::by_name(text.to_bytes()) else {
        return ptr::null_mut();
    };
    // SAFETY: the C library's function of this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) };
    // SAFETY: the caller's own arguments.
    let theirs = unsafe { real(library, name) };
    if theirs.is_null() { theirs } else { ours }
}

/// Interposes the C library's `dlsym`, and jumps to it as if the caller had called it: the result
/// of RTLD_NEXT depends on the caller.
///
/// # Safety
/// As dlsym(3).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
// SAFETY: this name is meant to come before the C library's, and this function keeps its contract.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {resolve}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        resolve = sym resolve,
        real = sym REAL,
    )
}
