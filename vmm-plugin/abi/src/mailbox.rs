//! Requests through the mailbox: channels, memory, modules, queries.

use crate::{
    CHANNEL_STATE_BYTES, COMMAND_BYTES, ErrorCode, FUNCTION_NAME_BYTES_MAX, MODULE_TEXT_BYTES_MAX,
    RING_ENTRIES_MAX, RING_ENTRIES_MIN, pci,
};

/// Arguments of a request.
pub const MAILBOX_ARGS: usize = 8;
/// Results of a request.
pub const MAILBOX_RESULTS: usize = 8;

/// Mailbox operations. Arguments and results are listed as words of 8 bytes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MailboxOp {
    /// ring gpa, ring entries, state block gpa, vector -> channel
    OpenChannel = 1,
    /// channel ->
    CloseChannel = 2,
    /// bytes -> GPU address, aperture offset, bytes allocated
    Allocate = 3,
    /// GPU address ->
    Free = 4,
    /// text gpa, text bytes -> module, functions
    LoadModule = 5,
    /// module ->
    UnloadModule = 6,
    /// module, name gpa, name bytes -> function, parameter bytes
    FindFunction = 7,
    /// item ([`QueryItem`]) -> value
    Query = 8,
    /// memory bytes, threads of a block, blocks -> task
    BeginTask = 9,
    /// task ->
    EndTask = 10,
}

/// Items that [`MailboxOp::Query`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum QueryItem {
    /// Bytes of GPU memory that the VM may still allocate.
    MemoryFreeBytes = 1,
    /// The VM's weight.
    Weight = 2,
    /// Nanoseconds of compute engine charged to the VM.
    ComputeNs = 3,
    /// Streaming multiprocessors of the GPU.
    Multiprocessors = 4,
    /// Most bytes of shared memory of a block.
    SharedBytesMax = 5,
    /// Nanoseconds of copy engines charged to the VM.
    CopyNs = 6,
}

/// A request of checked form. Its addresses are not trusted until the mediator has looked them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// See [`MailboxOp::OpenChannel`].
    OpenChannel {
        /// Guest-physical address of the ring, a multiple of 64.
        ring_gpa: u64,
        /// Entries, a power of two.
        entries: u32,
        /// Guest-physical address of the state block, a multiple of 8.
        state_gpa: u64,
        /// MSI-X vector of fences and faults.
        vector: u16,
    },
    /// See [`MailboxOp::CloseChannel`].
    CloseChannel {
        /// Channel.
        channel: u32,
    },
    /// See [`MailboxOp::Allocate`].
    Allocate {
        /// Bytes, more than zero.
        bytes: u64,
    },
    /// See [`MailboxOp::Free`].
    Free {
        /// GPU address.
        va: u64,
    },
    /// See [`MailboxOp::LoadModule`].
    LoadModule {
        /// Guest-physical address of the text.
        text_gpa: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// See [`MailboxOp::UnloadModule`].
    UnloadModule {
        /// Module.
        module: u32,
    },
    /// See [`MailboxOp::FindFunction`].
    FindFunction {
        /// Module.
        module: u32,
        /// Guest-physical address of the name.
        name_gpa: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// See [`MailboxOp::Query`].
    Query {
        /// The item to read.
        item: QueryItem,
    },
    /// See [`MailboxOp::BeginTask`]: what the next kernels need.
    BeginTask {
        /// Bytes of the VM's GPU memory.
        memory_bytes: u64,
        /// Threads of a block.
        threads: u32,
        /// Blocks of the largest kernel.
        blocks: u32,
    },
    /// See [`MailboxOp::EndTask`].
    EndTask {
        /// Task.
        task: u32,
    },
}

impl Request {
    /// Checks the form of a request.
    ///
    /// # Errors
    /// The code with which the device refuses it.
    pub fn decode(op: u32, args: &[u64; MAILBOX_ARGS]) -> Result<Self, ErrorCode> {
        let [a0, a1, a2, a3, ..] = *args;
        let narrow = |value: u64, refused: ErrorCode| u32::try_from(value).map_err(|_| refused);
        let request = match op {
            1 => {
                let entries = narrow(a1, ErrorCode::BadRingSize)?;
                if !entries.is_power_of_two()
                    || !(RING_ENTRIES_MIN..=RING_ENTRIES_MAX).contains(&entries)
                {
                    return Err(ErrorCode::BadRingSize);
                }
                let ring_bytes = u64::from(entries) * COMMAND_BYTES as u64;
                if a0 % COMMAND_BYTES as u64 != 0 || a2 % 8 != 0 {
                    return Err(ErrorCode::BadAlignment);
                }
                if a0.checked_add(ring_bytes).is_none()
                    || a2.checked_add(CHANNEL_STATE_BYTES).is_none()
                {
                    return Err(ErrorCode::NotGuestMemory);
                }
                let vector = u16::try_from(a3).map_err(|_| ErrorCode::BadArgument)?;
                if vector >= pci::VECTORS {
                    return Err(ErrorCode::BadArgument);
                }
                Self::OpenChannel {
                    ring_gpa: a0,
                    entries,
                    state_gpa: a2,
                    vector,
                }
            }
            2 => Self::CloseChannel {
                channel: narrow(a0, ErrorCode::NoSuchChannel)?,
            },
            3 if a0 == 0 => return Err(ErrorCode::BadArgument),
            3 => Self::Allocate { bytes: a0 },
            4 => Self::Free { va: a0 },
            5 if a1 == 0 => return Err(ErrorCode::BadArgument),
            5 if a1 > MODULE_TEXT_BYTES_MAX => return Err(ErrorCode::ModuleTooLarge),
            5 => Self::LoadModule {
                text_gpa: a0,
                bytes: a1,
            },
            6 => Self::UnloadModule {
                module: narrow(a0, ErrorCode::NoSuchModule)?,
            },
            7 if a2 == 0 || a2 > FUNCTION_NAME_BYTES_MAX => return Err(ErrorCode::BadArgument),
            7 => Self::FindFunction {
                module: narrow(a0, ErrorCode::NoSuchModule)?,
                name_gpa: a1,
                bytes: a2,
            },
            8 => Self::Query {
                item: QueryItem::from_u64(a0).ok_or(ErrorCode::BadArgument)?,
            },
            9 => Self::BeginTask {
                memory_bytes: a0,
                threads: narrow(a1, ErrorCode::BadArgument)?,
                blocks: narrow(a2, ErrorCode::BadArgument)?,
            },
            10 => Self::EndTask {
                task: narrow(a0, ErrorCode::NoSuchTask)?,
            },
            _ => return Err(ErrorCode::UnknownOp),
        };
        Ok(request)
    }

    /// The operation and arguments that [`Self::decode`] takes.
    pub fn encode(&self) -> (MailboxOp, [u64; MAILBOX_ARGS]) {
        let mut args = [0; MAILBOX_ARGS];
        let mut put = |values: &[u64]| args[..values.len()].copy_from_slice(values);
        let op = match *self {
            Self::OpenChannel {
                ring_gpa,
                entries,
                state_gpa,
                vector,
            } => {
                put(&[ring_gpa, entries.into(), state_gpa, vector.into()]);
                MailboxOp::OpenChannel
            }
            Self::CloseChannel { channel } => {
                put(&[channel.into()]);
                MailboxOp::CloseChannel
            }
            Self::Allocate { bytes } => {
                put(&[bytes]);
                MailboxOp::Allocate
            }
            Self::Free { va } => {
                put(&[va]);
                MailboxOp::Free
            }
            Self::LoadModule { text_gpa, bytes } => {
                put(&[text_gpa, bytes]);
                MailboxOp::LoadModule
            }
            Self::UnloadModule { module } => {
                put(&[module.into()]);
                MailboxOp::UnloadModule
            }
            Self::FindFunction {
                module,
                name_gpa,
                bytes,
            } => {
                put(&[module.into(), name_gpa, bytes]);
                MailboxOp::FindFunction
            }
            Self::Query { item } => {
                put(&[item as u64]);
                MailboxOp::Query
            }
            Self::BeginTask {
                memory_bytes,
                threads,
                blocks,
            } => {
                put(&[memory_bytes, threads.into(), blocks.into()]);
                MailboxOp::BeginTask
            }
            Self::EndTask { task } => {
                put(&[task.into()]);
                MailboxOp::EndTask
            }
        };
        (op, args)
    }
}

impl QueryItem {
    /// The item of this number, if there is one.
    pub const fn from_u64(item: u64) -> Option<Self> {
        match item {
            1 => Some(Self::MemoryFreeBytes),
            2 => Some(Self::Weight),
            3 => Some(Self::ComputeNs),
            4 => Some(Self::Multiprocessors),
            5 => Some(Self::SharedBytesMax),
            6 => Some(Self::CopyNs),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_decodes_encodes_to_itself(op in 0u32..14, args in any::<[u64; 8]>(), small in any::<[u16; 8]>(), pick in any::<u8>()) {
            let mut mixed = args;
            for (i, word) in mixed.iter_mut().enumerate() {
                if pick >> i & 1 == 1 { *word = small[i].into(); }
            }
            if op == 1 && pick & 1 == 1 { mixed[0] &= !63; mixed[1] = 8 << (mixed[1] % 12); mixed[2] &= !7; mixed[3] %= 40; }
            if let Ok(request) = Request::decode(op, &mixed) {
                let (op2, args2) = request.encode();
                prop_assert_eq!(op2 as u32, op);
                prop_assert_eq!(Request::decode(op2 as u32, &args2), Ok(request));
            }
        }
    }

    #[test]
    fn refusals_name_the_offending_field() {
        let open = |ring, entries, state, vector| {
            Request::decode(1, &[ring, entries, state, vector, 0, 0, 0, 0])
        };
        assert!(open(0x1000, 64, 0x2000, 1).is_ok());
        assert_eq!(open(0x1001, 64, 0x2000, 1), Err(ErrorCode::BadAlignment));
        assert_eq!(open(0x1000, 63, 0x2000, 1), Err(ErrorCode::BadRingSize));
        assert_eq!(open(0x1000, 4, 0x2000, 1), Err(ErrorCode::BadRingSize));
        assert_eq!(open(0x1000, 8192, 0x2000, 1), Err(ErrorCode::BadRingSize));
        assert_eq!(
            open(0x1000, 1 << 40, 0x2000, 1),
            Err(ErrorCode::BadRingSize)
        );
        assert_eq!(
            open(u64::MAX - 63, 64, 0x2000, 1),
            Err(ErrorCode::NotGuestMemory)
        );
        assert_eq!(open(0x1000, 64, 0x2004, 1), Err(ErrorCode::BadAlignment));
        assert_eq!(open(0x1000, 64, 0x2000, 32), Err(ErrorCode::BadArgument));
        assert_eq!(Request::decode(0, &[0; 8]), Err(ErrorCode::UnknownOp));
        assert_eq!(Request::decode(3, &[0; 8]), Err(ErrorCode::BadArgument));
        assert_eq!(
            Request::decode(5, &[0, MODULE_TEXT_BYTES_MAX + 1, 0, 0, 0, 0, 0, 0]),
            Err(ErrorCode::ModuleTooLarge)
        );
        assert_eq!(
            Request::decode(8, &[99, 0, 0, 0, 0, 0, 0, 0]),
            Err(ErrorCode::BadArgument)
        );
    }
}
