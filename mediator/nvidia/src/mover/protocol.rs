//! What daemon and mover say to each other, on each line: the daemon orders, the mover answers, one at a time.

use serde::{Deserialize, Serialize};

/// Lines of a mover beside the one that it is started with.
pub(super) const MORE_LINES: usize = 3;
/// Extents of one order. SOURCE: frames carry 16 KiB and 33 descriptors.
pub(super) const EXTENTS_MAX: usize = 32;
/// Spans of one order: at most 30 bytes each as text.
pub(super) const SPANS_MAX: usize = 300;

/// Pages of the host: where they begin in the pool, and bytes.
pub(super) type Span = (u64, u64);

/// Memory behind one handle, and its pages at the host, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extent {
    /// Bytes, a multiple of the driver's granule.
    pub(super) bytes: u64,
    /// As many bytes.
    pub(super) spans: Vec<Span>,
}

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// First, and once. Descriptors: [`MORE_LINES`] sockets.
    Start {
        /// CUDA's number of the GPU.
        device: u32,
    },
    /// Pin a file as pages of the pool. Descriptor: the file.
    Pin {
        /// Where its pages begin in the pool.
        at: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Make zeroed memory; the answer carries its handle.
    Create {
        /// Bytes.
        bytes: u64,
    },
    /// Make memory zero. Descriptor: its handle.
    Zero {
        /// Bytes.
        bytes: u64,
    },
    /// Map memory and say so, then copy each extent to the host after an [`Order::Go`] of its own. Descriptors: a handle for each.
    /// Each has an answer of its own, as soon as it is done; the first when all may go.
    Out {
        /// What.
        extents: Vec<Extent>,
    },
    /// Nobody else has the next extent's memory mapped now; or leave it where it is.
    Go {
        /// Whether to copy.
        go: bool,
    },
    /// Copy to memory that is made for it. As above; answers carry its handle.
    In {
        /// What.
        extents: Vec<Extent>,
    },
}

/// What came of one extent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "moved", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Moved {
    /// It is where it was to go.
    Done {
        /// Time of the link.
        took_ns: u64,
    },
    /// It is where it was.
    Not {
        /// For want of GPU memory.
        no_room: bool,
        /// Why.
        detail: String,
    },
}

/// From the mover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    /// Done.
    Done {},
    /// What came of the next extent.
    Moved {
        /// Its result.
        result: Moved,
    },
    /// No.
    Refused {
        /// For want of GPU memory.
        no_room: bool,
        /// Why.
        detail: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_vmm::wire::FRAME_BYTES_MAX;

    #[test]
    fn the_longest_order_fits_in_a_frame() {
        let span = (u64::MAX >> 20, u64::MAX >> 30);
        let mut extents = vec![
            Extent {
                bytes: u64::MAX,
                spans: Vec::new(),
            };
            EXTENTS_MAX
        ];
        extents[0].spans = vec![span; SPANS_MAX];
        let order = serde_json::to_vec(&Order::Out { extents }).unwrap();
        assert!(order.len() <= FRAME_BYTES_MAX, "{}", order.len());
    }
}
