//! What daemon and worker say to each other, in frames of [`turnstile_vmm::wire`]. The daemon orders, the worker answers,
//! one at a time. Long texts travel as memory files.

use serde::{Deserialize, Serialize};
use turnstile_abi::ErrorCode;
use turnstile_vmm::wire::Region;

use turnstile_gpu::{ChannelConfig, Refusal};

/// Longest detail of a refusal that is taken from a worker, in bytes; the mailbox has room for 256.
const DETAIL_BYTES_MAX: usize = 512;

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// First. Descriptors: a memory file for each region, the doorbell pages, the board.
    Start {
        /// CUDA's number of the GPU.
        device: u32,
        /// Doorbell pages.
        channels: u32,
        /// GPU memory that the VM may own, whole pages.
        memory_bytes: u64,
        /// What a command may run.
        kernel_limit_ns: u64,
        /// Whose the process is to be, if it is the superuser's.
        user: Option<u32>,
        /// The VM's memory.
        regions: Vec<Region>,
    },
    /// Second. Descriptors: the socket that wakes the worker, then an eventfd for each interrupt vector.
    Vectors {},
    /// Put zeroed memory behind pages; the answer carries its descriptor.
    Allocate {
        /// First page.
        page: u32,
        /// Pages.
        pages: u32,
    },
    /// Put memory of the worker before this one behind pages again. Descriptor: the memory's.
    Restore {
        /// First page.
        page: u32,
        /// Pages.
        pages: u32,
    },
    /// Scrub and unmap.
    Free {
        /// First page.
        page: u32,
    },
    /// Put memory of the daemon's behind pages, in order, as far as nothing is there. Descriptors: the memory's, which is
    /// mapped and closed. Without any, the pages are known and have nothing behind, and no command is executed until they do.
    Map {
        /// First page and pages of each.
        memory: Vec<(u32, u32)>,
    },
    /// Unmap, and keep no handle: the pages have nothing behind. Asked for while the VM is suspended.
    Unmap {
        /// First pages.
        pages: Vec<u32>,
    },
    /// Unmap, and forget: the guest has freed it. All of it or nothing.
    Drop {
        /// First pages.
        pages: Vec<u32>,
    },
    /// Load a module. Descriptor: a memory file with its text.
    LoadModule {
        /// The handle that it gets.
        handle: u32,
        /// Bytes of text.
        bytes: u32,
    },
    /// Unload it.
    UnloadModule {
        /// Its handle.
        handle: u32,
    },
    /// Look a function up.
    FindFunction {
        /// Handle of the module.
        handle: u32,
        /// The function's name.
        name: String,
    },
    /// Use a ring.
    OpenChannel {
        /// The channel's number.
        channel: u32,
        /// Guest-physical address of the ring.
        ring_gpa: u64,
        /// Entries.
        entries: u32,
        /// Guest-physical address of the state block.
        state_gpa: u64,
        /// Vector of fences and faults.
        vector: u16,
    },
    /// Drop what is queued, and say so when what runs has ended.
    CloseChannel {
        /// The channel's number.
        channel: u32,
    },
}

impl Order {
    /// The order that opens a channel.
    pub(super) fn open(channel: u32, config: ChannelConfig) -> Self {
        let ChannelConfig {
            ring_gpa,
            entries,
            state_gpa,
            vector,
        } = config;
        Self::OpenChannel {
            channel,
            ring_gpa,
            entries,
            state_gpa,
            vector,
        }
    }
}

/// From the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    /// The worker can work.
    Ready {
        /// Streaming multiprocessors.
        multiprocessors: u32,
        /// Most shared memory of a block.
        shared_bytes_max: u32,
        /// Memory of the GPU.
        memory_bytes: u64,
        /// The VM's memory is pinned: copies run without the worker.
        pinned: bool,
    },
    /// Done. After an allocation with the memory's descriptor.
    Done {},
    /// The module is loaded.
    Module {
        /// Functions.
        functions: u32,
    },
    /// The function was found.
    Function {
        /// Its number.
        function: u32,
        /// Bytes of its parameters.
        param_bytes: u32,
    },
    /// No.
    Refused {
        /// [`ErrorCode`].
        code: u32,
        /// More of it.
        detail: String,
    },
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        let mut detail = refusal.detail;
        cut(&mut detail);
        Self::Refused {
            code: refusal.code as u32,
            detail,
        }
    }
}

fn cut(detail: &mut String) {
    if detail.len() > DETAIL_BYTES_MAX {
        let mut end = DETAIL_BYTES_MAX;
        while !detail.is_char_boundary(end) {
            end -= 1;
        }
        detail.truncate(end);
    }
}

/// A worker's refusal as the guest's. A code that is none is the worker's fault, not the guest's.
pub(super) fn refusal(code: u32, mut detail: String) -> Refusal {
    cut(&mut detail);
    let code = ErrorCode::from_u32(code).filter(|code| *code != ErrorCode::None);
    Refusal {
        code: code.unwrap_or(ErrorCode::DeviceLost),
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_refusal_keeps_its_code_and_as_much_text_as_fits() {
        let long = Refusal {
            code: ErrorCode::ModuleRefused,
            detail: "\u{e9}".repeat(DETAIL_BYTES_MAX),
        };
        let Answer::Refused { code, detail } = long.into() else {
            panic!("a refusal is one");
        };
        assert_eq!(refusal(code, detail.clone()).code, ErrorCode::ModuleRefused);
        assert_eq!(detail.len(), DETAIL_BYTES_MAX);
        assert_eq!(refusal(0, String::new()).code, ErrorCode::DeviceLost);
        assert_eq!(refusal(9999, String::new()).code, ErrorCode::DeviceLost);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = serde_json::from_slice::<Answer>(&bytes);
            let _ = serde_json::from_slice::<Order>(&bytes);
        }

        #[test]
        fn what_is_nearly_an_answer_is_taken_whole_or_not_at_all(
            name in "(ready|done|module|function|refused)", field in "(functions|code|detail|pinned|x)",
            value in prop_oneof![any::<i64>().prop_map(|n| n.to_string()), "\"[a-z]{0,600}\""],
        ) {
            let text = format!("{{\"answer\":\"{name}\",\"{field}\":{value}}}");
            if let Ok(answer) = serde_json::from_str::<Answer>(&text) {
                let again = serde_json::to_string(&answer).unwrap();
                prop_assert_eq!(serde_json::from_str::<Answer>(&again).unwrap(), answer);
            }
        }
    }
}
