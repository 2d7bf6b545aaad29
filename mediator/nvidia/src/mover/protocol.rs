//! Protocol between daemon and mover, on each connection: the daemon sends an order, the mover
//! answers, one at a time.

use serde::{Deserialize, Serialize};

/// Connections of a mover besides its first one.
pub(super) const MORE_LINES: usize = 3;
/// Extents in one order. SOURCE: frames carry 16 KiB and 33 descriptors.
pub(super) const EXTENTS_MAX: usize = 32;
/// Spans in one order: at most 30 bytes each as text.
pub(super) const SPANS_MAX: usize = 300;

/// Pages of the host: offset in the pool, and bytes.
pub(super) type Span = (u64, u64);

/// Memory behind one handle, and its pages at the host, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extent {
    /// Bytes, a multiple of the driver's granule.
    pub(super) bytes: u64,
    /// Pages for these bytes: as many bytes in total.
    pub(super) spans: Vec<Span>,
}

/// From the daemon to the mover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// First order, sent once. Descriptors: [`MORE_LINES`] sockets.
    Start {
        /// CUDA's number of the GPU.
        device: u32,
    },
    /// Pin a file as pages of the pool. Descriptor: the file.
    Pin {
        /// Offset of its pages in the pool.
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
    /// Map the memory, answer, then copy each extent to the host after its [`Order::Go`].
    /// Descriptors: a handle for each extent. Each extent has an answer of its own as soon as it is
    /// done.
    Out {
        /// What to copy.
        extents: Vec<Extent>,
    },
    /// For the next extent: no other process has it mapped now, so copy it; or leave it where it
    /// is.
    Go {
        /// Whether to copy.
        go: bool,
    },
    /// Copy extents to new memory. Each has an answer of its own, with the memory's handle.
    In {
        /// What to copy.
        extents: Vec<Extent>,
    },
}

/// Result for one extent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "moved", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Moved {
    /// It was moved.
    Done {
        /// Link time of the copy.
        took_ns: u64,
    },
    /// It was not moved.
    Not {
        /// The GPU has no memory for it.
        no_room: bool,
        /// Reason.
        detail: String,
    },
}

/// From the mover to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    /// Done.
    Done {},
    /// Result for the next extent.
    Moved {
        /// Its result.
        result: Moved,
    },
    /// The order was refused.
    Refused {
        /// The GPU has no memory for it.
        no_room: bool,
        /// Reason.
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
