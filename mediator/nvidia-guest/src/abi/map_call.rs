//! The argument of the call that maps memory of an object as unified memory.

use super::numbers::uvm;
use super::{read_u32, read_u64, write_u32, write_u64};

/// Offsets in UVM_MAP_EXTERNAL_ALLOCATION's parameters. SOURCE: `uvm_ioctl.h`, 570 to 595.
const MAP_BYTES: usize = 9264;
const MAP_ATTRIBUTES_AT: usize = 24;
const MAP_COUNT_AT: usize = 9240;
const MAP_CONTROL_AT: usize = 9248;
pub(crate) const MAP_CLIENT_AT: usize = 9252;
pub(crate) const MAP_MEMORY_AT: usize = 9256;
pub(crate) const MAP_STATUS_AT: usize = 9260;

/// The argument of UVM_MAP_EXTERNAL_ALLOCATION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapCall {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// In the memory.
    pub(crate) offset: u64,
    /// Of each GPU, [`uvm::ATTRIBUTE_BYTES`].
    pub(crate) attributes: Vec<u8>,
    /// The file of the client.
    pub(crate) control: u32,
    pub(crate) client: u32,
    pub(crate) memory: u32,
}

impl MapCall {
    /// Reads it. `None` if it names more GPUs than there can be.
    pub(crate) fn read(top: &[u8]) -> Option<Self> {
        // CAST: 32 bits.
        let count = read_u32(top, MAP_COUNT_AT) as usize;
        let end = count.checked_mul(uvm::ATTRIBUTE_BYTES)? + MAP_ATTRIBUTES_AT;
        Some(Self {
            base: read_u64(top, 0),
            bytes: read_u64(top, 8),
            offset: read_u64(top, 16),
            attributes: top.get(MAP_ATTRIBUTES_AT..end.min(MAP_COUNT_AT))?.to_vec(),
            control: read_u32(top, MAP_CONTROL_AT),
            client: read_u32(top, MAP_CLIENT_AT),
            memory: read_u32(top, MAP_MEMORY_AT),
        })
        .filter(|call| call.attributes.len() == end - MAP_ATTRIBUTES_AT)
    }

    /// The argument. Its status is not set.
    pub(crate) fn top(&self) -> Vec<u8> {
        let mut top = vec![0; MAP_BYTES];
        for (at, value) in [(0, self.base), (8, self.bytes), (16, self.offset)] {
            write_u64(&mut top, at, value);
        }
        let end = MAP_ATTRIBUTES_AT + self.attributes.len();
        top[MAP_ATTRIBUTES_AT..end].copy_from_slice(&self.attributes);
        // CAST: at most 256.
        let count = (self.attributes.len() / uvm::ATTRIBUTE_BYTES) as u32;
        write_u32(&mut top, MAP_COUNT_AT, count);
        write_u32(&mut top, MAP_CONTROL_AT, self.control);
        write_u32(&mut top, MAP_CLIENT_AT, self.client);
        write_u32(&mut top, MAP_MEMORY_AT, self.memory);
        top
    }

    /// The UUID of each GPU.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = [u8; 16]> {
        let attributes = self.attributes.chunks_exact(uvm::ATTRIBUTE_BYTES);
        attributes.filter_map(|attribute| attribute.first_chunk().copied())
    }
}
