//! Refusals: every one has a code and a text.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Why the device refused a request or ended a channel. Numbers are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum ErrorCode { $(#[doc = $text] $name = $code,)* }

        impl ErrorCode {
            /// Every code, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The text that goes with the code.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The code of this number, if there is one.
            pub const fn from_u32(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

codes! {
    None = 0, "No error";
    UnknownOp = 1, "The mailbox operation is not known to this device";
    Busy = 2, "The mailbox is still working on the request before";
    BadArgument = 3, "An argument has no permitted value";
    BadAlignment = 4, "An address or length is not aligned as required";
    BadRingSize = 5, "The ring's size is not a power of two between 8 and 4096 entries";
    NotGuestMemory = 6, "A guest-physical range is not wholly in the VM's memory";
    TooManyChannels = 7, "The VM has as many channels open as it may";
    NoSuchChannel = 8, "The VM has no channel of this number";
    OutOfGpuMemory = 9, "The VM's limit or the GPU's memory is used up";
    NoSuchAllocation = 10, "No allocation of the VM begins at this GPU address";
    ModuleTooLarge = 11, "The module's text is longer than the device takes";
    ModuleRefused = 12, "The module was refused; the mailbox text says the line and the reason";
    TooManyModules = 13, "The VM has as many modules loaded as it may";
    NoSuchModule = 14, "The VM has no module of this handle";
    NoSuchFunction = 15, "The module has no function of this name or number";
    UnknownCommand = 16, "The command's opcode is not known to this device";
    ReservedNotZero = 17, "A reserved field of the command is not zero";
    PutOutOfRange = 18, "The doorbell announced more commands than the ring holds";
    BadLaunch = 19, "The launch's grid, block, shared memory or parameters exceed the limits";
    PageFault = 20, "A GPU address was not mapped in the VM's address space";
    MisalignedAccess = 21, "A kernel's access was not aligned to its size";
    KernelTimeout = 22, "A kernel ran longer than the host permits and was ended";
    KernelTrap = 23, "A kernel ended itself by a trap or an illegal instruction";
    TransferTooLarge = 24, "A copy or fill moves more bytes than one command may";
    ModuleInUse = 25, "The module is used by commands that have not finished";
    AllocationInUse = 26, "The allocation is used by commands that have not finished";
    DeviceLost = 27, "The mediator, or what executed the VM's commands, is gone; open channels anew once the device answers";
    HostLimit = 28, "A limit that the host set for the VM is reached";
    NoSuchTask = 29, "The VM has begun no task of this number";
    NoRoomNow = 30, "Other tasks have what this one needs; repeat the request later";
}

/// What a channel is doing, as reported in its state block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ChannelStatus {
    /// Open and working (or waiting for a doorbell).
    Running = 1,
    /// Ended by an error; close it and open another.
    Faulted = 2,
    /// Closed at the guest's request.
    Closed = 3,
}

impl ChannelStatus {
    /// The status of this number, if there is one.
    pub const fn from_u32(status: u32) -> Option<Self> {
        match status {
            1 => Some(Self::Running),
            2 => Some(Self::Faulted),
            3 => Some(Self::Closed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_and_texts_are_distinct_and_round_trip() {
        let numbers: BTreeSet<u32> = ErrorCode::ALL.iter().map(|code| *code as u32).collect();
        let texts: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.text()).collect();
        assert_eq!(numbers.len(), ErrorCode::ALL.len());
        assert_eq!(texts.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_u32(*code as u32), Some(*code));
        }
        assert_eq!(ErrorCode::from_u32(u32::MAX), None);
    }
}
