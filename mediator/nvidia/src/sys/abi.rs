//! Numbers and layouts of the driver's interface, no logic. Names are the vendor's.
//!
//! SOURCE: open-gpu-kernel-modules, `src/common/sdk/nvidia/inc/`: `nvos.h`, `class/`, `ctrl/`; the
//! same in every table of `nvidia-guest` (tests below). Each was run on an H200 with 580.159.04.

/// Parameters of an RM allocation.
///
/// # Safety
/// The implementor is the parameter structure of `CLASS`, at least as long as the driver's own. It
/// consists of integers alone (any bytes are a value of it), and holds no address that the driver
/// would write through.
pub(crate) unsafe trait AllocParams: Copy {
    /// The class allocated with it.
    const CLASS: u32;
}

/// Parameters of an RM control.
///
/// # Safety
/// The implementor consists of integers alone (any bytes are a value of it), and holds no address
/// that the driver would write through. The driver takes its length from the call, and refuses one
/// that is not the control's own.
pub(crate) unsafe trait ControlParams: Copy {}

/// Numbers of the RM calls. SOURCE: `nv_escape.h`.
pub(crate) mod escape {
    pub(crate) const FREE: u8 = 0x29;
    pub(crate) const CONTROL: u8 = 0x2a;
    pub(crate) const ALLOC: u8 = 0x2b;
    pub(in crate::sys) const MAP_MEMORY: u8 = 0x4e;
    pub(in crate::sys) const CARD_INFO: u8 = 200;
    pub(in crate::sys) const REGISTER_FD: u8 = 201;
    /// Wraps another call by its number, length and address: nv_ioctl_xfer_t. SOURCE: `nv-ioctl.h`.
    pub(crate) const XFER: u8 = 211;
}

/// SOURCE: `class/cl0041.h`: NV01_ROOT_CLIENT.
pub(crate) const CLASS_CLIENT: u32 = 0x41;
/// A GPU, as a client has it: NV01_DEVICE_0. SOURCE: `class/cl0080.h`.
pub(crate) const CLASS_DEVICE: u32 = DeviceParams::CLASS;

/// SOURCE: `class/cl2080_notification.h`, `class/cla06c.h`: KEPLER_CHANNEL_GROUP_A, which later
/// chips use as well.
pub(crate) const CLASS_CHANNEL_GROUP: u32 = 0xa06c;
/// Channel classes of all chips end in this byte. SOURCE: `class/cl*6f.h`; HOPPER_CHANNEL_GPFIFO_A
/// is 0xc86f.
pub(crate) const CLASS_CHANNEL_LOW_BYTE: u32 = 0x6f;

/// NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS. SOURCE: `ctrl/ctrl90cd.h`.
pub(crate) const EVENTS_ENABLE: u32 = 0x90cd_0101;
/// NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET. SOURCE: `ctrl/ctrl90cd.h`.
pub(crate) const EVENTS_UPDATE_GET: u32 = 0x90cd_0102;
/// NV_EVENT_BUFFER_CTRL_CMD_FLUSH. SOURCE: `ctrl/ctrl90cd.h`.
pub(crate) const EVENTS_FLUSH: u32 = 0x90cd_0104;

/// NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2. SOURCE: `ctrl/ctrl0000/ctrl0000gpu.h`.
pub(crate) const GET_ID_INFO: u32 = 0x205;
/// NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN. SOURCE: `ctrl/ctrlc36f.h`.
pub(crate) const GET_TOKEN: u32 = 0xc36f_0108;
/// NVA06C_CTRL_CMD_SET_TIMESLICE. SOURCE: `ctrl/ctrla06c.h`.
pub(crate) const SET_SLICE: u32 = 0xa06c_0103;

/// NV_PGRAPH_STATUS: whether the graphics and compute engine is busy, in its lowest bit.
///
/// SOURCE: measured on an H200: 1 in 99.5 % of 5,482 readings while kernels took 99.6 % of the
/// time; in 32.7 % for 32.5 %, in none without kernels.
pub(crate) const STATUS_REGISTER: u32 = 0x40_0700;
/// NV_PTIMER_TIME_0: the low word of the GPU's clock in nanoseconds. SOURCE: `dev_timer.h`;
/// measured: the clock of the context-switch records.
pub(crate) const TIME_LOW: u32 = 0x9400;
/// NV_PTIMER_TIME_1: the high word.
pub(crate) const TIME_HIGH: u32 = 0x9410;
/// NV01_MEMORY_LOCAL_PRIVILEGED: the GPU's registers, which the driver maps for privileged callers.
/// SOURCE: `class/cl003f.h`, `mapping_cpu.c`; measured.
pub(crate) const CLASS_REGISTERS: u32 = 0x3f;
/// HOPPER_USERMODE_A: the page of the GPU's doorbells. SOURCE: `class/clc661.h`; without parameters
/// it is in the registers, which are readable.
pub(crate) const CLASS_DOORBELLS: u32 = 0xc661;
/// NV_PTOP_DEVICE_INFO_CFG: the number of words of the table of engines, in its upper twelve bits.
/// SOURCE: measured: 0x086 of them.
pub(crate) const ENGINES_CONFIG: u32 = 0x2_24fc;
/// NV_PTOP_DEVICE_INFO2: that table, which ends with the page at the latest.
pub(crate) const ENGINES: u32 = 0x2_2800;
pub(crate) const ENGINES_MAX: u32 = 0x200;
/// NVC361_TIME_0 and NVC361_TIME_1: the same clock in that page. SOURCE: `class/clc361.h`.
pub(crate) const USERMODE_TIME_LOW: usize = 0x80;
pub(crate) const USERMODE_TIME_HIGH: usize = 0x84;
/// The lowest bit of the status register.
pub(crate) const STATUS_BUSY: u32 = 1;

/// Declares parameter structures with their traits.
macro_rules! rm_params {
    ($($(#[$doc:meta])* $name:ident: $kind:ident $(= $class:literal)? { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: all fields are integers or arrays of them, of which zero bytes are a
                // value.
                unsafe { std::mem::zeroed() }
            }
        }
        // SAFETY: integers alone, without addresses; the length is the driver's own or more (see
        // the tests below).
        unsafe impl $kind for $name { $(const CLASS: u32 = $class;)? }
    )*};
}

/// A GPU of the driver: nv_ioctl_card_info_t. SOURCE: `nv-ioctl.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Card {
    pub(crate) valid: u32,
    place: [u32; 3],
    pub(crate) gpu_id: u32,
    resources: [u32; 9],
    pub(crate) minor: u32,
    name: [u32; 3],
}

/// Up to 32 of them.
pub(crate) type Cards = [Card; 32];

rm_params! {
    /// NV0080_ALLOC_PARAMETERS (56 bytes) and room. SOURCE: `class/cl0080.h`; all zero is device 0.
    DeviceParams: AllocParams = 0x80 {
        device_id: u32, rest: [u32; 15],
    }
    /// NV2080_ALLOC_PARAMETERS (4 bytes) and room. SOURCE: `class/cl2080.h`.
    SubdeviceParams: AllocParams = 0x2080 {
        subdevice_id: u32, rest: u32,
    }
    /// NV_MEMORY_ALLOCATION_PARAMS of NV_MEMORY_DEVICELESS. SOURCE: `nvos.h`, `class/cl90ce.h`.
    MemoryParams: AllocParams = 0x90ce {
        head: [u32; 6], attr: u32, attr2: u32, middle: [u64; 4], size: u64, tail: [u64; 7],
    }
    /// NV_EVENT_BUFFER_ALLOC_PARAMETERS (72 bytes) and room. SOURCE: `class/cl90cd.h`. The two
    /// addresses are outputs of the driver, and it takes no variable data.
    EventBufferParams: AllocParams = 0x90cd {
        buffer_header: u64, record_buffer: u64, record_size: u32, record_count: u32,
        vardata_buffer: u64, vardata_size: u32, records_free_threshold: u32,
        notification_handle: u64, vardata_free_threshold: u32, subdevice: u32, flags: u32,
        header_memory: u32, record_memory: u32, vardata_memory: u32, rest: u64,
    }
    /// NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS. SOURCE: `ctrl/ctrl2080/ctrl2080gr.h`,
    /// facts sheet section 3.
    BindEventsParams: ControlParams {
        event_buffer: u32, record_size: u32, level_of_detail: u32, event_filter: u32, all_users: u8,
        pad: [u8; 3], reason: u32,
    }
    /// NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS. SOURCE: `ctrl/ctrl90cd.h`.
    EnableEventsParams: ControlParams {
        enable: u8, pad: [u8; 3], flags: u32,
    }
    /// NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS. SOURCE: `ctrl/ctrl90cd.h`.
    UpdateGetParams: ControlParams {
        record_get: u32, vardata_get: u32,
    }
    /// NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS. SOURCE: `ctrl/ctrlc36f.h`.
    TokenParams: ControlParams {
        token: u32,
    }
    /// NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS. SOURCE: `ctrl/ctrl0000/ctrl0000gpu.h`.
    IdInfoParams: ControlParams {
        gpu_id: u32, flags: u32, device: u32, subdevice: u32, rest: [u32; 4],
    }
    /// NVA06C_CTRL_TIMESLICE_PARAMS. SOURCE: `ctrl/ctrla06c.h`.
    SliceParams: ControlParams {
        slice_us: u64,
    }
    /// NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS. SOURCE: `ctrl/ctrl2080/ctrl2080fifo.h`. The event
    /// is for callers in the kernel; zero here.
    DisableChannelsParams: ControlParams {
        disable: u8, pad: [u8; 3], channels: u32, only_disable_scheduling: u8, rewind_gp_put: u8, pad2: [u8; 6],
        preempt_event: u64, clients: [u32; 64], handles: [u32; 64],
    }
}

impl MemoryParams {
    /// System memory, written back and read-only for this process. SOURCE: `nvos.h`,
    /// NVOS32_ATTR_COHERENCY_WRITE_BACK, NVOS32_ATTR_LOCATION_PCI,
    /// NVOS32_ATTR2_PROTECTION_USER_READ_ONLY.
    pub(crate) fn read_only(size: u64) -> Self {
        Self {
            attr: 5 << 29 | 1 << 25,
            attr2: 1 << 22,
            size,
            ..Self::default()
        }
    }
}

/// NVOS21_PARAMETERS. SOURCE: `nvos.h`.
#[repr(C)]
pub(super) struct Alloc {
    pub(super) root: u32,
    pub(super) parent: u32,
    pub(super) new: u32,
    pub(super) class: u32,
    pub(super) params: u64,
    pub(super) params_size: u32,
    pub(super) status: u32,
}

/// NVOS54_PARAMETERS. SOURCE: `nvos.h`.
#[repr(C)]
pub(super) struct Control {
    pub(super) client: u32,
    pub(super) object: u32,
    pub(super) command: u32,
    pub(super) flags: u32,
    pub(super) params: u64,
    pub(super) params_size: u32,
    pub(super) status: u32,
}

/// NVOS00_PARAMETERS. SOURCE: `nvos.h`.
#[repr(C)]
pub(super) struct Free {
    pub(super) root: u32,
    pub(super) parent: u32,
    pub(super) old: u32,
    pub(super) status: u32,
}

/// nv_ioctl_nvos33_parameters_with_fd. SOURCE: `nv-unix-nvos-params-wrappers.h`.
#[repr(C)]
// FIELDS: the driver's layout.
pub(super) struct MapMemory {
    pub(super) client: u32,
    pub(super) device: u32,
    pub(super) memory: u32,
    pub(super) pad: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) linear_address: u64,
    pub(super) status: u32,
    pub(super) flags: u32,
    pub(super) fd: i32,
    pub(super) pad2: i32,
}

/// NV2080_CTRL_GPU_REG_OP; all zero but the offset is a read of 32 bits from a global register.
/// SOURCE: `ctrl/ctrl2080/ctrl2080gpu.h`.
#[repr(C)]
#[derive(Default)]
// FIELDS: the driver's layout.
pub(super) struct RegisterOperation {
    pub(super) operation: u8,
    pub(super) kind: u8,
    pub(super) status: u8,
    pub(super) quad: u8,
    pub(super) group_mask: u32,
    pub(super) subgroup_mask: u32,
    pub(super) offset: u32,
    pub(super) value_high: u32,
    pub(super) value_low: u32,
    pub(super) mask_high: u32,
    pub(super) mask_low: u32,
}

/// NV2080_CTRL_GPU_EXEC_REG_OPS_PARAMS. SOURCE: `ctrl/ctrl2080/ctrl2080gpu.h`; the route is for
/// MIG.
#[repr(C)]
#[derive(Default)]
pub(super) struct RegisterList {
    pub(super) target_client: u32,
    pub(super) target_channel: u32,
    pub(super) non_transactional: u32,
    pub(super) reserved: [u32; 2],
    pub(super) count: u32,
    pub(super) operations: u64,
    pub(super) route_flags: u32,
    pub(super) pad: u32,
    pub(super) route: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};
    use turnstile_nvidia_guest::abi::releases;

    /// Compares structures with a table, field by field. `>=`: the structure has room behind it.
    macro_rules! compare {
        ($release:expr, $($ours:ty $(as $more:tt)? = $theirs:literal {
            $($field:ident = $name:literal),* $(,)?
        })*) => {$(
            let structure = &$release.structures[$theirs];
            let at = |name: &str| structure.fields.get(name).copied();
            $(assert_eq!(at($name), Some(offset_of!($ours, $field)), "{} {}", $theirs, $name);)*
            let ours = size_of::<$ours>();
            let has_room = false $(|| stringify!($more) == "room")?;
            assert!(ours == structure.bytes || has_room && ours > structure.bytes, $theirs);
        )*};
    }

    #[test]
    fn calls_have_the_layout_of_every_table() {
        assert_eq!(size_of::<Cards>(), 32 * size_of::<Card>());
        for release in releases() {
            compare! { release,
                Alloc = "NVOS21_PARAMETERS" {
                    root = "hRoot", parent = "hObjectParent", new = "hObjectNew", class = "hClass",
                    params = "pAllocParms", params_size = "paramsSize", status = "status",
                }
                Control = "NVOS54_PARAMETERS" {
                    client = "hClient", object = "hObject", command = "cmd", flags = "flags",
                    params = "params", params_size = "paramsSize", status = "status",
                }
                Free = "NVOS00_PARAMETERS" {
                    root = "hRoot", parent = "hObjectParent", old = "hObjectOld", status = "status",
                }
                MapMemory = "nv_ioctl_nvos33_parameters_with_fd" {
                    client = "params.hClient", device = "params.hDevice",
                    memory = "params.hMemory", offset = "params.offset", length = "params.length",
                    linear_address = "params.pLinearAddress", status = "params.status",
                    flags = "params.flags", fd = "fd",
                }
                Card = "nv_ioctl_card_info_t" {
                    valid = "valid", gpu_id = "gpu_id", minor = "minor_number",
                }
                RegisterOperation = "NV2080_CTRL_GPU_REG_OP" {
                    operation = "regOp", kind = "regType", status = "regStatus", quad = "regQuad",
                    group_mask = "regGroupMask", subgroup_mask = "regSubGroupMask",
                    offset = "regOffset", value_high = "regValueHi", value_low = "regValueLo",
                    mask_high = "regAndNMaskHi", mask_low = "regAndNMaskLo",
                }
                RegisterList = "NV2080_CTRL_GPU_EXEC_REG_OPS_PARAMS" {
                    target_client = "hClientTarget", target_channel = "hChannelTarget",
                    non_transactional = "bNonTransactional", count = "regOpCount",
                    operations = "regOps", route_flags = "grRouteInfo",
                }
            }
        }
    }

    #[test]
    fn parameters_have_the_layout_of_every_table() {
        for release in releases() {
            compare! { release,
                DeviceParams as room = "NV0080_ALLOC_PARAMETERS" { device_id = "deviceId" }
                SubdeviceParams as room = "NV2080_ALLOC_PARAMETERS" { subdevice_id = "subDeviceId" }
                MemoryParams = "NV_MEMORY_ALLOCATION_PARAMS" {
                    attr = "attr", attr2 = "attr2", size = "size",
                }
                EventBufferParams as room = "NV_EVENT_BUFFER_ALLOC_PARAMETERS" {
                    record_size = "recordSize", record_count = "recordCount",
                    subdevice = "hSubDevice", header_memory = "hBufferHeader",
                    record_memory = "hRecordBuffer",
                }
                BindEventsParams = "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS" {
                    event_buffer = "hEventBuffer", record_size = "recordSize",
                    level_of_detail = "levelOfDetail", event_filter = "eventFilter",
                    all_users = "bAllUsers", reason = "reasonCode",
                }
                EnableEventsParams = "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS" {
                    enable = "enable", flags = "flags",
                }
                UpdateGetParams = "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS" {
                    record_get = "recordBufferGet", vardata_get = "varDataBufferGet",
                }
                TokenParams = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS" {
                    token = "workSubmitToken",
                }
                IdInfoParams = "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS" {
                    gpu_id = "gpuId", flags = "gpuFlags", device = "deviceInstance",
                    subdevice = "subDeviceInstance",
                }
                SliceParams = "NVA06C_CTRL_TIMESLICE_PARAMS" { slice_us = "timesliceUs" }
                DisableChannelsParams = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS" {
                    disable = "bDisable", channels = "numChannels",
                    only_disable_scheduling = "bOnlyDisableScheduling",
                    rewind_gp_put = "bRewindGpPut", preempt_event = "pRunlistPreemptEvent",
                    clients = "hClientList", handles = "hChannelList",
                }
            }
        }
    }

    #[test]
    fn numbers_are_those_of_every_table() {
        let numbers = [
            ("NV_ESC_RM_FREE", escape::FREE.into()),
            ("NV_ESC_RM_CONTROL", escape::CONTROL.into()),
            ("NV_ESC_RM_ALLOC", escape::ALLOC.into()),
            ("NV_ESC_RM_MAP_MEMORY", escape::MAP_MEMORY.into()),
            ("NV_ESC_CARD_INFO", escape::CARD_INFO.into()),
            ("NV_ESC_REGISTER_FD", escape::REGISTER_FD.into()),
            ("NV_ESC_IOCTL_XFER_CMD", escape::XFER.into()),
            ("NV01_ROOT_CLIENT", CLASS_CLIENT),
            ("KEPLER_CHANNEL_GROUP_A", CLASS_CHANNEL_GROUP),
            ("NV01_MEMORY_LOCAL_PRIVILEGED", CLASS_REGISTERS),
            ("HOPPER_USERMODE_A", CLASS_DOORBELLS),
            ("NV01_MEMORY_DEVICELESS", MemoryParams::CLASS),
            ("NV_EVENT_BUFFER", EventBufferParams::CLASS),
            ("NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS", EVENTS_ENABLE),
            ("NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET", EVENTS_UPDATE_GET),
            ("NV_EVENT_BUFFER_CTRL_CMD_FLUSH", EVENTS_FLUSH),
            ("NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", GET_ID_INFO),
            ("NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN", GET_TOKEN),
            ("NVA06C_CTRL_CMD_SET_TIMESLICE", SET_SLICE),
        ];
        for release in releases() {
            for (name, number) in numbers {
                assert_eq!(release.numbers.get(name), Some(&number), "{name}");
            }
            let channel = release.numbers["HOPPER_CHANNEL_GPFIFO_A"];
            assert_eq!(channel & 0xff, CLASS_CHANNEL_LOW_BYTE);
        }
    }
}
