//! Functions of the driver that are called unchanged, with an action around the call.

/// Defines functions of the given arguments, all of which are numbers or addresses. `$around` gets
/// a closure that calls the driver's.
macro_rules! forwarded {
    ($around:path; $($name:ident($($argument:ident)*);)*) => {
        $(
            /// # Safety
            /// As the driver's.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(super) unsafe extern "C" fn $name($($argument: usize),*) -> u32 {
                static REAL: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
                let mut real = REAL.load(std::sync::atomic::Ordering::Relaxed);
                if real.is_null() {
                    real = super::loader::find(super::driver::library(), stringify!($name));
                    REAL.store(real, std::sync::atomic::Ordering::Relaxed);
                }
                // SAFETY: the library's function of this name takes these arguments of at most a
                // register; null is None.
                let real = unsafe {
                    std::mem::transmute::<
                        *mut std::ffi::c_void,
                        Option<unsafe extern "C" fn($(forwarded!(@word $argument)),*) -> u32>,
                    >(real)
                };
                let Some(real) = real else { return crate::abi::NOT_FOUND };
                // SAFETY: the caller's own call; a refused one had no effect.
                $around(|| unsafe { real($($argument),*) })
            }
        )*

        /// The function here of a name that the driver's library exports.
        pub(super) fn by_name(name: &str) -> Option<*mut std::ffi::c_void> {
            Some(match name {
                $(stringify!($name) => ($name as *const ()).cast_mut().cast(),)*
                _ => return None,
            })
        }
    };
    (@word $argument:ident) => { usize };
}
