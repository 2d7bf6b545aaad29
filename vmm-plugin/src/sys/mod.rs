//! The crate's only unsafe code: calls that the kernel interface makes unsafe. Every block states
//! the invariant that it relies on and the code that keeps it.

pub(crate) mod fd;
pub(crate) mod scm;
#[cfg(feature = "kvm")]
pub(crate) mod slots;
#[cfg(feature = "kvm")]
pub(crate) mod window;
