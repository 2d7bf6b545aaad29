//! Numbers that all releases share.
//!
//! SOURCE: open-gpu-kernel-modules 580.142: `nv_escape.h`, `nvos.h`, `nvstatuscodes.h`, `class/`,
//! `ctrl/`, `uvm_ioctl.h`, `nv-unix-nvos-params-wrappers.h`. Offsets are in bytes.

/// Type of the driver's escapes.
pub const ESCAPE_TYPE: u8 = b'F';

/// Escapes.
pub mod escape {
    #![allow(missing_docs)]
    pub const RM_ALLOC_MEMORY: u8 = 0x27;
    pub const RM_FREE: u8 = 0x29;
    pub const RM_CONTROL: u8 = 0x2a;
    pub const RM_ALLOC: u8 = 0x2b;
    pub const RM_DUP_OBJECT: u8 = 0x34;
    pub const RM_SHARE: u8 = 0x35;
    pub const RM_MAP_MEMORY: u8 = 0x4e;
    pub const RM_UNMAP_MEMORY: u8 = 0x4f;
    pub const RM_UPDATE_DEVICE_MAPPING_INFO: u8 = 0x5e;
    pub const CARD_INFO: u8 = 0xc8;
    pub const REGISTER_FD: u8 = 0xc9;
    pub const ALLOC_OS_EVENT: u8 = 0xce;
    pub const FREE_OS_EVENT: u8 = 0xcf;
}

/// Classes.
pub mod class {
    #![allow(missing_docs)]
    pub const SYSTEM_MEMORY: u32 = 0x3e;
    pub const GPU_MEMORY: u32 = 0x40;
    pub const ROOT: u32 = 0x41;
    pub const OS_DESCRIPTOR: u32 = 0x71;
    pub const DEVICE: u32 = 0x80;
    pub const SHARED_PAGE: u32 = 0xde;
    pub const SUBDEVICE: u32 = 0x2080;
    pub const CHANNEL_GROUP: u32 = 0xa06c;

    /// Whether objects of this class are clients. libcuda makes its own as NV01_ROOT, class 0.
    pub const fn is_root(class: u32) -> bool {
        class == 0 || class == ROOT
    }

    /// Whether objects of this class are channels.
    pub const fn is_channel(class: u32) -> bool {
        class > 0xffff >> 1 && class & 0xff == 0x6f
    }

    /// Whether objects of this class are doorbell pages.
    pub const fn is_doorbells(class: u32) -> bool {
        class > 0xffff >> 1 && class & 0xff == 0x61
    }
}

/// Controls that are more than allowed or not.
pub mod control {
    #![allow(missing_docs)]
    pub const FB_GET_INFO_V2: u32 = 0x2080_1303;
    pub const DISABLE_CHANNELS: u32 = 0x2080_110b;
    pub const IMPORT_OBJECTS: u32 = 0x3d0c;
    pub const REGISTER_VIDMEM: u32 = 0x503c_0104;
    pub const UNREGISTER_VIDMEM: u32 = 0x503c_0105;
}

/// Calls of unified memory.
pub mod uvm {
    #![allow(missing_docs)]
    pub const INITIALIZE: u32 = 0x3000_0001;
    pub const DEINITIALIZE: u32 = 0x3000_0002;
    pub const REGISTER_GPU_VASPACE: u32 = 25;
    pub const REGISTER_GPU: u32 = 37;
    pub const SET_RANGE_GROUP: u32 = 31;
    pub const MAP_EXTERNAL_ALLOCATION: u32 = 33;
    pub const FREE: u32 = 34;
    pub const UNMAP_EXTERNAL: u32 = 66;
    pub const SEMAPHORE_POOL: u32 = 68;
    pub const CREATE_EXTERNAL_RANGE: u32 = 73;
    pub const MM_INITIALIZE: u32 = 75;
    /// Hints and migrations of a range.
    pub const HINTS: [u32; 9] = [SET_RANGE_GROUP, 42, 43, 44, 45, 46, 47, 51, 80];
    /// Flag of INITIALIZE: several processes may use the file.
    pub const MULTI_PROCESS: u64 = 2;
    /// Bytes of the attributes of one GPU, and their most.
    pub const ATTRIBUTE_BYTES: usize = 36;
    pub const ATTRIBUTES_MAX: usize = 256;
}

/// Statuses of the driver.
pub mod status {
    #![allow(missing_docs)]
    pub const OK: u32 = 0;
    pub const NO_MEMORY: u32 = 0x51;
    pub const NOT_SUPPORTED: u32 = 0x56;
    pub const OBJECT_NOT_FOUND: u32 = 0x57;
    pub const INSUFFICIENT_RESOURCES: u32 = 0x1a;
    pub const OPERATING_SYSTEM: u32 = 0x59;
}

/// NVOS02_FLAGS of guest RAM. SOURCE: measured, driver 580.159.04: the flags of registered memory.
pub const GUEST_RAM_FLAGS: u32 = 0x4000_1010;

/// Byte of the length in a memory object's parameters. SOURCE: `nvos.h`,
/// NV_MEMORY_ALLOCATION_PARAMS.
pub const MEMORY_BYTES_AT: usize = 64;
/// The last byte's number in the same.
pub const MEMORY_LIMIT_AT: usize = 88;

/// Bytes of a doorbell window.
pub const WINDOW_BYTES: u64 = 0x1_0000;

/// Bytes of a page of guest RAM.
pub const PAGE_BYTES: u64 = 4096;
