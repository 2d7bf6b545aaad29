//! Ring commands: 64 bytes each, little-endian.
//!
//! ```text
//! offset  NOP  COPY             FILL             LAUNCH                    FENCE          WAIT
//! 0 u32   1    2                3                4                         5              6
//! 4 u32   0    direction        pattern          module                    1 = interrupt  0
//! 8       0    source u64       GPU address u64  function u32, shared u32  gpa u64        gpa u64
//! 16      0    destination u64  bytes u64        grid x, y u32             value u64      value u64
//! 24      0    bytes u64        0                grid z, block x u32       0              0
//! 32      0    0                0                block y, z u32            0              0
//! 40      0    0                0                param bytes u32, 0 u32    0              0
//! 48      0    0                0                parameters gpa u64        0              0
//! 56      0    0                0                0                         0              0
//! ```

use crate::{ErrorCode, PARAM_BYTES_MAX, TRANSFER_BYTES_MAX};

/// Bytes of a command.
pub const COMMAND_BYTES: usize = 64;
/// Bytes that a FENCE writes: the value, then the time.
pub const FENCE_BYTES: u64 = 16;

/// Three extents or indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim3 {
    /// Along x.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

impl Dim3 {
    /// `x` along x, one along the others.
    pub const fn line(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }

    /// The product; saturates.
    pub fn count(self) -> u64 {
        u64::from(self.x)
            .saturating_mul(self.y.into())
            .saturating_mul(self.z.into())
    }
}

/// Where a COPY takes from and brings to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CopyDirection {
    /// Source is a guest-physical address, destination a GPU address.
    GuestToGpu = 0,
    /// Source is a GPU address, destination a guest-physical address.
    GpuToGuest = 1,
    /// Both are GPU addresses.
    GpuToGpu = 2,
}

/// A kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Module.
    pub module: u32,
    /// Function of the module.
    pub function: u32,
    /// Blocks.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of parameters, laid out as the PTX `.param` space of the function.
    pub param_bytes: u32,
    /// Address of the parameters in guest memory; read when the command is fetched.
    pub params_gpa: u64,
}

/// What a FENCE leaves in guest memory; the value is written last, with release order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceRecord {
    /// The value that the command carried.
    pub value: u64,
    /// GPU time in nanoseconds at which all earlier commands of the channel had finished.
    pub at_ns: u64,
}

/// A command of checked form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing.
    Nop,
    /// Moves bytes.
    Copy {
        /// From where to where.
        direction: CopyDirection,
        /// Source address.
        source: u64,
        /// Destination address.
        destination: u64,
        /// Bytes, 1..=[`TRANSFER_BYTES_MAX`].
        bytes: u64,
    },
    /// Writes a 32-bit pattern over GPU memory.
    Fill {
        /// GPU address, a multiple of 4.
        va: u64,
        /// Bytes, a multiple of 4, 4..=[`TRANSFER_BYTES_MAX`].
        bytes: u64,
        /// The pattern.
        pattern: u32,
    },
    /// Runs a kernel.
    Launch(Launch),
    /// Writes a [`FenceRecord`] once all earlier commands of the channel have finished.
    Fence {
        /// Guest-physical address, a multiple of 8.
        gpa: u64,
        /// The value.
        value: u64,
        /// Whether the channel's vector is signalled then.
        interrupt: bool,
    },
    /// Holds the channel until the word in guest memory is at least `value`.
    Wait {
        /// Guest-physical address of a u64, a multiple of 8.
        gpa: u64,
        /// The value.
        value: u64,
    },
}

/// Little-endian fields of a command under construction or inspection.
struct Words([u8; COMMAND_BYTES]);

impl Words {
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn zero_from(&self, at: usize) -> Result<(), ErrorCode> {
        if self.0[at..].iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(ErrorCode::ReservedNotZero)
        }
    }
}

impl Command {
    /// Checks the form of a command.
    ///
    /// # Errors
    /// The code with which the device ends the channel.
    pub fn decode(bytes: &[u8; COMMAND_BYTES]) -> Result<Self, ErrorCode> {
        let words = Words(*bytes);
        let transfer = |bytes: u64| match bytes {
            0 => Err(ErrorCode::BadArgument),
            1..=TRANSFER_BYTES_MAX => Ok(bytes),
            _ => Err(ErrorCode::TransferTooLarge),
        };
        let word_aligned = |address: u64| {
            if address.is_multiple_of(8) {
                Ok(address)
            } else {
                Err(ErrorCode::BadAlignment)
            }
        };
        match words.u32(0) {
            1 => {
                words.zero_from(4)?;
                Ok(Self::Nop)
            }
            2 => {
                words.zero_from(32)?;
                let direction = match words.u32(4) {
                    0 => CopyDirection::GuestToGpu,
                    1 => CopyDirection::GpuToGuest,
                    2 => CopyDirection::GpuToGpu,
                    _ => return Err(ErrorCode::BadArgument),
                };
                Ok(Self::Copy {
                    direction,
                    source: words.u64(8),
                    destination: words.u64(16),
                    bytes: transfer(words.u64(24))?,
                })
            }
            3 => {
                words.zero_from(24)?;
                let (va, bytes) = (words.u64(8), transfer(words.u64(16))?);
                if va % 4 != 0 || bytes % 4 != 0 {
                    return Err(ErrorCode::BadAlignment);
                }
                Ok(Self::Fill {
                    va,
                    bytes,
                    pattern: words.u32(4),
                })
            }
            4 => {
                words.zero_from(56)?;
                if words.u32(44) != 0 {
                    return Err(ErrorCode::ReservedNotZero);
                }
                let launch = Launch {
                    module: words.u32(4),
                    function: words.u32(8),
                    shared_bytes: words.u32(12),
                    grid: Dim3 {
                        x: words.u32(16),
                        y: words.u32(20),
                        z: words.u32(24),
                    },
                    block: Dim3 {
                        x: words.u32(28),
                        y: words.u32(32),
                        z: words.u32(36),
                    },
                    param_bytes: words.u32(40),
                    params_gpa: words.u64(48),
                };
                if launch.grid.count() == 0
                    || launch.block.count() == 0
                    || launch.block.count() > 1024
                    || launch.param_bytes > PARAM_BYTES_MAX
                {
                    return Err(ErrorCode::BadLaunch);
                }
                Ok(Self::Launch(launch))
            }
            5 => {
                words.zero_from(24)?;
                let interrupt = match words.u32(4) {
                    0 => false,
                    1 => true,
                    _ => return Err(ErrorCode::BadArgument),
                };
                Ok(Self::Fence {
                    gpa: word_aligned(words.u64(8))?,
                    value: words.u64(16),
                    interrupt,
                })
            }
            6 => {
                words.zero_from(24)?;
                if words.u32(4) != 0 {
                    return Err(ErrorCode::ReservedNotZero);
                }
                Ok(Self::Wait {
                    gpa: word_aligned(words.u64(8))?,
                    value: words.u64(16),
                })
            }
            _ => Err(ErrorCode::UnknownCommand),
        }
    }

    /// The bytes that [`Self::decode`] takes.
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut words = Words([0; COMMAND_BYTES]);
        match *self {
            Self::Nop => words.put_u32(0, 1),
            Self::Copy {
                direction,
                source,
                destination,
                bytes,
            } => {
                words.put_u32(0, 2);
                words.put_u32(4, direction as u32);
                words.put_u64(8, source);
                words.put_u64(16, destination);
                words.put_u64(24, bytes);
            }
            Self::Fill { va, bytes, pattern } => {
                words.put_u32(0, 3);
                words.put_u32(4, pattern);
                words.put_u64(8, va);
                words.put_u64(16, bytes);
            }
            Self::Launch(launch) => {
                words.put_u32(0, 4);
                words.put_u32(4, launch.module);
                words.put_u32(8, launch.function);
                words.put_u32(12, launch.shared_bytes);
                words.put_u32(16, launch.grid.x);
                words.put_u32(20, launch.grid.y);
                words.put_u32(24, launch.grid.z);
                words.put_u32(28, launch.block.x);
                words.put_u32(32, launch.block.y);
                words.put_u32(36, launch.block.z);
                words.put_u32(40, launch.param_bytes);
                words.put_u64(48, launch.params_gpa);
            }
            Self::Fence {
                gpa,
                value,
                interrupt,
            } => {
                words.put_u32(0, 5);
                words.put_u32(4, interrupt.into());
                words.put_u64(8, gpa);
                words.put_u64(16, value);
            }
            Self::Wait { gpa, value } => {
                words.put_u32(0, 6);
                words.put_u64(8, gpa);
                words.put_u64(16, value);
            }
        }
        words.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dim() -> impl Strategy<Value = Dim3> {
        (1u32..9, 1u32..9, 1u32..9).prop_map(|(x, y, z)| Dim3 { x, y, z })
    }

    fn command() -> impl Strategy<Value = Command> {
        let direction = prop_oneof![
            Just(CopyDirection::GuestToGpu),
            Just(CopyDirection::GpuToGuest),
            Just(CopyDirection::GpuToGpu)
        ];
        prop_oneof![
            Just(Command::Nop),
            (
                direction,
                any::<u64>(),
                any::<u64>(),
                1..=TRANSFER_BYTES_MAX
            )
                .prop_map(|(direction, source, destination, bytes)| Command::Copy {
                    direction,
                    source,
                    destination,
                    bytes
                }),
            (any::<u64>(), 1u64..1000, any::<u32>()).prop_map(|(va, words, pattern)| {
                Command::Fill {
                    va: va & !3,
                    bytes: words * 4,
                    pattern,
                }
            }),
            (
                any::<[u32; 3]>(),
                dim(),
                dim(),
                0..=PARAM_BYTES_MAX,
                any::<u64>()
            )
                .prop_map(
                    |([module, function, shared_bytes], grid, block, param_bytes, params_gpa)| {
                        Command::Launch(Launch {
                            module,
                            function,
                            grid,
                            block,
                            shared_bytes,
                            param_bytes,
                            params_gpa,
                        })
                    }
                ),
            (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(gpa, value, interrupt)| {
                Command::Fence {
                    gpa: gpa & !7,
                    value,
                    interrupt,
                }
            }),
            (any::<u64>(), any::<u64>()).prop_map(|(gpa, value)| Command::Wait {
                gpa: gpa & !7,
                value
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_command_survives_encoding(command in command()) {
            prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
        }

        #[test]
        fn no_bytes_panic_and_what_decodes_is_canonical(op in 0u32..9, tail in proptest::collection::vec(any::<u8>(), 60), zero_from in 4usize..64) {
            let mut bytes = [0; COMMAND_BYTES];
            bytes[..4].copy_from_slice(&op.to_le_bytes());
            bytes[4..].copy_from_slice(&tail);
            bytes[zero_from..].fill(0);
            if let Ok(command) = Command::decode(&bytes) {
                prop_assert_eq!(command.encode(), bytes);
            }
        }
    }

    #[test]
    fn refusals_have_their_own_code() {
        let mut nop = Command::Nop.encode();
        nop[63] = 1;
        assert_eq!(Command::decode(&nop), Err(ErrorCode::ReservedNotZero));
        assert_eq!(Command::decode(&[0; 64]), Err(ErrorCode::UnknownCommand));
        let copy = |bytes| {
            let direction = CopyDirection::GpuToGpu;
            Command::decode(
                &Command::Copy {
                    direction,
                    source: 0,
                    destination: 0,
                    bytes,
                }
                .encode(),
            )
        };
        assert_eq!(copy(0), Err(ErrorCode::BadArgument));
        assert_eq!(
            copy(TRANSFER_BYTES_MAX + 1),
            Err(ErrorCode::TransferTooLarge)
        );
        let fence = Command::Fence {
            gpa: 4,
            value: 1,
            interrupt: false,
        };
        assert_eq!(
            Command::decode(&fence.encode()),
            Err(ErrorCode::BadAlignment)
        );
        let mut launch = Launch {
            module: 0,
            function: 0,
            grid: Dim3::line(1),
            block: Dim3::line(1024),
            shared_bytes: 0,
            param_bytes: 0,
            params_gpa: 0,
        };
        assert!(Command::decode(&Command::Launch(launch).encode()).is_ok());
        launch.block = Dim3 {
            x: 1 << 16,
            y: 1 << 16,
            z: 1,
        };
        assert_eq!(
            Command::decode(&Command::Launch(launch).encode()),
            Err(ErrorCode::BadLaunch)
        );
        launch.block = Dim3::line(0);
        assert_eq!(
            Command::decode(&Command::Launch(launch).encode()),
            Err(ErrorCode::BadLaunch)
        );
    }
}
