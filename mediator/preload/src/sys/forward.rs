//! Functions of the driver that are called as they are, with something of ours around.

/// Functions of so many arguments, all of which are numbers or addresses, each called by the closure that `$around` is given.
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
                // SAFETY: the library's function of this name takes so many arguments of at most a register; null is None.
                let real = unsafe {
                    std::mem::transmute::<
                        *mut std::ffi::c_void,
                        Option<unsafe extern "C" fn($(forwarded!(@word $argument)),*) -> u32>,
                    >(real)
                };
                let Some(real) = real else { return crate::abi::NOT_FOUND };
                // SAFETY: the caller's own call; one that was refused has done nothing.
                $around(|| unsafe { real($($argument),*) })
            }
        )*

        /// Ours of a name that the library exports.
        pub(super) fn by_name(name: &str) -> Option<*mut std::ffi::c_void> {
            Some(match name {
                $(stringify!($name) => ($name as *const ()).cast_mut().cast(),)*
                _ => return None,
            })
        }
    };
    (@word $argument:ident) => { usize };
}
