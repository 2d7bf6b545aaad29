//! The decision about calls of unified memory, and what their success changes.

use super::calls::pages;
use super::objects::Registered;
use super::{Action, Call, Checked, Freed, Refusal, Vm};
use crate::abi::numbers::{PAGE_BYTES, status, uvm};
use crate::abi::{MapCall, Node, read_u32, read_u64};

/// Decides about a call of unified memory.
pub(super) fn decide(vm: &Vm, call: &Call<'_>, top: &[u8]) -> Result<Checked, Refusal> {
    let layout = vm
        .release
        .uvm
        .get(&call.request)
        .ok_or(Refusal::Malformed)?;
    vm.own_all(layout, top)?;
    for (at, _) in &layout.descriptors {
        let file = read_u32(top, *at);
        let expected = if call.request == uvm::MM_INITIALIZE {
            Node::Uvm
        } else {
            Node::Control
        };
        // CAST: as in `decide`.
        if (file as i32) >= 0 && vm.node(file)? != expected {
            return Err(Refusal::Malformed);
        }
    }
    let base = layout.base.map_or(0, |at| read_u64(top, at));
    if uvm::HINTS.contains(&call.request) && is_ram(vm, call.file, base) {
        return Ok(Checked::of(Action::Answer(status::OK)));
    }
    match call.request {
        uvm::INITIALIZE => Ok(Checked::of(Action::Initialize)),
        uvm::SEMAPHORE_POOL => {
            // Attributes of the GPUs are read up to their number.
            let count = read_u32(top, 16 + uvm::ATTRIBUTES_MAX * uvm::ATTRIBUTE_BYTES) as usize;
            if count > uvm::ATTRIBUTES_MAX {
                return Err(Refusal::Malformed);
            }
            check_range(vm, call.file, base, read_u64(top, 8), call.ram_bytes)
        }
        uvm::CREATE_EXTERNAL_RANGE | uvm::MAP_EXTERNAL_ALLOCATION => {
            let file = vm.files.get(&call.file).ok_or(Refusal::NoFile)?;
            let mut checked = Checked::of(Action::Forward);
            let mut count = 1;
            if call.request == uvm::MAP_EXTERNAL_ALLOCATION {
                let map = MapCall::read(top).ok_or(Refusal::Malformed)?;
                let object = vm.object(map.client, map.memory);
                checked.memory = object.and_then(|object| object.memory);
                count = map.gpus().count();
            }
            if file.mappings.count() + count > vm.limits.mappings {
                return Err(Refusal::Limit);
            }
            Ok(checked)
        }
        _ => Ok(Checked::of(Action::Forward)),
    }
}

/// Decides about a range in guest RAM.
pub(super) fn check_range(
    vm: &Vm,
    file: u32,
    base: u64,
    bytes: u64,
    ram_bytes: u64,
) -> Result<Checked, Refusal> {
    let whole = base.is_multiple_of(PAGE_BYTES) && pages(bytes) == Some(bytes) && bytes != 0;
    if vm.node(file)? != Node::Uvm || !whole || ram_bytes != bytes {
        return Err(Refusal::Malformed);
    }
    if vm.ranges >= vm.limits.ranges {
        return Err(Refusal::Limit);
    }
    let mut checked = vm.pinned(Action::Range { base, bytes }, bytes);
    checked.objects = usize::from(checked.pinned_bytes != 0);
    Ok(checked)
}

fn is_ram(vm: &Vm, file: u32, address: u64) -> bool {
    vm.files
        .get(&file)
        .is_some_and(|file| file.ranges.contains_key(&address))
}

/// What a successful call changes.
pub(super) fn apply(
    vm: &mut Vm,
    call: &Call<'_>,
    top: &[u8],
    checked: &Checked,
    freed: &mut Vec<Freed>,
) {
    let is_map = call.request == uvm::MAP_EXTERNAL_ALLOCATION;
    let map = is_map.then(|| MapCall::read(top)).flatten();
    if let Some(map) = &map {
        vm.used(map.client, map.memory);
    }
    let Some(file) = vm.files.get_mut(&call.file) else {
        return;
    };
    let memories = &mut vm.objects.memories;
    let (base, bytes) = (read_u64(top, 0), read_u64(top, 8));
    match call.request {
        uvm::CREATE_EXTERNAL_RANGE => file.mappings.add_range(base, bytes),
        uvm::MAP_EXTERNAL_ALLOCATION => {
            for gpu in map.iter().flat_map(MapCall::gpus) {
                file.mappings
                    .map(base, bytes, gpu, checked.memory, memories);
            }
        }
        uvm::UNMAP_EXTERNAL => {
            let gpu = top.get(16..).and_then(|rest| rest.first_chunk()).copied();
            file.mappings.unmap(base, bytes, gpu, memories);
        }
        uvm::REGISTER_GPU_VASPACE => {
            let gpu = top.first_chunk().copied().unwrap_or_default();
            // One of each GPU.
            file.spaces.retain(|space| space.gpu != gpu);
            file.spaces.push(Registered {
                gpu,
                control: read_u32(top, 16),
                client: read_u32(top, 20),
                vaspace: read_u32(top, 24),
            });
        }
        uvm::FREE => {
            file.mappings.remove_range(base, memories);
            if let Some((client, handle)) = file.ranges.remove(&base) {
                vm.ranges -= 1;
                freed.push(Freed::Object { client, handle });
            }
        }
        _ => {}
    }
}
