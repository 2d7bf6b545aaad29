//! A call: its layout, the check, the driver, and the answer.

use std::io;
use std::os::fd::AsFd;

use super::movable::Movable;
use super::movable::moves;
use super::program::Program;
use super::ram::{Lent, Pieces, User, base_of};
use super::{Device, driver, locked, ranges};
use crate::abi::numbers::{
    GUEST_RAM_FLAGS, MEMORY_BYTES_AT, MEMORY_LIMIT_AT, PAGE_BYTES, class, escape, status, uvm,
};
use crate::abi::{MAP_CLIENT_AT, MAP_MEMORY_AT};
use crate::abi::{
    Node, Parts, descriptors, number, parts, read_u32, read_u64, status_at, write_u32, write_u64,
};
use crate::check::{Action, Call, Checked};
use crate::proto::Message;

/// Most numbers of unknown calls that are logged.
const LOGGED_MAX: u64 = 64;

/// A call that was not refused.
enum Carried {
    /// Its result.
    Done(i32, Parts),
    /// It is to be repeated with guest RAM of this length.
    Wants(u64),
}

/// Carries out a call of a program.
pub(super) fn serve(device: &Device, program: &Program<'_>, mut message: Message) -> Message {
    let mut given = std::mem::take(&mut message.buffers).into_iter();
    let result = carry_out(device, program, &message, &mut given);
    match result {
        // Beside the error: how much memory is to come with the call.
        Ok(Carried::Wants(bytes)) => Message {
            a: bytes,
            ..message.failed(libc::ENOBUFS)
        },
        Ok(Carried::Done(result, parts)) => Message {
            result,
            buffers: parts.buffers,
            ..message.answer()
        },
        Err(error) => message.failed(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

fn carry_out(
    device: &Device,
    program: &Program<'_>,
    message: &Message,
    given: &mut std::vec::IntoIter<Vec<u8>>,
) -> io::Result<Carried> {
    let refused = |refusal: crate::check::Refusal| io::Error::from_raw_os_error(refusal.errno());
    let node = locked(&device.vm).node(message.file).map_err(refused)?;
    // The guest has collected the buffers in the same way; the first has no address.
    let mut next = |_, bytes: usize| {
        given
            .next()
            .filter(|buffer: &Vec<u8>| buffer.len() == bytes)
    };
    let laid_out = parts(device.release, node, message.request, 1, &mut next);
    let mut parts = match laid_out {
        Ok(parts) if given.next().is_none() => parts,
        _ => return Err(refused(locked(&device.vm).malformed())),
    };
    // Freeing a client excludes all calls: see the module above.
    let is_last = frees_client(message.request, node, &parts);
    let alone = is_last.then(|| device.enter_alone());
    let mut shared = (!is_last).then(|| device.enter());
    // Within the locks: memory that is taken from the VM waits for them.
    let pieces = program.pieces(message)?;
    let ram_bytes = pieces.bytes;
    let wanted = locked(&device.vm).wanted(&call(message, &parts, ram_bytes));
    if let Some(bytes) = wanted {
        return Ok(Carried::Wants(bytes));
    }
    let checked = {
        let mut vm = locked(&device.vm);
        let before = vm.refusals();
        let checked = vm.check(&call(message, &parts, ram_bytes));
        let after = vm.refusals();
        if after.unknown > before.unknown && after.unknown <= LOGGED_MAX {
            log::info!(
                "Not in the table: control or class {:#x}",
                after.last_unknown
            );
        }
        if let Err(refusal) = checked
            && after.foreign + after.malformed <= LOGGED_MAX
        {
            let words = parts
                .buffers
                .first()
                .map(|top| [0, 4, 8, 12].map(|at| read_u32(top, at)));
            log::info!(
                "Refused: {refusal}: request {:#x} of {node:?}: {words:x?}",
                message.request
            );
        }
        checked.map_err(refused)?
    };
    let wanted = device.wants(message, node, &parts, checked.action);
    let grant = wanted.map(|wanted| {
        // The answer may take the VM's turn.
        drop(shared.take());
        let (grant, entered) = device.granted(message.file, wanted);
        shared = Some(entered);
        (wanted, grant)
    });
    device.pin_named(message, node, &parts);
    // The driver may have a shared file's pages as registered memory alone.
    let result = if program.shares() && checked.action != Action::Register {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    } else if let Some((wanted, grant)) = grant {
        moves::allocate(device, wanted, grant, message, node, &mut parts)
    } else {
        act(device, &pieces, message, node, &mut parts, &checked)
    };
    let at = status_at(device.release, node, message.request);
    let success =
        result.is_ok() && at.is_none_or(|at| read_u32(&parts.buffers[0], at) == status::OK);
    let issued = !matches!(
        checked.action,
        Action::Answer(_) | Action::Nothing | Action::Range { .. }
    );
    let (made, freed) = locked(&device.vm).settle(
        &call(message, &parts, ram_bytes),
        &checked,
        success && issued,
    );
    if let Some(made) = made {
        device.made(&made, &parts);
    }
    if success && issued {
        lend_on(device, message, node, &parts);
        device.mapped(message, node, &parts);
    }
    device.forget_memory(&freed);
    device.report_pinned();
    drop((alone, shared));
    let result = result?;
    device.forget(&freed);
    if let (true, Some(escape::RM_CONTROL)) =
        (success, number(message.request).map(|(number, _)| number))
    {
        let control = read_u32(&parts.buffers[0], 8);
        if let Some(params) = parts.params_mut() {
            let limit = device.movable.as_ref().and_then(Movable::limit_bytes);
            locked(&device.vm).cut_to_quota(control, params, limit);
        }
    }
    Ok(Carried::Done(result, parts))
}

/// Does what the check decided.
fn act(
    device: &Device,
    pieces: &Pieces,
    message: &Message,
    node: Node,
    parts: &mut Parts,
    checked: &Checked,
) -> io::Result<i32> {
    match checked.action {
        Action::Answer(status) => {
            if let Some(at) = status_at(device.release, node, message.request) {
                write_u32(&mut parts.buffers[0], at, status);
            }
            Ok(0)
        }
        Action::Nothing => {
            if let Some(at) = status_at(device.release, node, message.request) {
                write_u32(&mut parts.buffers[0], at, status::OK);
            }
            if let Some(params) = parts.params_mut() {
                params.fill(0);
            }
            Ok(0)
        }
        Action::Forward if device.registers_for_peers(message, node, parts) => {
            if let Some(at) = status_at(device.release, node, message.request) {
                write_u32(&mut parts.buffers[0], at, status::OK);
            }
            Ok(0)
        }
        Action::Forward => forward(device, message.file, node, message.request, parts),
        Action::Initialize => {
            let flags = read_u64(&parts.buffers[0], 0);
            write_u64(&mut parts.buffers[0], 0, flags | uvm::MULTI_PROCESS);
            let result = forward(device, message.file, node, message.request, parts);
            write_u64(&mut parts.buffers[0], 0, flags);
            result
        }
        Action::Register => {
            let lent = pieces.map()?;
            let top = &mut parts.buffers[0];
            let address = read_u64(top, 24);
            write_u64(top, 24, lent.address() + address % PAGE_BYTES);
            let result = forward(device, message.file, node, message.request, parts);
            write_u64(&mut parts.buffers[0], 24, address);
            keep(device, parts, 40, lent);
            result
        }
        Action::Replace { bytes } => {
            let lent = pieces.map()?;
            let top = &parts.buffers[0];
            let own = [read_u32(top, 0), read_u32(top, 4), read_u32(top, 8)];
            let gpu = locked(&device.vm).gpu_file_of(message.file);
            let answer = match gpu {
                Some(gpu) => register(device, gpu, own, lent.address(), bytes)?,
                None => status::OPERATING_SYSTEM,
            };
            let at = status_at(device.release, node, message.request).unwrap_or(usize::MAX);
            write_u32(&mut parts.buffers[0], at, answer);
            if let Some(params) = parts.params_mut() {
                // Size and limit in whole pages, as the driver would have filled them in.
                write_u64(params, MEMORY_BYTES_AT, pieces.bytes);
                write_u64(params, MEMORY_LIMIT_AT, pieces.bytes - 1);
            }
            keep(device, parts, at, lent);
            Ok(0)
        }
        Action::Exchange { bytes } => {
            let lent = pieces.map()?;
            let top = &parts.buffers[0];
            let (client, handle) = (read_u32(top, 0), read_u32(top, 8));
            let (object, gpu) = {
                let vm = locked(&device.vm);
                (vm.object(client, handle), vm.gpu_file_of(message.file))
            };
            let (object, gpu) = object
                .zip(gpu)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))?;
            ranges::free_object(device, message.file, [client, object.parent, handle]);
            if let Some(movable) = &device.movable {
                movable.freed(client, handle);
            }
            let answer = register(
                device,
                gpu,
                [client, object.parent, handle],
                lent.address(),
                bytes,
            )?;
            let at = status_at(device.release, node, message.request).unwrap_or(usize::MAX);
            write_u32(&mut parts.buffers[0], at, answer);
            keep(device, parts, at, lent);
            Ok(0)
        }
        Action::Range { base, bytes } => {
            let top = &parts.buffers[0];
            let count = read_u32(top, 16 + uvm::ATTRIBUTES_MAX * uvm::ATTRIBUTE_BYTES) as usize;
            let attributes = top[16..16 + count * uvm::ATTRIBUTE_BYTES].to_vec();
            let answer = ranges::range(device, pieces, message, base, bytes, attributes)?;
            let at = status_at(device.release, node, message.request).unwrap_or(usize::MAX);
            write_u32(&mut parts.buffers[0], at, answer);
            Ok(0)
        }
    }
}

/// Notes what else uses guest RAM, or no longer does: the driver has references of its own.
fn lend_on(device: &Device, message: &Message, node: Node, parts: &Parts) {
    let Some(top) = parts.buffers.first() else {
        return;
    };
    let word = |at| read_u32(top, at);
    let number = number(message.request).map(|(number, _)| number);
    if node == Node::Uvm && message.request == uvm::MAP_EXTERNAL_ALLOCATION {
        let user = User::Range(message.file, base_of(top));
        locked(&device.lending).used_by(user, word(MAP_CLIENT_AT), word(MAP_MEMORY_AT));
    } else if node == Node::Uvm && message.request == uvm::FREE {
        let gone = locked(&device.lending).unmapped(message.file, base_of(top));
        drop(gone);
    } else if node != Node::Uvm && number == Some(escape::RM_DUP_OBJECT) {
        let user = User::Object(word(0), word(8));
        locked(&device.lending).used_by(user, word(12), word(16));
    }
}

/// Keeps the guest RAM of an object that the driver has made.
fn keep(device: &Device, parts: &Parts, status_at: usize, lent: Lent) {
    let top = &parts.buffers[0];
    if read_u32(top, status_at) == status::OK {
        let (client, handle) = (read_u32(top, 0), read_u32(top, 8));
        locked(&device.lending).insert(client, handle, lent);
    }
}

/// Registers memory of this process under a handle of the guest; returns the status.
pub(super) fn register(
    device: &Device,
    gpu: u32,
    [client, parent, handle]: [u32; 3],
    address: u64,
    bytes: u64,
) -> io::Result<u32> {
    let mut top = vec![0; 56];
    let words = [
        (0, client),
        (4, parent),
        (8, handle),
        (12, class::OS_DESCRIPTOR),
        (16, GUEST_RAM_FLAGS),
        (48, u32::MAX),
    ];
    for (at, word) in words {
        write_u32(&mut top, at, word);
    }
    write_u64(&mut top, 24, address);
    write_u64(&mut top, 32, bytes.next_multiple_of(PAGE_BYTES) - 1);
    let mut parts = driver::argument(top);
    let opened = device.opened(gpu)?;
    let request = driver::request(escape::RM_ALLOC_MEMORY, 56);
    device
        .driver
        .call(opened.file()?.as_fd(), request, &mut parts)?;
    Ok(read_u32(&parts.buffers[0], 40))
}

/// Issues a call, with descriptors of this process in the place of the guest's files.
pub(super) fn forward(
    device: &Device,
    file: u32,
    node: Node,
    request: u32,
    parts: &mut Parts,
) -> io::Result<i32> {
    let opened = device.opened(file)?;
    let fields = descriptors(device.release, node, request, parts);
    let mut keep = Vec::new();
    let mut saved = Vec::new();
    for field in &fields {
        let value = read_u32(&parts.buffers[field.buffer], field.at);
        // CAST: a descriptor has 32 bits, and is negative if there is none.
        let number = match value as i32 {
            0.. => device.descriptor(value, &mut keep)?,
            none => none,
        };
        set(parts, *field, number);
        saved.push(value.cast_signed());
    }
    let result = device.driver.call(opened.file()?.as_fd(), request, parts);
    for (field, value) in fields.iter().zip(saved) {
        set(parts, *field, value);
    }
    result
}

const fn call<'a>(message: &Message, parts: &'a Parts, ram_bytes: u64) -> Call<'a> {
    Call {
        file: message.file,
        request: message.request,
        parts,
        ram_bytes,
    }
}

fn set(parts: &mut Parts, field: crate::abi::Descriptor, value: i32) {
    let buffer = &mut parts.buffers[field.buffer];
    if field.width == 8 {
        write_u64(buffer, field.at, i64::from(value).cast_unsigned());
    } else {
        write_u32(buffer, field.at, value.cast_unsigned());
    }
}

/// Whether a call frees a client of the driver.
fn frees_client(request: u32, node: Node, parts: &Parts) -> bool {
    let is_free = number(request).is_some_and(|(number, _)| number == escape::RM_FREE);
    let same = |top: &Vec<u8>| read_u32(top, 0) == read_u32(top, 8);
    node != Node::Uvm && is_free && parts.buffers.first().is_some_and(same)
}
