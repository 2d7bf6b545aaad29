//! The driver's calls by which memory leaves, comes back, and is imported at an allocation.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use turnstile_preload_wire::{ChunkNumber, GRANULE_BYTES};

use super::super::{Device, calls, driver, locked, ranges};
use super::table::{Key, Mapping};
use super::{Grant, Movable, Wanted};
use crate::abi::MAP_STATUS_AT;
use crate::abi::numbers::{MEMORY_BYTES_AT, MEMORY_LIMIT_AT, control, escape, status, uvm};
use crate::abi::{Node, Parts, read_u32, read_u64, status_at, write_u32, write_u64};
use crate::proto::Message;

/// NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS: descriptor, parent, first handle, number of
/// objects. SOURCE: `ctrl0000unix.h`.
const IMPORT_PARENT_AT: usize = 4;
const IMPORT_HANDLE_AT: usize = 8;
const IMPORT_COUNT_AT: usize = 648;
/// Fills that are kept: libcuda allocates with a few sets of flags.
const FILLS_MAX: usize = 64;

/// Length of an allocation that is rounded as one of `bytes`: the driver rounds up to parts of a
/// granule.
const fn trial_bytes(bytes: u64) -> u64 {
    GRANULE_BYTES + bytes % GRANULE_BYTES
}

/// The parameters that the driver would answer for memory of `bytes`, by those of the trial.
fn of_bytes(mut filled: Vec<u8>, bytes: u64) -> Vec<u8> {
    let tried = read_u64(&filled, MEMORY_BYTES_AT);
    let rounded = bytes + tried.saturating_sub(trial_bytes(bytes));
    write_u64(&mut filled, MEMORY_BYTES_AT, rounded);
    if read_u64(&filled, MEMORY_LIMIT_AT) == tried - 1 {
        write_u64(&mut filled, MEMORY_LIMIT_AT, rounded - 1);
    }
    filled
}

/// Parameters with the length of the trial.
fn of_trial(params: &[u8]) -> Vec<u8> {
    let mut params = params.to_vec();
    let bytes = read_u64(&params, MEMORY_BYTES_AT);
    write_u64(&mut params, MEMORY_BYTES_AT, trial_bytes(bytes));
    params
}

/// Unmaps and frees a chunk's object, while no call is in flight. The error is the driver's
/// status; zero if there is no such object.
pub(super) fn release(device: &Device, movable: &Movable, chunk: ChunkNumber) -> Result<(), u32> {
    let (key, object) = {
        let mut state = locked(&movable.state);
        state.wants_sent = false;
        let Some((key, has_object)) = state.table.leaving(chunk) else {
            // The daemon takes zero for memory that is gone, and an error for the end of moves.
            let known = state.table.knows(chunk);
            return Err(if known { status::OPERATING_SYSTEM } else { 0 });
        };
        if !has_object {
            state.table.left(key);
            return Ok(());
        }
        let chunk = state.table.get(key).ok_or(0_u32)?;
        (key, (chunk.file, chunk.parent, chunk.mappings.clone()))
    };
    let (client, handle) = key;
    let (file, parent, mappings) = object;
    for (nth, mapping) in mappings.iter().enumerate() {
        if let Err(status) = unmap(device, mapping) {
            for mapping in &mappings[..nth] {
                let _ = map_again(device, mapping);
            }
            return Err(status);
        }
    }
    match ranges::free_object(device, file, [client, parent, handle]) {
        status::OK => locked(&movable.state).table.left(key),
        status => {
            for mapping in &mappings {
                let _ = map_again(device, mapping);
            }
            return Err(status);
        }
    }
    Ok(())
}

/// Imports a chunk's memory under its handle, and maps it where it was. No call is in flight.
pub(super) fn restore(
    device: &Device,
    movable: &Movable,
    key: Key,
    memory: &OwnedFd,
) -> Result<(), u32> {
    let (file, parent, mappings) = {
        let state = locked(&movable.state);
        let chunk = state.table.get(key).ok_or(0_u32)?;
        (chunk.file, chunk.parent, chunk.mappings.clone())
    };
    let (client, handle) = key;
    match import(device, file, [client, parent, handle], memory) {
        Ok(status::OK) => {}
        Ok(status) => return Err(status),
        Err(_) => return Err(status::OPERATING_SYSTEM),
    }
    for mapping in &mappings {
        map_again(device, mapping)?;
    }
    locked(&movable.state).table.returned(key);
    Ok(())
}

/// Takes a mapping from all of its GPUs.
fn unmap(device: &Device, mapping: &Mapping) -> Result<(), u32> {
    const UNMAP_BYTES: usize = 40;
    const GPU_AT: usize = 16;
    const STATUS_AT: usize = 32;
    for gpu in mapping.call.gpus() {
        let mut top = vec![0; UNMAP_BYTES];
        write_u64(&mut top, 0, mapping.call.base);
        write_u64(&mut top, 8, mapping.call.bytes);
        top[GPU_AT..GPU_AT + 16].copy_from_slice(&gpu);
        issue_uvm(device, mapping.file, uvm::UNMAP_EXTERNAL, top, STATUS_AT)?;
    }
    Ok(())
}

fn map_again(device: &Device, mapping: &Mapping) -> Result<(), u32> {
    let top = mapping.call.top();
    issue_uvm(
        device,
        mapping.file,
        uvm::MAP_EXTERNAL_ALLOCATION,
        top,
        MAP_STATUS_AT,
    )
}

fn issue_uvm(device: &Device, file: u32, request: u32, top: Vec<u8>, at: usize) -> Result<(), u32> {
    let mut parts = driver::argument(top);
    match calls::forward(device, file, Node::Uvm, request, &mut parts) {
        Ok(_) => match read_u32(&parts.buffers[0], at) {
            status::OK => Ok(()),
            status => Err(status),
        },
        Err(_) => Err(status::OPERATING_SYSTEM),
    }
}

/// Makes an object of exported memory; returns the driver's status.
fn import(
    device: &Device,
    file: u32,
    [client, parent, handle]: [u32; 3],
    memory: &OwnedFd,
) -> io::Result<u32> {
    let layout = device.release.controls.get(&control::IMPORT_OBJECTS);
    let bytes = layout.and_then(|layout| layout.bytes).unwrap_or_default();
    let mut params = vec![0; bytes];
    if bytes < IMPORT_COUNT_AT + 4 {
        return Ok(status::NOT_SUPPORTED);
    }
    write_u32(&mut params, 0, memory.as_raw_fd().cast_unsigned());
    write_u32(&mut params, IMPORT_PARENT_AT, parent);
    write_u32(&mut params, IMPORT_HANDLE_AT, handle);
    // Two words of 16 bits: one object, from the first on.
    write_u32(&mut params, IMPORT_COUNT_AT, 1);
    // CAST: below a page.
    let words = [
        client,
        client,
        control::IMPORT_OBJECTS,
        0,
        0,
        0,
        bytes as u32,
        0,
    ];
    let mut parts = driver::with_params(driver::words(&words), params);
    let opened = device.opened(file)?;
    let request = driver::request(escape::RM_CONTROL, 32);
    device
        .driver
        .call(opened.file()?.as_fd(), request, &mut parts)?;
    Ok(read_u32(&parts.buffers[0], 28))
}

/// Makes memory that a program allocates. The client may have ended while the daemon answered.
pub(in super::super) fn allocate(
    device: &Device,
    wanted: Wanted,
    grant: Grant,
    message: &Message,
    node: Node,
    parts: &mut Parts,
) -> io::Result<i32> {
    let (client, handle) = wanted.key;
    let at = status_at(device.release, node, message.request).unwrap_or(usize::MAX);
    let native =
        |parts: &mut Parts| calls::forward(device, message.file, node, message.request, parts);
    let Some(movable) = device
        .movable
        .as_ref()
        .filter(|_| !matches!(grant, Grant::Native))
    else {
        return native(parts);
    };
    if locked(&device.vm).client_file(client).is_none() {
        movable.freed(client, handle);
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    if matches!(grant, Grant::Denied) {
        write_u32(&mut parts.buffers[0], at, status::NO_MEMORY);
        return Ok(0);
    }
    let Some(filled) = fill(device, movable, message, node, parts)? else {
        // The driver's refusal is the program's answer.
        movable.freed(client, handle);
        return Ok(0);
    };
    if let Grant::Memory(memory) = grant {
        let answer = import(
            device,
            message.file,
            [client, wanted.parent, handle],
            &memory,
        )?;
        if answer != status::OK {
            log::warn!("Memory of the VM does not move: its import has status {answer:#x}");
            movable.freed(client, handle);
            return native(parts);
        }
    }
    if let Some(params) = parts.params_mut() {
        params.copy_from_slice(&of_bytes(filled, wanted.given_bytes));
    }
    write_u32(&mut parts.buffers[0], at, status::OK);
    Ok(0)
}

/// What the driver fills in for such an allocation: learnt once by a short one, which is freed
/// at once. `None` if the driver refuses that one; its status is then in the call.
fn fill(
    device: &Device,
    movable: &Movable,
    message: &Message,
    node: Node,
    parts: &mut Parts,
) -> io::Result<Option<Vec<u8>>> {
    let given = of_trial(parts.params().unwrap_or_default());
    let known = locked(&movable.state).fills.get(&given).cloned();
    if known.is_some() {
        return Ok(known);
    }
    let mut trial = parts.clone();
    if let Some(params) = trial.params_mut() {
        params.copy_from_slice(&given);
    }
    // Under a handle of this process: memory that came back may have the program's.
    let top = &parts.buffers[0];
    let (client, parent, handle) = (
        read_u32(top, 0),
        read_u32(top, 4),
        ranges::own_handle(device),
    );
    write_u32(&mut trial.buffers[0], 8, handle);
    calls::forward(device, message.file, node, message.request, &mut trial)?;
    let at = status_at(device.release, node, message.request).unwrap_or(usize::MAX);
    let answer = read_u32(&trial.buffers[0], at);
    if answer != status::OK {
        write_u32(&mut parts.buffers[0], at, answer);
        return Ok(None);
    }
    ranges::free_object(device, message.file, [client, parent, handle]);
    let filled = trial.params().unwrap_or_default().to_vec();
    let fills = &mut locked(&movable.state).fills;
    if fills.len() >= FILLS_MAX {
        fills.clear();
    }
    fills.insert(given, filled.clone());
    Ok(Some(filled))
}
