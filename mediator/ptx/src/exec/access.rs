//! Loads, stores and atomics of a warp.

use super::super::code::{Access, AtomOp, Code, Dst, Src};
use super::super::memory::{
    DeviceMemory, LOCAL_WINDOW, MemoryFault, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES,
};
use super::super::ops::float::{from_brain, from_half, to_brain, to_half};
use super::super::ops::mbarrier;
use super::super::types::Space;
use super::super::{LANES, Lanes};
use super::ExecError;
use super::warp::{Warp, lanes};

/// Bytes of a memory transaction (a sector of the hardware's cache line).
const SECTOR_BYTES: u64 = 32;

/// A fault and the lane that had it.
type LaneFault = (usize, u64, MemoryFault);

/// The memory that a block sees, and what its accesses to global memory cost.
pub(super) struct Spaces<'a, M> {
    pub(super) code: &'a Code,
    /// The block's index.
    pub(super) block: [u32; 3],
    pub(super) params: &'a [u8],
    pub(super) memory: &'a M,
    pub(super) shared: &'a mut [u8],
    pub(super) local: &'a mut [u8],
    /// Of one thread.
    pub(super) local_bytes: usize,
    /// See [`super::BlockOutcome`].
    pub(super) global_sectors: u64,
    pub(super) atomics: u64,
}

impl<M: DeviceMemory> Spaces<'_, M> {
    pub(super) fn addresses(&self, warp: &Warp, access: &Access) -> Lanes<u64> {
        let mut out = [0; LANES];
        match access.base {
            // A 32-bit base wraps at 32 bits: compilers write `[r-64+128]`.
            base @ Src::Word(_) => {
                let mut buffer = [0; LANES];
                let base = warp.words(self.code, base, &mut buffer);
                let offset = access.offset as u32;
                for i in 0..LANES {
                    out[i] = u64::from(base[i].wrapping_add(offset));
                }
            }
            base => {
                let mut buffer = [0; LANES];
                let base = warp.doubles(self.code, base, &mut buffer);
                for i in 0..LANES {
                    out[i] = base[i].wrapping_add_signed(access.offset);
                }
            }
        }
        out
    }

    /// The space behind a generic address, and the address in it.
    pub(super) fn resolve(space: Space, va: u64) -> (Space, u64) {
        if space != Space::Generic || va < SHARED_WINDOW {
            return (
                if space == Space::Generic {
                    Space::Global
                } else {
                    space
                },
                va,
            );
        }
        for (window, space) in [
            (SHARED_WINDOW, Space::Shared),
            (LOCAL_WINDOW, Space::Local),
            (PARAM_WINDOW, Space::Param),
        ] {
            if va - window.min(va) < WINDOW_BYTES {
                return (space, va - window.min(va));
            }
        }
        (Space::Global, va)
    }

    /// Generic addresses of a warp are nearly always all global.
    fn settle(space: Space, va: &Lanes<u64>, mask: u32) -> Space {
        let global = space == Space::Generic && lanes(mask).all(|lane| va[lane] < SHARED_WINDOW);
        if global { Space::Global } else { space }
    }

    pub(super) fn fault(&self, warp: &Warp, line: u32, (lane, va, fault): LaneFault) -> ExecError {
        ExecError::Fault {
            fault,
            va,
            block: self.block,
            thread: warp.tid.map(|axis| axis[lane]),
            line,
        }
    }

    fn check_alignment(va: &Lanes<u64>, mask: u32, bytes: u64) -> Result<(), LaneFault> {
        let wrong = |lane: &usize| va[*lane] & (bytes - 1) != 0;
        match lanes(mask).find(wrong) {
            None => Ok(()),
            Some(lane) => Err((lane, va[lane], MemoryFault::Misaligned)),
        }
    }

    /// Sectors that the access touches, counting runs of neighbours once.
    fn count_sectors(&mut self, va: &Lanes<u64>, mask: u32, bytes: u64) {
        let mut last = u64::MAX;
        for lane in lanes(mask) {
            let sector = va[lane] / SECTOR_BYTES;
            self.global_sectors += u64::from(sector != last);
            last = (va[lane] + (bytes - 1)) / SECTOR_BYTES;
        }
    }

    /// The bytes of a space that this machine keeps itself, from `at` on.
    pub(super) fn own(&self, warp: &Warp, lane: usize, space: Space, at: u64) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        match space {
            Space::Shared => self.shared.get(at..),
            Space::Param => self.params.get(at..),
            Space::Local => {
                let start = warp.thread(lane) * self.local_bytes;
                let mine = self.local.get(start..start + self.local_bytes)?;
                mine.get(at..)
            }
            _ => None,
        }
    }

    pub(super) fn own_mut(
        &mut self,
        warp: &Warp,
        lane: usize,
        space: Space,
        at: u64,
    ) -> Result<&mut [u8], MemoryFault> {
        let at = usize::try_from(at).map_err(|_| MemoryFault::Unmapped)?;
        let bytes = match space {
            Space::Shared => self.shared.get_mut(at..),
            Space::Local => {
                let start = warp.thread(lane) * self.local_bytes;
                let mine = self.local.get_mut(start..start + self.local_bytes);
                mine.and_then(|mine| mine.get_mut(at..))
            }
            Space::Param => return Err(MemoryFault::ReadOnly),
            _ => None,
        };
        bytes.ok_or(MemoryFault::Unmapped)
    }

    /// Reads `S` bytes for each lane.
    fn fetch<const S: usize>(
        &self,
        warp: &Warp,
        space: Space,
        va: &Lanes<u64>,
        mask: u32,
        raw: &mut [[u8; S]; LANES],
    ) -> Result<(), LaneFault> {
        let first = mask.trailing_zeros() as usize % LANES;
        let step = if mask == u32::MAX {
            row(va, S as u64)
        } else {
            None
        };
        if step.is_some() && matches!(space, Space::Global | Space::Shared) {
            let flat = raw.as_flattened_mut();
            if space == Space::Global {
                // If this fails, some lane below finds out which.
                if self.memory.load(va[0], flat).is_ok() {
                    return Ok(());
                }
            } else if let Some(bytes) = self.own(warp, 0, space, va[0])
                && let Some(bytes) = bytes.get(..flat.len())
            {
                flat.copy_from_slice(bytes);
                return Ok(());
            }
        }
        if space == Space::Global && lanes(mask).all(|lane| va[lane] == va[first]) {
            let value = self.fetch_global::<S>(va[first]);
            *raw = [value.map_err(|fault| (first, va[first], fault))?; LANES];
            return Ok(());
        }
        if space == Space::Shared {
            // The common case apart: nothing to decide per lane.
            for lane in lanes(mask) {
                let at = va[lane] as usize;
                let bytes = self.shared.get(at..).and_then(|b| b.first_chunk::<S>());
                raw[lane] = *bytes.ok_or((lane, va[lane], MemoryFault::Unmapped))?;
            }
            return Ok(());
        }
        for lane in lanes(mask) {
            let (space, at) = Self::resolve(space, va[lane]);
            let value = if matches!(space, Space::Global | Space::Const) {
                self.fetch_global::<S>(at)
            } else {
                let bytes = self.own(warp, lane, space, at);
                let bytes = bytes.and_then(|b| b.first_chunk::<S>());
                bytes.copied().ok_or(MemoryFault::Unmapped)
            };
            raw[lane] = value.map_err(|fault| (lane, va[lane], fault))?;
        }
        Ok(())
    }

    fn fetch_global<const S: usize>(&self, va: u64) -> Result<[u8; S], MemoryFault> {
        let mut out = [0; S];
        match S {
            4 => out.copy_from_slice(&self.memory.load_u32(va)?.to_le_bytes()),
            8 => out.copy_from_slice(&self.memory.load_u64(va)?.to_le_bytes()),
            _ => self.memory.load(va, &mut out)?,
        }
        Ok(out)
    }

    fn put<const S: usize>(
        &mut self,
        warp: &Warp,
        space: Space,
        va: &Lanes<u64>,
        mask: u32,
        raw: &[[u8; S]; LANES],
    ) -> Result<(), LaneFault> {
        if mask == u32::MAX && space == Space::Global && row(va, S as u64).is_some() {
            let flat = raw.as_flattened();
            if self.memory.store(va[0], flat).is_ok() {
                return Ok(());
            }
        }
        for lane in lanes(mask) {
            let (space, at) = Self::resolve(space, va[lane]);
            let bytes = &raw[lane];
            let done = if space == Space::Global {
                self.put_global(at, bytes)
            } else {
                self.own_mut(warp, lane, space, at).and_then(|own| {
                    let own = own.first_chunk_mut::<S>().ok_or(MemoryFault::Unmapped)?;
                    *own = *bytes;
                    Ok(())
                })
            };
            done.map_err(|fault| (lane, va[lane], fault))?;
        }
        Ok(())
    }

    fn put_global<const S: usize>(&self, va: u64, bytes: &[u8; S]) -> Result<(), MemoryFault> {
        match S {
            4 => self.memory.store_u32(va, decode::<4, S>(bytes, 0) as u32),
            8 => self.memory.store_u64(va, decode::<8, S>(bytes, 0)),
            _ => self.memory.store(va, bytes),
        }
    }

    fn load_shape<const N: usize, const S: usize>(
        &mut self,
        warp: &mut Warp,
        (access, line, mask): (&Access, u32, u32),
        (signed, d): (bool, &[Dst; 4]),
    ) -> Result<(), ExecError> {
        let va = self.addresses(warp, access);
        let space = Self::settle(access.space, &va, mask);
        Self::check_alignment(&va, mask, S as u64).map_err(|f| self.fault(warp, line, f))?;
        if !matches!(space, Space::Shared | Space::Local | Space::Param) {
            self.count_sectors(&va, mask, S as u64);
        }
        let mut raw = [[0; S]; LANES];
        self.fetch::<S>(warp, space, &va, mask, &mut raw)
            .map_err(|f| self.fault(warp, line, f))?;
        for (element, d) in d.iter().enumerate().take(S / N) {
            if N == 4 && matches!(d, Dst::Word(_)) {
                let mut out = [0; LANES];
                for i in 0..LANES {
                    out[i] = decode::<N, S>(&raw[i], element) as u32;
                }
                warp.write_words(*d, &out, mask);
                continue;
            }
            let mut out = [0; LANES];
            for i in 0..LANES {
                out[i] = decode::<N, S>(&raw[i], element);
            }
            if signed {
                let shift = 64 - 8 * N;
                for value in &mut out {
                    *value = ((*value << shift).cast_signed() >> shift).cast_unsigned();
                }
            }
            warp.write_doubles(*d, &out, mask);
        }
        Ok(())
    }

    fn store_shape<const N: usize, const S: usize>(
        &mut self,
        warp: &Warp,
        (access, line, mask): (&Access, u32, u32),
        s: &[Src; 4],
    ) -> Result<(), ExecError> {
        let va = self.addresses(warp, access);
        let space = Self::settle(access.space, &va, mask);
        Self::check_alignment(&va, mask, S as u64).map_err(|f| self.fault(warp, line, f))?;
        if matches!(space, Space::Global | Space::Generic) {
            self.count_sectors(&va, mask, S as u64);
        }
        let mut raw = [[0; S]; LANES];
        for (element, s) in s.iter().enumerate().take(S / N) {
            let mut buffer = [0; LANES];
            let value = warp.doubles(self.code, *s, &mut buffer);
            for i in 0..LANES {
                let bytes = value[i].to_le_bytes();
                raw[i][element * N..(element + 1) * N].copy_from_slice(&bytes[..N]);
            }
        }
        self.put::<S>(warp, space, &va, mask, &raw)
            .map_err(|f| self.fault(warp, line, f))
    }

    // Inlined into the loop, or SHA-256 takes 4 % longer.
    #[inline(always)]
    pub(super) fn load(
        &mut self,
        warp: &mut Warp,
        at: (&Access, u32, u32),
        to: (bool, &[Dst; 4]),
    ) -> Result<(), ExecError> {
        match (at.0.bytes, at.0.count) {
            (1, 1) => self.load_shape::<1, 1>(warp, at, to),
            (1, 2) => self.load_shape::<1, 2>(warp, at, to),
            (1, _) => self.load_shape::<1, 4>(warp, at, to),
            (2, 1) => self.load_shape::<2, 2>(warp, at, to),
            (2, 2) => self.load_shape::<2, 4>(warp, at, to),
            (2, _) => self.load_shape::<2, 8>(warp, at, to),
            (4, 1) => self.load_shape::<4, 4>(warp, at, to),
            (4, 2) => self.load_shape::<4, 8>(warp, at, to),
            (4, _) => self.load_shape::<4, 16>(warp, at, to),
            (_, 1) => self.load_shape::<8, 8>(warp, at, to),
            (_, _) => self.load_shape::<8, 16>(warp, at, to),
        }
    }

    #[inline(always)]
    pub(super) fn store(
        &mut self,
        warp: &Warp,
        at: (&Access, u32, u32),
        s: &[Src; 4],
    ) -> Result<(), ExecError> {
        match (at.0.bytes, at.0.count) {
            (1, 1) => self.store_shape::<1, 1>(warp, at, s),
            (1, 2) => self.store_shape::<1, 2>(warp, at, s),
            (1, _) => self.store_shape::<1, 4>(warp, at, s),
            (2, 1) => self.store_shape::<2, 2>(warp, at, s),
            (2, 2) => self.store_shape::<2, 4>(warp, at, s),
            (2, _) => self.store_shape::<2, 8>(warp, at, s),
            (4, 1) => self.store_shape::<4, 4>(warp, at, s),
            (4, 2) => self.store_shape::<4, 8>(warp, at, s),
            (4, _) => self.store_shape::<4, 16>(warp, at, s),
            (_, 1) => self.store_shape::<8, 8>(warp, at, s),
            (_, _) => self.store_shape::<8, 16>(warp, at, s),
        }
    }

    /// An atomic operation, lane after lane: lanes of a warp that access one address are
    /// serialised, as on hardware.
    pub(super) fn atom(
        &mut self,
        warp: &mut Warp,
        (access, line, mask): (&Access, u32, u32),
        op: AtomOp,
        (d, b, c): (Dst, Src, Src),
    ) -> Result<(), ExecError> {
        let va = self.addresses(warp, access);
        let bytes = u64::from(access.bytes);
        Self::check_alignment(&va, mask, bytes).map_err(|f| self.fault(warp, line, f))?;
        let (mut b_buffer, mut c_buffer) = ([0; LANES], [0; LANES]);
        let b = warp.doubles(self.code, b, &mut b_buffer);
        let c = warp.doubles(self.code, c, &mut c_buffer);
        let mut old = [0; LANES];
        for lane in lanes(mask) {
            let (space, at) = Self::resolve(access.space, va[lane]);
            let (b, c) = (b[lane], c[lane]);
            let result = match (space, access.bytes) {
                (Space::Global, 2) => {
                    let shift = (at & 2) * 8;
                    let f = |word: u32| {
                        let new = apply32(op, (word >> shift) & 0xffff, b as u32, c as u32);
                        (word & !(0xffff << shift)) | ((new & 0xffff) << shift)
                    };
                    let word = self.memory.update_u32(at & !3, &f);
                    word.map(|word| u64::from((word >> shift) & 0xffff))
                }
                (_, 2) => self.own_mut(warp, lane, space, at).and_then(|own| {
                    let own = own.first_chunk_mut::<2>().ok_or(MemoryFault::Unmapped)?;
                    let old = u32::from(u16::from_le_bytes(*own));
                    *own = (apply32(op, old, b as u32, c as u32) as u16).to_le_bytes();
                    Ok(u64::from(old))
                }),
                (Space::Global, 4) => {
                    let f = |old| apply32(op, old, b as u32, c as u32);
                    self.memory.update_u32(at, &f).map(u64::from)
                }
                (Space::Global, _) => self.memory.update_u64(at, &|old| apply64(op, old, b, c)),
                (_, 4) => self.own_mut(warp, lane, space, at).and_then(|own| {
                    let own = own.first_chunk_mut::<4>().ok_or(MemoryFault::Unmapped)?;
                    let old = u32::from_le_bytes(*own);
                    *own = apply32(op, old, b as u32, c as u32).to_le_bytes();
                    Ok(u64::from(old))
                }),
                _ => self.own_mut(warp, lane, space, at).and_then(|own| {
                    let own = own.first_chunk_mut::<8>().ok_or(MemoryFault::Unmapped)?;
                    let old = u64::from_le_bytes(*own);
                    *own = apply64(op, old, b, c).to_le_bytes();
                    Ok(old)
                }),
            };
            self.atomics += 1;
            old[lane] = result.map_err(|fault| self.fault(warp, line, (lane, va[lane], fault)))?;
        }
        warp.write_doubles(d, &old, mask);
        Ok(())
    }
}

/// Whether the lanes' addresses follow each other at `step` bytes.
fn row(va: &Lanes<u64>, step: u64) -> Option<()> {
    let mut wrong = 0;
    for i in 0..LANES {
        wrong |= va[i] ^ va[0].wrapping_add(i as u64 * step);
    }
    (wrong == 0).then_some(())
}

/// Element `element` of `N` bytes, little-endian.
#[inline]
fn decode<const N: usize, const S: usize>(raw: &[u8; S], element: usize) -> u64 {
    let mut bytes = [0; 8];
    // PANIC: callers take fewer than S / N elements.
    bytes[..N].copy_from_slice(&raw[element * N..(element + 1) * N]);
    u64::from_le_bytes(bytes)
}

pub(super) fn apply32(op: AtomOp, old: u32, b: u32, c: u32) -> u32 {
    match op {
        AtomOp::Add => old.wrapping_add(b),
        AtomOp::AddFloat => (f32::from_bits(old) + f32::from_bits(b)).to_bits(),
        AtomOp::AddHalf => to_half(from_half(old) + from_half(b)),
        AtomOp::AddBrain => to_brain(from_brain(old) + from_brain(b)),
        AtomOp::AddHalfPair | AtomOp::AddBrainPair => {
            let op = match op {
                AtomOp::AddHalfPair => AtomOp::AddHalf,
                _ => AtomOp::AddBrain,
            };
            let low = apply32(op, old & 0xffff, b & 0xffff, c);
            low | apply32(op, old >> 16, b >> 16, c) << 16
        }
        AtomOp::MinS => old.cast_signed().min(b.cast_signed()).cast_unsigned(),
        AtomOp::MaxS => old.cast_signed().max(b.cast_signed()).cast_unsigned(),
        // The rest does not depend on the width, save for what is cut off.
        _ => apply64(op, u64::from(old), u64::from(b), u64::from(c)) as u32,
    }
}

fn apply64(op: AtomOp, old: u64, b: u64, c: u64) -> u64 {
    match op {
        AtomOp::Add => old.wrapping_add(b),
        AtomOp::AddFloat => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        AtomOp::MinU => old.min(b),
        AtomOp::MaxU => old.max(b),
        AtomOp::MinS => old.cast_signed().min(b.cast_signed()).cast_unsigned(),
        AtomOp::MaxS => old.cast_signed().max(b.cast_signed()).cast_unsigned(),
        AtomOp::And => old & b,
        AtomOp::Or => old | b,
        AtomOp::Xor => old ^ b,
        AtomOp::Exchange => b,
        AtomOp::CompareAndSwap if old == b => c,
        AtomOp::CompareAndSwap => old,
        AtomOp::Inc if old >= b => 0,
        AtomOp::Inc => old + 1,
        AtomOp::BarrierInit => mbarrier::init(b),
        AtomOp::BarrierArrive => mbarrier::arrive(old, b),
        AtomOp::BarrierDrop => mbarrier::arrive_drop(old, b),
        AtomOp::BarrierExpect => mbarrier::expect(old, b),
        AtomOp::BarrierComplete => mbarrier::complete(old, b),
        // Of 16 and of 32 bits only, see above.
        AtomOp::AddHalf | AtomOp::AddBrain | AtomOp::AddHalfPair | AtomOp::AddBrainPair => old,
        AtomOp::Dec if old == 0 || old > b => b,
        AtomOp::Dec => old - 1,
    }
}
