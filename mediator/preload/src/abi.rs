//! Structures and numbers of the driver API that this library uses.
//!
//! SOURCE: cuda.h of CUDA 13.0, of the names given.

/// CUresult: CUDA_SUCCESS and the results that this library returns itself.
pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// CU_MEM_LOCATION_TYPE_DEVICE.
pub(crate) const ON_DEVICE: i32 = 1;
/// CU_MEM_ALLOCATION_TYPE_PINNED.
const PINNED: i32 = 1;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
pub(crate) const POSIX_HANDLE: i32 = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: i32 = 3;

/// CUmemLocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// CUmemAllocationProp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Prop {
    pub(crate) kind: i32,
    pub(crate) handle_types: i32,
    pub(crate) location: Location,
    pub(crate) windows: usize,
    pub(crate) flags: [u8; 8],
}

impl Prop {
    /// Plain memory of a GPU that can be exported.
    pub(crate) const fn on(device: i32) -> Self {
        Self {
            kind: PINNED,
            handle_types: POSIX_HANDLE,
            location: Location {
                kind: ON_DEVICE,
                id: device,
            },
            windows: 0,
            flags: [0; 8],
        }
    }
}

/// CUmemAccessDesc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: i32,
}

impl Access {
    /// A GPU has full access.
    pub(crate) const fn full(location: Location) -> Self {
        Self {
            location,
            flags: READ_WRITE,
        }
    }
}
