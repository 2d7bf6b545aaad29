//! Protocol between daemon and worker, in frames of [`turnstile_vmm::wire`]. The daemon sends an
//! order, the worker answers it, one at a time. Long texts are sent as memory files.

use serde::{Deserialize, Serialize};
use turnstile_abi::ErrorCode;
use turnstile_vmm::wire::Region;

use turnstile_gpu::{ChannelConfig, Refusal};

/// Longest detail that is accepted in a worker's refusal, in bytes; the mailbox has room for 256.
const DETAIL_BYTES_MAX: usize = 512;

/// From the daemon to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// First. Descriptors: a memory file for each region, the doorbell pages, the shared page.
    Start {
        /// CUDA's number of the GPU.
        device: u32,
        /// Number of doorbell pages.
        channels: u32,
        /// GPU memory that the VM may own, in bytes; a multiple of the page size.
        memory_bytes: u64,
        /// Run time limit of a command.
        kernel_limit_ns: u64,
        /// User id for the process, used if it runs as root.
        user: Option<u32>,
        /// The VM's memory.
        regions: Vec<Region>,
    },
    /// Second. Descriptors: the socket that wakes the worker, then an eventfd for each interrupt
    /// vector.
    Vectors {},
    /// Map new zeroed memory at pages; the answer carries its descriptor.
    Allocate {
        /// First page.
        page: u32,
        /// Number of pages.
        pages: u32,
    },
    /// Map memory of the previous worker at its pages. Descriptor: the memory's.
    Restore {
        /// First page.
        page: u32,
        /// Number of pages.
        pages: u32,
    },
    /// Scrub and unmap an allocation.
    Free {
        /// First page.
        page: u32,
    },
    /// Map the daemon's memory at pages that have none, in order. Descriptors: the memory's, closed
    /// once mapped. Without descriptors the pages are recorded as absent, and no command is
    /// executed until they have memory.
    Map {
        /// First page and pages of each.
        memory: Vec<(u32, u32)>,
    },
    /// Unmap, and keep no handle: the pages become absent. Sent while the VM is suspended.
    Unmap {
        /// First page of each.
        pages: Vec<u32>,
    },
    /// Unmap and drop what the guest has freed: all of it or nothing.
    Drop {
        /// First page of each.
        pages: Vec<u32>,
    },
    /// Load a module. Descriptor: a memory file with its text.
    LoadModule {
        /// The handle for it.
        handle: u32,
        /// Bytes of text.
        bytes: u32,
    },
    /// Unload a module.
    UnloadModule {
        /// Its handle.
        handle: u32,
    },
    /// Look up a function of a module.
    FindFunction {
        /// Handle of the module.
        handle: u32,
        /// The function's name.
        name: String,
    },
    /// Open a channel.
    OpenChannel {
        /// The channel's number.
        channel: u32,
        /// Guest-physical address of the ring.
        ring_gpa: u64,
        /// Number of ring entries.
        entries: u32,
        /// Guest-physical address of the state block.
        state_gpa: u64,
        /// Vector of fences and faults.
        vector: u16,
    },
    /// Close a channel: drop what is queued, and report when the commands in flight have finished.
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

/// From the worker to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    /// The worker is ready.
    Ready {
        /// Streaming multiprocessors.
        multiprocessors: u32,
        /// Most shared memory of a block, in bytes.
        shared_bytes_max: u32,
        /// Memory of the GPU, in bytes.
        memory_bytes: u64,
        /// The VM's memory is pinned: copies run without the worker.
        pinned: bool,
    },
    /// Done. After [`Order::Allocate`] with the memory's descriptor.
    Done {},
    /// The module is loaded.
    Module {
        /// Number of functions.
        functions: u32,
    },
    /// The function was found.
    Function {
        /// Its index.
        function: u32,
        /// Bytes of its parameters.
        param_bytes: u32,
    },
    /// The order was refused.
    Refused {
        /// [`ErrorCode`].
        code: u32,
        /// Detail, as text.
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

/// A worker's refusal as one for the guest. An unknown code is the worker's error, not the guest's.
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
