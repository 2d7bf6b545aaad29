//! Guest RAM as ranges of unified memory: the semaphore pool, and managed memory.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::program::Program;
use super::ram::{Pieces, User};
use super::{Device, calls, driver, locked};
use crate::abi::numbers::{escape, status, uvm};
use crate::abi::{MAP_STATUS_AT, MapCall, Node, read_u32, write_u32, write_u64};
use crate::check::Call;
use crate::proto::Message;

/// UvmGpuMappingAttributes: mapping type, then caching. SOURCE: `uvm_types.h`.
const CACHING_AT: usize = 20;
const CACHED: u32 = 1;

/// Managed memory of a program.
///
/// # Errors
/// If it is refused.
pub(super) fn managed(
    device: &Device,
    program: &Program<'_>,
    message: &Message,
) -> io::Result<Message> {
    let (base, bytes) = (message.a, message.b);
    let _shared = device.enter();
    let pieces = program.pieces(message)?;
    let ram_bytes = pieces.bytes;
    let checked = {
        let mut vm = locked(&device.vm);
        vm.range(message.file, base, bytes, ram_bytes)
            .map_err(|refusal| io::Error::from_raw_os_error(refusal.errno()))?
    };
    let mut attributes = Vec::new();
    let spaces = locked(&device.vm).spaces(message.file);
    for space in spaces {
        let mut attribute = space.gpu.to_vec();
        attribute.resize(uvm::ATTRIBUTE_BYTES, 0);
        write_u32(&mut attribute, CACHING_AT, CACHED);
        attributes.extend(attribute);
    }
    let result = range(device, &pieces, message, base, bytes, attributes);
    let parts = crate::abi::Parts::default();
    let call = Call {
        file: message.file,
        request: 0,
        parts: &parts,
        ram_bytes,
    };
    let _ = locked(&device.vm).settle(&call, &checked, false);
    let mut answer = message.answer();
    answer.a = result?.into();
    Ok(answer)
}

/// Maps guest RAM for the GPUs of the attributes; returns the status.
pub(super) fn range(
    device: &Device,
    pieces: &Pieces,
    message: &Message,
    base: u64,
    bytes: u64,
    attributes: Vec<u8>,
) -> io::Result<u32> {
    let gpu = attributes.first_chunk::<16>().copied().unwrap_or_default();
    let spaces = locked(&device.vm).spaces(message.file);
    let Some(space) = spaces.into_iter().find(|space| space.gpu == gpu) else {
        return Ok(status::OBJECT_NOT_FOUND);
    };
    let Some(gpu_file) = locked(&device.vm).gpu_file_of(space.control) else {
        return Ok(status::OBJECT_NOT_FOUND);
    };
    let lent = pieces.map()?;
    let handle = own_handle(device);
    let own = [space.client, space.device, handle];
    match calls::register(device, gpu_file, own, lent.address(), bytes)? {
        status::OK => {}
        status => return Ok(status),
    }
    let mut create = vec![0; 24];
    write_u64(&mut create, 0, base);
    write_u64(&mut create, 8, bytes);
    let map = MapCall {
        base,
        bytes,
        offset: 0,
        attributes,
        control: space.control,
        client: space.client,
        memory: handle,
    };
    let map = map.top();
    let calls = [
        (uvm::CREATE_EXTERNAL_RANGE, create, 16),
        (uvm::MAP_EXTERNAL_ALLOCATION, map, MAP_STATUS_AT),
    ];
    for (request, top, status_at) in calls {
        let mut parts = driver::argument(top);
        let issued = calls::forward(device, message.file, Node::Uvm, request, &mut parts);
        let answer = issued.map(|_| read_u32(&parts.buffers[0], status_at));
        if !matches!(answer, Ok(status::OK)) {
            free_object(device, space.control, own);
            return answer;
        }
    }
    locked(&device.vm).add_range(message.file, base, bytes, &space, handle);
    let mut lending = locked(&device.lending);
    lending.insert(space.client, handle, lent);
    // Unified memory has a duplicate of the object until the range is freed.
    lending.used_by(User::Range(message.file, base), space.client, handle);
    Ok(status::OK)
}

/// A handle that no program has.
pub(super) fn own_handle(device: &Device) -> u32 {
    device.next_handle.fetch_add(1, Ordering::Relaxed)
}

/// Frees an object that this process has made for a range.
pub(super) fn free_own(device: &Device, client: u32, handle: u32) {
    let found = {
        let vm = locked(&device.vm);
        vm.object(client, handle).zip(vm.client_file(client))
    };
    if let Some((object, control)) = found {
        free_object(device, control, [client, object.parent, handle]);
    }
}

/// Frees an object, by a call on a control file; returns the driver's status.
pub(super) fn free_object(
    device: &Device,
    control: u32,
    [client, parent, handle]: [u32; 3],
) -> u32 {
    let top = driver::words(&[client, parent, handle, 0]);
    let request = driver::request(escape::RM_FREE, top.len());
    let mut parts = driver::argument(top);
    let issued = device.opened(control).and_then(|opened| {
        device
            .driver
            .call(opened.file()?.as_fd(), request, &mut parts)
    });
    let status = match issued {
        Ok(_) => read_u32(&parts.buffers[0], 12),
        Err(_) => status::OPERATING_SYSTEM,
    };
    if status != status::OK {
        log::debug!("An object is freed with its client");
    }
    status
}
