//! The decision about each kind of call, and what its success changes.

use super::objects::{Client, Object};
use super::{Action, Call, Checked, Freed, Made, Mapping, Refusal, Space, Vm, uvm};
use crate::abi::numbers::{MEMORY_BYTES_AT, PAGE_BYTES, class, control, escape, status};
use crate::abi::{Node, descriptors, number, read_u32, read_u64};

/// The engine in the parameters of a channel group.
const GROUP_ENGINE_AT: usize = 12;
/// Offset of the GPU's number in those of a device. SOURCE: `class/cl0080.h`.
const DEVICE_NUMBER_AT: usize = 0;

/// Bytes as whole pages; `None` beyond 64 bits.
pub(super) fn pages(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE_BYTES)
}

impl Vm {
    pub(super) fn decide(&mut self, call: &Call<'_>) -> Result<Checked, Refusal> {
        let node = self.node(call.file)?;
        for field in descriptors(self.release, node, call.request, call.parts) {
            // CAST: a descriptor has 32 bits, and is negative if there is none.
            let file = read_u32(&call.parts.buffers[field.buffer], field.at);
            if (file as i32) >= 0 && !self.files.contains_key(&file) {
                return Err(Refusal::NoFile);
            }
        }
        let Some(top) = call.parts.buffers.first() else {
            return Ok(Checked::of(Action::Forward));
        };
        if node == Node::Uvm {
            return uvm::decide(self, call, top);
        }
        let (number, _) = number(call.request).ok_or(Refusal::Malformed)?;
        let client = read_u32(top, 0);
        let handle = read_u32(top, 8);
        match number {
            escape::RM_ALLOC => self.decide_alloc(call, top),
            escape::RM_CONTROL => self.decide_control(call, top),
            escape::RM_ALLOC_MEMORY => {
                self.own(client)?;
                // Its descriptor is for imports of files.
                if read_u32(top, 12) != class::OS_DESCRIPTOR || read_u32(top, 48) != u32::MAX {
                    self.unknown(read_u32(top, 12));
                    return Ok(Checked::of(Action::Answer(status::NOT_SUPPORTED)));
                }
                let (address, last) = (read_u64(top, 24), read_u64(top, 32));
                let bytes = last.checked_add(1 + address % PAGE_BYTES).and_then(pages);
                self.registered(call, bytes, Action::Register)
            }
            escape::RM_FREE | escape::ALLOC_OS_EVENT | escape::FREE_OS_EVENT => {
                self.own(client)?;
                Ok(Checked::of(Action::Forward))
            }
            escape::RM_DUP_OBJECT => {
                self.own(client)?;
                self.own(read_u32(top, 12))?;
                let source = self.object(read_u32(top, 12), read_u32(top, 16));
                let mut checked = self.counted(Action::Forward, 0)?;
                checked.memory = source.and_then(|object| object.memory);
                Ok(checked)
            }
            // All clients of a VM are in one process, which the driver's default permits.
            escape::RM_SHARE => {
                self.own(client)?;
                Ok(Checked::of(Action::Answer(status::OK)))
            }
            escape::RM_MAP_MEMORY => {
                self.own(client)?;
                let object = self.object(client, handle);
                if let Some(object) = object
                    && object.class == class::GPU_MEMORY
                    && object.detail == 0
                {
                    let bytes = object.gpu_bytes;
                    let mut checked =
                        self.registered(call, pages(bytes), Action::Exchange { bytes })?;
                    checked.objects = 0;
                    return Ok(checked);
                }
                Ok(Checked::of(match object {
                    Some(object)
                        if class::is_doorbells(object.class)
                            || object.class == class::SHARED_PAGE =>
                    {
                        Action::Forward
                    }
                    Some(_) => Action::Answer(status::NOT_SUPPORTED),
                    None => Action::Answer(status::OBJECT_NOT_FOUND),
                }))
            }
            escape::RM_UNMAP_MEMORY | escape::RM_UPDATE_DEVICE_MAPPING_INFO => {
                self.own(client)?;
                let object = self.object(client, handle);
                let ram = object.is_none_or(|object| object.pinned_bytes != 0);
                Ok(Checked::of(if ram {
                    Action::Answer(status::OK)
                } else {
                    Action::Forward
                }))
            }
            _ => Ok(Checked::of(Action::Forward)),
        }
    }

    fn decide_alloc(&mut self, call: &Call<'_>, top: &[u8]) -> Result<Checked, Refusal> {
        let (client, kind) = (read_u32(top, 0), read_u32(top, 12));
        if class::is_root(kind) {
            // libcuda requests no handle.
            if client != 0 || read_u32(top, 4) != 0 || read_u32(top, 8) != 0 {
                return Err(Refusal::Foreign);
            }
            if self.objects.clients.len() >= self.limits.clients {
                self.refusals.limited += 1;
                return Ok(Checked::of(Action::Answer(status::INSUFFICIENT_RESOURCES)));
            }
            return self.counted(Action::Forward, 0);
        }
        self.own(client)?;
        let Some(layout) = self.release.classes.get(&kind) else {
            self.unknown(kind);
            return Ok(Checked::of(Action::Answer(status::NOT_SUPPORTED)));
        };
        let params = call.parts.params().unwrap_or_default();
        self.own_all(layout, params)?;
        let bytes = read_u64(params, MEMORY_BYTES_AT);
        match kind {
            class::SYSTEM_MEMORY => self.registered(call, pages(bytes), Action::Replace { bytes }),
            class::GPU_MEMORY if !self.fits_quota(bytes) => {
                self.refusals.limited += 1;
                Ok(Checked::of(Action::Answer(status::NO_MEMORY)))
            }
            class::GPU_MEMORY => {
                let mut checked = self.counted(Action::Forward, 0)?;
                if checked.action == Action::Forward {
                    checked.gpu_bytes = bytes;
                }
                Ok(checked)
            }
            kind => self.counted(Action::Forward, usize::from(class::is_channel(kind))),
        }
    }

    fn decide_control(&mut self, call: &Call<'_>, top: &[u8]) -> Result<Checked, Refusal> {
        self.own(read_u32(top, 0))?;
        let number = read_u32(top, 8);
        let Some(layout) = self.release.controls.get(&number) else {
            self.unknown(number);
            return Ok(Checked::of(Action::Answer(status::NOT_SUPPORTED)));
        };
        self.own_all(layout, call.parts.params().unwrap_or_default())?;
        Ok(Checked::of(if layout.empty {
            Action::Nothing
        } else if layout.answered {
            Action::Answer(status::OK)
        } else {
            Action::Forward
        }))
    }

    /// A call with guest RAM that is to be registered.
    fn registered(
        &mut self,
        call: &Call<'_>,
        bytes: Option<u64>,
        action: Action,
    ) -> Result<Checked, Refusal> {
        let bytes = bytes.filter(|bytes| *bytes != 0 && *bytes == call.ram_bytes);
        let bytes = bytes.ok_or(Refusal::Malformed)?;
        let counted = self.counted(action, 0)?;
        if counted.action != action {
            return Ok(counted);
        }
        let mut checked = self.pinned(action, bytes);
        if checked.action == action {
            checked.objects = 1;
        } else {
            self.refusals.limited += 1;
        }
        Ok(checked)
    }

    pub(super) fn pinned(&self, action: Action, bytes: u64) -> Checked {
        if !self.pins(bytes) {
            return Checked::of(Action::Answer(status::NO_MEMORY));
        }
        Checked {
            pinned_bytes: bytes,
            ..Checked::of(action)
        }
    }

    /// A call that makes one object.
    fn counted(&mut self, action: Action, channels: usize) -> Result<Checked, Refusal> {
        let usage = self.objects.usage;
        if usage.objects >= self.limits.objects || usage.channels + channels > self.limits.channels
        {
            self.refusals.limited += 1;
            return Ok(Checked::of(Action::Answer(status::INSUFFICIENT_RESOURCES)));
        }
        Ok(Checked {
            objects: 1,
            channels,
            ..Checked::of(action)
        })
    }

    /// What a successful call changes.
    pub(super) fn apply(
        &mut self,
        call: &Call<'_>,
        checked: &Checked,
        freed: &mut Vec<Freed>,
    ) -> Option<Made> {
        let node = self.node(call.file).ok()?;
        let top = call.parts.buffers.first()?;
        let word = |at| read_u32(top, at);
        if node == Node::Uvm {
            uvm::apply(self, call, top, checked, freed);
            return None;
        }
        let (client, handle) = (word(0), word(8));
        match number(call.request)?.0 {
            escape::RM_ALLOC if class::is_root(word(12)) => {
                let made = Client {
                    file: call.file,
                    objects: Default::default(),
                };
                // The driver never gives a handle out twice.
                self.free(handle, handle, freed);
                self.objects.clients.insert(handle, made);
                self.objects.usage.objects += 1;
                None
            }
            escape::RM_ALLOC => {
                let params = call.parts.params().unwrap_or_default();
                let detail = match word(12) {
                    class::CHANNEL_GROUP => read_u32(params, GROUP_ENGINE_AT),
                    class::DEVICE => read_u32(params, DEVICE_NUMBER_AT),
                    kind if class::is_doorbells(kind) => {
                        params.first().copied().unwrap_or(0).into()
                    }
                    _ => 0,
                };
                let object = Object {
                    parent: word(4),
                    class: word(12),
                    // The driver has rounded it up.
                    gpu_bytes: match word(12) {
                        class::GPU_MEMORY => read_u64(params, MEMORY_BYTES_AT),
                        _ => 0,
                    },
                    memory: None,
                    pinned_bytes: checked.pinned_bytes,
                    detail,
                };
                Some(self.objects.insert(client, handle, object))
            }
            escape::RM_ALLOC_MEMORY => {
                let object = Object {
                    parent: word(4),
                    class: word(12),
                    pinned_bytes: checked.pinned_bytes,
                    ..Object::default()
                };
                Some(self.objects.insert(client, handle, object))
            }
            escape::RM_DUP_OBJECT => {
                self.used(word(12), word(16));
                // Memory is counted once, and channels where they were allocated.
                let object = Object {
                    parent: word(4),
                    memory: checked.memory,
                    ..Object::default()
                };
                Some(self.objects.insert(client, handle, object))
            }
            escape::RM_FREE => {
                self.free(client, handle, freed);
                None
            }
            escape::REGISTER_FD => {
                let control = Some(word(0));
                self.files.get_mut(&call.file)?.control = control;
                None
            }
            escape::RM_MAP_MEMORY => {
                let object = self.object(client, handle)?;
                if let Action::Exchange { .. } = checked.action {
                    let object = Object {
                        class: class::OS_DESCRIPTOR,
                        gpu_bytes: 0,
                        memory: None,
                        pinned_bytes: checked.pinned_bytes,
                        ..object
                    };
                    self.objects.insert(client, handle, object);
                    return None;
                }
                let mapping = if class::is_doorbells(object.class) {
                    Mapping::Window {
                        bar1: object.detail != 0,
                    }
                } else {
                    Mapping::Page
                };
                self.files.get_mut(&word(48))?.mapping = Some(mapping);
                None
            }
            _ => None,
        }
    }

    /// Notes that more than the handle refers to memory.
    pub(super) fn used(&mut self, client: u32, handle: u32) {
        let client = self.objects.clients.get_mut(&client);
        if let Some(object) = client.and_then(|client| client.objects.get_mut(&handle))
            && object.class == class::GPU_MEMORY
        {
            object.detail = 1;
        }
    }

    /// Notes a range of guest RAM. Its memory object is the device process's.
    pub(crate) fn add_range(
        &mut self,
        file: u32,
        base: u64,
        bytes: u64,
        space: &Space,
        handle: u32,
    ) {
        let object = Object {
            parent: space.device,
            class: class::OS_DESCRIPTOR,
            pinned_bytes: bytes,
            ..Object::default()
        };
        self.objects.insert(space.client, handle, object);
        if let Some(file) = self.files.get_mut(&file)
            && file.ranges.insert(base, (space.client, handle)).is_none()
        {
            self.ranges += 1;
        }
    }

    /// Notes that an object of the device process was freed.
    pub fn freed(&mut self, client: u32, handle: u32) -> Vec<Freed> {
        let mut freed = Vec::new();
        self.free(client, handle, &mut freed);
        freed
    }

    /// Cuts the driver's answer about memory to the quota. Movable memory, which has a limit, is
    /// free as far as that goes: what others have there is moved away.
    pub(crate) fn cut_to_quota(&self, number: u32, params: &mut [u8], movable_bytes: Option<u64>) {
        /// Kinds of total and of free memory. SOURCE: `ctrl2080fb.h`, NV2080_CTRL_FB_INFO_INDEX.
        const TOTALS: [u32; 5] = [7, 8, 9, 0xa, 0x20];
        const FREES: [u32; 2] = [0x12, 0x16];
        let limits = [self.limits.gpu_bytes, movable_bytes];
        let Some(quota) = limits
            .into_iter()
            .flatten()
            .min()
            .filter(|_| number == control::FB_GET_INFO_V2)
        else {
            return;
        };
        let count = read_u32(params, 0) as usize;
        let entries = params.get_mut(4..).unwrap_or_default();
        let mut card = u64::MAX;
        for entry in entries.chunks_exact_mut(8).take(count) {
            let value = u64::from(read_u32(entry, 4)) << 10;
            let bytes = match read_u32(entry, 0) {
                index if TOTALS.contains(&index) => {
                    card = card.min(value);
                    quota.min(value)
                }
                index if FREES.contains(&index) => {
                    let free = quota.min(card).saturating_sub(self.usage().gpu_bytes);
                    // Without a total in the list, the driver's figure bounds it.
                    let is_free = movable_bytes.is_some() && card != u64::MAX;
                    if is_free { free } else { free.min(value) }
                }
                _ => continue,
            };
            let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
            crate::abi::write_u32(entry, 4, kib);
        }
    }
}
