//! Calls: frames of a warp's lanes, and the registers that a call keeps in local memory.
//!
//! Each group of lanes has a chain of frames. Groups join only if they have the same chain. A frame
//! is freed when its last lane returns or exits, so the number of frames is at most the number of
//! lanes times the depth that local memory allows.

use super::super::LANES;
use super::super::code::{Call, CallTarget, Saved};
use super::super::function::frame_bytes;
use super::super::memory::DeviceMemory;
use super::ExecError;
use super::access::Spaces;
use super::warp::{Warp, lanes};

/// A function's frame in local memory, for some lanes of a warp.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// Frame of the caller; the root's is itself.
    parent: u32,
    pub(super) depth: u32,
    /// Lanes that have not returned.
    lanes: u32,
    /// Program counter after the call, and the call itself.
    back: u32,
    site: u32,
    /// First byte, and first byte after the frame.
    pub(super) begin: u32,
    pub(super) end: u32,
    /// Where the caller's registers are.
    saved: u32,
}

/// The frames of a warp, by index; 0 is the root, of the entry.
#[derive(Debug, Default)]
pub(super) struct Frames {
    all: Vec<Frame>,
    free: Vec<u32>,
}

impl Frames {
    /// Only the root, with a frame of `bytes`.
    pub(super) fn reset(&mut self, lanes: u32, bytes: u32) {
        self.all.clear();
        self.free.clear();
        self.all.push(Frame {
            parent: 0,
            depth: 0,
            lanes,
            back: 0,
            site: 0,
            begin: 0,
            end: bytes,
            saved: 0,
        });
    }

    // PANIC (below): indices come from `push`, and a frame stays while a group has it.

    pub(super) fn at(&self, index: u32) -> Frame {
        self.all[index as usize]
    }

    fn push(&mut self, frame: Frame) -> Result<u32, ExecError> {
        if let Some(index) = self.free.pop() {
            self.all[index as usize] = frame;
            return Ok(index);
        }
        // Each frame is in the list of free ones at most once.
        let reserved = self.all.try_reserve(1);
        let reserved = reserved.and_then(|()| {
            let most = self.all.len() + 1;
            self.free.try_reserve(most - self.free.len())
        });
        reserved.map_err(|_| ExecError::NoMemory)?;
        self.all.push(frame);
        // CAST: bounded by local memory, see the module's description.
        Ok((self.all.len() - 1) as u32)
    }

    /// Lanes leave a frame; without lanes it is free.
    fn leave(&mut self, index: u32, lanes: u32) {
        let frame = &mut self.all[index as usize];
        frame.lanes &= !lanes;
        if frame.lanes == 0 && index != 0 {
            self.free.push(index);
        }
    }

    /// Lanes exit, out of all frames of their chain.
    pub(super) fn exit(&mut self, mut index: u32, lanes: u32) {
        while index != 0 {
            let parent = self.at(index).parent;
            self.leave(index, lanes);
            index = parent;
        }
    }
}

/// Enters a function with the lanes of `exec` that call the same one as the first of them.
/// Returns those lanes, and the program counter and frame where they go on.
#[inline(never)]
pub(super) fn call(
    spaces: &mut Spaces<'_, impl DeviceMemory>,
    warp: &mut Warp,
    (site, back): (u32, u32),
    exec: u32,
    line: u32,
) -> Result<(u32, u32, u32), ExecError> {
    let code = spaces.code;
    // PANIC: lowering numbered the calls.
    let Call { target, save } = &code.calls[site as usize];
    let (to, bytes, exec) = match target {
        CallTarget::Pc(to, bytes) => (*to, *bytes, exec),
        CallTarget::Address(source) => {
            let mut buffer = [0; LANES];
            let address = warp.doubles(code, *source, &mut buffer);
            let first = address[exec.trailing_zeros() as usize % LANES];
            let same = lanes(exec).filter(|lane| address[*lane] == first);
            let same = same.fold(0, |mask, lane| mask | (1 << lane));
            let Some((to, bytes)) = code.functions.get(&first) else {
                return Err(ExecError::NoFunction {
                    address: first,
                    block: spaces.block,
                    line,
                });
            };
            (*to, *bytes, same)
        }
    };
    let parent = warp.frame;
    let caller = warp.frames.at(parent);
    let begin = u64::from(caller.end).next_multiple_of(16);
    let saved = begin + u64::from(bytes);
    let end = saved + save.as_ref().map_or(0, |saved| u64::from(saved.bytes()));
    if end > spaces.local_bytes as u64 {
        let block = spaces.block;
        return Err(ExecError::StackOverflow { block, line });
    }
    // CAST (four): local memory has less than 4 GiB.
    if let Some(registers) = save {
        for lane in lanes(exec) {
            let bytes = kept(spaces, warp.thread(lane), saved as u32, registers);
            warp.read_slots(registers, lane, bytes);
        }
    }
    let frame = warp.frames.push(Frame {
        parent,
        depth: caller.depth + 1,
        lanes: exec,
        back,
        site,
        begin: begin as u32,
        end: end as u32,
        saved: saved as u32,
    })?;
    Ok((exec, to, frame))
}

/// Leaves a function; returns where the lanes go on, and in which frame.
#[inline(never)]
pub(super) fn ret(
    spaces: &mut Spaces<'_, impl DeviceMemory>,
    warp: &mut Warp,
    exec: u32,
) -> (u32, u32) {
    let index = warp.frame;
    let frame = warp.frames.at(index);
    let code = spaces.code;
    if let Some(registers) = code
        .calls
        .get(frame.site as usize)
        .and_then(|c| c.save.as_ref())
        && index != 0
    {
        for lane in lanes(exec) {
            let bytes = kept(spaces, warp.thread(lane), frame.saved, registers);
            warp.write_slots(registers, lane, bytes);
        }
    }
    warp.frames.leave(index, exec);
    (frame.back, frame.parent)
}

/// The bytes of a lane's saved registers, which begin at `at` of its local memory.
fn kept<'s>(
    spaces: &'s mut Spaces<'_, impl DeviceMemory>,
    thread: usize,
    at: u32,
    registers: &Saved,
) -> &'s mut [u8] {
    let start = thread * spaces.local_bytes + at as usize;
    // PANIC: `call` checked the end against the bytes of a thread.
    &mut spaces.local[start..start + registers.bytes() as usize]
}

/// `alloca`: the most that a lane wants, for all of them.
#[inline(never)]
pub(super) fn grow(
    spaces: &mut Spaces<'_, impl DeviceMemory>,
    warp: &mut Warp,
    bytes: &[u32; LANES],
    exec: u32,
    line: u32,
) -> Result<u64, ExecError> {
    let most = lanes(exec).map(|lane| bytes[lane]).max().unwrap_or(0);
    let begin = u64::from(warp.frames.at(warp.frame).end).next_multiple_of(16);
    let end = begin
        + u64::from(most)
            .next_multiple_of(16)
            .max(u64::from(frame_bytes(0)));
    if end > spaces.local_bytes as u64 {
        let block = spaces.block;
        return Err(ExecError::StackOverflow { block, line });
    }
    // CAST: as above.
    warp.frames.all[warp.frame as usize].end = end as u32;
    Ok(begin)
}
