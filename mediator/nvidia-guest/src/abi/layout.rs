//! The buffers of a call: its argument, the parameters to which that points, and what these point
//! to. Guest side and device process compute them in the same way: one collects the bytes from its
//! memory, the other compares the lengths.

use super::numbers::{ESCAPE_TYPE, escape, uvm};
use super::{Layout, Release};

/// Most bytes of an embedded buffer, of parameters without a known size, and most buffers.
const EMBEDDED_BYTES_MAX: usize = 1 << 20;
const UNKNOWN_BYTES_MAX: usize = 4096;
/// NVOS54_FLAGS_FINN_SERIALIZED.
const SERIALIZED: u32 = 4;
/// Bytes of the address of parameters in RM_ALLOC and RM_CONTROL, and of access rights in RM_ALLOC.
pub(super) const PARAMS_AT: usize = 16;
pub(super) const RIGHTS_AT: usize = 24;
pub(super) const RIGHTS_BYTES: usize = 4;
/// Bytes of RM_ALLOC's argument with access rights.
pub(super) const LONG_ALLOC_BYTES: usize = 48;

/// A node of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`.
    Gpu(u8),
    /// `/dev/nvidia-uvm`.
    Uvm,
}

impl Node {
    /// The node of a path.
    pub fn of(path: &[u8]) -> Option<Self> {
        match path.strip_prefix(b"/dev/nvidia")? {
            b"ctl" => Some(Self::Control),
            b"-uvm" => Some(Self::Uvm),
            digits => std::str::from_utf8(digits)
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|text| text.parse().ok())
                .map(Self::Gpu),
        }
    }

    /// Its path.
    pub fn path(self) -> String {
        match self {
            Self::Control => "/dev/nvidiactl".to_owned(),
            Self::Gpu(index) => format!("/dev/nvidia{index}"),
            Self::Uvm => "/dev/nvidia-uvm".to_owned(),
        }
    }
}

/// Why a call has no layout. All fail with EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The table has no such escape or call.
    #[error("The call is not in the table")]
    Unknown,
    /// Its size is not the table's.
    #[error("The size is not the table's")]
    Size,
    /// The parameters are in a serialised form.
    #[error("The parameters are serialised")]
    Serialized,
    /// A buffer is too long.
    #[error("A buffer is too long")]
    TooLong,
    /// A buffer is missing, or cannot be read.
    #[error("A buffer is missing")]
    Missing,
}

/// An address within a buffer that points to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The buffer with the address.
    pub parent: usize,
    /// Byte of the address.
    pub at: usize,
    /// The buffer that it points to; `None`: the driver gets a null.
    pub child: Option<usize>,
}

/// The buffers of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Their bytes; the first is the argument.
    pub buffers: Vec<Vec<u8>>,
    /// Addresses in them.
    pub links: Vec<Link>,
}

/// A descriptor within a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The buffer.
    pub buffer: usize,
    /// Its byte.
    pub at: usize,
    /// Its width in bytes, 4 or 8.
    pub width: usize,
}

/// The word at a byte; zero behind the end.
pub fn read_u32(buffer: &[u8], at: usize) -> u32 {
    let bytes = buffer.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// The double word at a byte; zero behind the end.
pub fn read_u64(buffer: &[u8], at: usize) -> u64 {
    let bytes = buffer.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Sets the word at a byte; nothing behind the end.
pub fn write_u32(buffer: &mut [u8], at: usize, value: u32) {
    if let Some(bytes) = buffer.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = value.to_ne_bytes();
    }
}

/// Sets the double word at a byte; nothing behind the end.
pub fn write_u64(buffer: &mut [u8], at: usize, value: u64) {
    if let Some(bytes) = buffer.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = value.to_ne_bytes();
    }
}

/// Number of an escape, and the size of its argument. `None` if the request is no escape.
pub fn number(request: u32) -> Option<(u8, usize)> {
    // SOURCE: `asm-generic/ioctl.h`: direction, size of 14 bits, type, number.
    let [number, kind, ..] = request.to_le_bytes();
    let both_directions = request >> 30 == 3;
    (both_directions && kind == ESCAPE_TYPE).then_some((number, (request >> 16 & 0x3fff) as usize))
}

/// Computes the buffers of a call. `next` gets the address and the length of each, in their order.
///
/// # Errors
/// If the table has no such call, or it has another size.
pub fn parts(
    release: &Release,
    node: Node,
    request: u32,
    argument: u64,
    next: &mut dyn FnMut(u64, usize) -> Option<Vec<u8>>,
) -> Result<Parts, LayoutError> {
    let mut parts = Parts::default();
    if node == Node::Uvm {
        if request == uvm::DEINITIALIZE {
            return Ok(parts);
        }
        let layout = release.uvm.get(&request).ok_or(LayoutError::Unknown)?;
        let bytes = layout.bytes.ok_or(LayoutError::Unknown)?;
        parts
            .buffers
            .push(next(argument, bytes).ok_or(LayoutError::Missing)?);
        return Ok(parts);
    }
    let (number, bytes) = number(request).ok_or(LayoutError::Unknown)?;
    let sizes = release.escapes.get(&number).ok_or(LayoutError::Unknown)?;
    if !sizes.contains(&bytes) {
        return Err(LayoutError::Size);
    }
    let top = next(argument, bytes).ok_or(LayoutError::Missing)?;
    let params = read_u64(&top, PARAMS_AT);
    let wanted = match number {
        escape::RM_ALLOC => {
            let given = read_u32(&top, if bytes == LONG_ALLOC_BYTES { 32 } else { 24 });
            let layout = release.classes.get(&read_u32(&top, 12));
            let known = layout.and_then(|layout| layout.bytes);
            // CAST: 32 bits.
            if known.is_some_and(|known| given != 0 && known != given as usize) {
                return Err(LayoutError::Size);
            }
            layout.zip(known)
        }
        escape::RM_CONTROL => {
            if read_u32(&top, 12) & SERIALIZED != 0 {
                return Err(LayoutError::Serialized);
            }
            let given = read_u32(&top, 24) as usize;
            match release.controls.get(&read_u32(&top, 8)) {
                Some(layout) if layout.bytes.is_some_and(|bytes| bytes != given) => {
                    return Err(LayoutError::Size);
                }
                Some(_) if given > UNKNOWN_BYTES_MAX.max(EMBEDDED_BYTES_MAX) => {
                    return Err(LayoutError::TooLong);
                }
                Some(layout) if layout.bytes.is_none() && given > UNKNOWN_BYTES_MAX => {
                    return Err(LayoutError::TooLong);
                }
                layout => layout.map(|layout| (layout, given)),
            }
        }
        _ => {
            parts.buffers.push(top);
            return Ok(parts);
        }
    };
    parts.buffers.push(top);
    let Some((layout, bytes)) = wanted else {
        // Unknown class or control: answered without its parameters.
        return Ok(parts);
    };
    parts.embed(0, PARAMS_AT, params, bytes, next)?;
    let has_params = parts.buffers.len() == 2;
    if number == escape::RM_ALLOC && parts.buffers[0].len() == LONG_ALLOC_BYTES {
        let rights = read_u64(&parts.buffers[0], RIGHTS_AT);
        parts.embed(0, RIGHTS_AT, rights, RIGHTS_BYTES, next)?;
    }
    if has_params {
        parts.embed_all(layout, next)?;
    } else if bytes != 0 && number == escape::RM_CONTROL {
        return Err(LayoutError::Missing);
    }
    Ok(parts)
}

impl Parts {
    /// Appends the buffer of an address, or notes that the driver gets none.
    fn embed(
        &mut self,
        parent: usize,
        at: usize,
        address: u64,
        bytes: usize,
        next: &mut dyn FnMut(u64, usize) -> Option<Vec<u8>>,
    ) -> Result<(), LayoutError> {
        let child = if address == 0 || bytes == 0 {
            None
        } else {
            let buffer = next(address, bytes).filter(|buffer| buffer.len() == bytes);
            self.buffers.push(buffer.ok_or(LayoutError::Missing)?);
            Some(self.buffers.len() - 1)
        };
        self.links.push(Link { parent, at, child });
        Ok(())
    }

    /// Buffers that parameters point to.
    fn embed_all(
        &mut self,
        layout: &Layout,
        next: &mut dyn FnMut(u64, usize) -> Option<Vec<u8>>,
    ) -> Result<(), LayoutError> {
        for embedded in &layout.buffers {
            let count = read_u32(&self.buffers[1], embedded.count_at) as usize;
            let elements = if embedded.squared {
                count.checked_mul(count)
            } else {
                Some(count)
            };
            let bytes = elements
                .and_then(|elements| elements.checked_mul(embedded.element_bytes))
                .filter(|bytes| *bytes <= EMBEDDED_BYTES_MAX)
                .ok_or(LayoutError::TooLong)?;
            let address = read_u64(&self.buffers[1], embedded.at);
            self.embed(1, embedded.at, address, bytes, next)?;
        }
        for at in &layout.nulls {
            self.links.push(Link {
                parent: 1,
                at: *at,
                child: None,
            });
        }
        Ok(())
    }

    /// The parameters of RM_ALLOC or RM_CONTROL, if there are any.
    pub fn params(&self) -> Option<&[u8]> {
        let link = self
            .links
            .iter()
            .find(|link| (link.parent, link.at) == (0, PARAMS_AT))?;
        self.buffers.get(link.child?).map(Vec::as_slice)
    }

    /// The same, to change them.
    pub(crate) fn params_mut(&mut self) -> Option<&mut Vec<u8>> {
        let link = self
            .links
            .iter()
            .find(|link| (link.parent, link.at) == (0, PARAMS_AT))?;
        self.buffers.get_mut(link.child?)
    }
}

/// The descriptors of a call.
pub fn descriptors(release: &Release, node: Node, request: u32, parts: &Parts) -> Vec<Descriptor> {
    let field = |buffer: usize, (at, width): (usize, usize)| Descriptor { buffer, at, width };
    let Some(top) = parts.buffers.first() else {
        return Vec::new();
    };
    if node == Node::Uvm {
        let layout = release.uvm.get(&request);
        let fields = layout.into_iter().flat_map(|layout| &layout.descriptors);
        return fields.map(|at| field(0, *at)).collect();
    }
    let layout = match number(request).map(|(number, _)| number) {
        Some(escape::RM_ALLOC) => release.classes.get(&read_u32(top, 12)),
        Some(escape::RM_CONTROL) => release.controls.get(&read_u32(top, 8)),
        Some(number) => {
            return escape_descriptors(number)
                .iter()
                .map(|at| field(0, *at))
                .collect();
        }
        None => None,
    };
    let fields = layout.into_iter().flat_map(|layout| &layout.descriptors);
    let fields = fields.filter(|_| parts.params().is_some());
    fields.map(|at| field(1, *at)).collect()
}

/// Bytes and widths of the descriptors in an escape's argument.
pub(super) const fn escape_descriptors(number: u8) -> &'static [(usize, usize)] {
    match number {
        escape::RM_ALLOC_MEMORY | escape::RM_MAP_MEMORY => &[(48, 4)],
        escape::REGISTER_FD => &[(0, 4)],
        escape::ALLOC_OS_EVENT | escape::FREE_OS_EVENT => &[(8, 4)],
        _ => &[],
    }
}

/// Byte of the status in the argument.
pub fn status_at(release: &Release, node: Node, request: u32) -> Option<usize> {
    if node == Node::Uvm {
        return release.uvm.get(&request)?.status;
    }
    let (number, bytes) = number(request)?;
    escape_status_at(number, bytes)
}

/// The same of an escape.
pub(super) const fn escape_status_at(number: u8, bytes: usize) -> Option<usize> {
    Some(match number {
        escape::RM_ALLOC if bytes == LONG_ALLOC_BYTES => 40,
        escape::RM_ALLOC | escape::RM_CONTROL => 28,
        escape::RM_ALLOC_MEMORY | escape::RM_MAP_MEMORY => 40,
        escape::RM_FREE | escape::ALLOC_OS_EVENT | escape::FREE_OS_EVENT => 12,
        escape::RM_DUP_OBJECT | escape::RM_UNMAP_MEMORY => 24,
        escape::RM_SHARE => 20,
        escape::RM_UPDATE_DEVICE_MAPPING_INFO => 32,
        _ => return None,
    })
}
