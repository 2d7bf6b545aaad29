//! A warp: its registers and the groups of its lanes.

use super::super::code::{Code, Dst, Pred, Saved, Src};
use super::super::{LANES, Lanes};
use super::call::Frames;
use super::{ExecError, refill};

/// Number of choices between diverged groups after which a group out of order gets a turn.
const FAIRNESS_TURNS: u32 = 512;

/// Why a group does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// For other lanes of the warp to arrive at its instruction.
    Lanes,
    /// At a barrier; the number of threads is 0 for all of the block.
    Barrier {
        id: u8,
        threads: u32,
    },
}

/// Lanes with one program counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) wait: Wait,
    /// Of the function that they execute.
    pub(super) frame: u32,
}

/// What a warp is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Until this time, in nanoseconds.
    Sleeping(u64),
    Barrier {
        id: u8,
        threads: u32,
    },
    Done,
}

/// A choice of group: which, and up to which program counter it runs alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) group: Group,
    pub(super) limit: u32,
    /// Continue without the lanes it waited for: they will not arrive.
    pub(super) forced: bool,
}

#[derive(Debug)]
// FIELDS: the state of a warp: register files, lanes, groups, frames.
pub(super) struct Warp {
    pub(super) index: u32,
    /// Lanes that exist and have not exited.
    pub(super) live: u32,
    pub(super) state: State,
    pub(super) groups: Vec<Group>,
    pub(super) tid: [Lanes<u32>; 3],
    words: Vec<Lanes<u32>>,
    doubles: Vec<Lanes<u64>>,
    preds: Vec<u32>,
    turns: u32,
    /// Carry flag of each lane.
    pub(super) carry: u32,
    /// Frame of the group that runs.
    pub(super) frame: u32,
    pub(super) frames: Frames,
}

impl Warp {
    pub(super) fn new() -> Warp {
        Warp {
            index: 0,
            live: 0,
            state: State::Done,
            groups: Vec::with_capacity(LANES),
            tid: [[0; LANES]; 3],
            words: Vec::new(),
            doubles: Vec::new(),
            preds: Vec::new(),
            turns: 0,
            carry: 0,
            frame: 0,
            frames: Frames::default(),
        }
    }

    /// Prepares warp `index` of a block of `shape`, all registers zero.
    pub(super) fn reset(
        &mut self,
        index: u32,
        shape: [u32; 3],
        code: &Code,
    ) -> Result<(), ExecError> {
        self.index = index;
        self.turns = 0;
        self.carry = 0;
        self.state = State::Ready;
        self.live = 0;
        let threads = shape[0] * shape[1] * shape[2];
        for lane in 0..LANES {
            // CAST: lanes are 0 to 31.
            let thread = index * LANES as u32 + lane as u32;
            if thread < threads {
                self.live |= 1 << lane;
            }
            self.tid[0][lane] = thread % shape[0];
            self.tid[1][lane] = thread / shape[0] % shape[1];
            self.tid[2][lane] = thread / shape[0] / shape[1];
        }
        self.groups.clear();
        self.groups.push(Group {
            pc: 0,
            mask: self.live,
            wait: Wait::No,
            frame: 0,
        });
        self.frame = 0;
        self.frames.reset(self.live, code.entry_frame_bytes);
        refill(&mut self.words, code.words.into(), [0; LANES])?;
        refill(&mut self.doubles, code.doubles.into(), [0; LANES])?;
        refill(&mut self.preds, code.preds.into(), 0)
    }

    // PANIC (below): lowering gave out every slot and pool index, and counted them in `code`.

    /// A source as 32-bit lanes; `buffer` holds what is not a register of that width.
    #[inline]
    pub(super) fn words<'a>(
        &'a self,
        code: &Code,
        source: Src,
        buffer: &'a mut Lanes<u32>,
    ) -> &'a Lanes<u32> {
        match source {
            Src::Word(slot) => return &self.words[usize::from(slot)],
            Src::Pool(at) => *buffer = [code.pool[at as usize] as u32; LANES],
            Src::Double(slot) => {
                let lanes = &self.doubles[usize::from(slot)];
                for i in 0..LANES {
                    buffer[i] = lanes[i] as u32;
                }
            }
        }
        buffer
    }

    /// A source as 64-bit lanes, narrower ones zero-extended.
    #[inline]
    pub(super) fn doubles<'a>(
        &'a self,
        code: &Code,
        source: Src,
        buffer: &'a mut Lanes<u64>,
    ) -> &'a Lanes<u64> {
        match source {
            Src::Double(slot) => return &self.doubles[usize::from(slot)],
            Src::Pool(at) => *buffer = [code.pool[at as usize]; LANES],
            Src::Word(slot) => {
                let lanes = &self.words[usize::from(slot)];
                for i in 0..LANES {
                    buffer[i] = u64::from(lanes[i]);
                }
            }
        }
        buffer
    }

    /// Whether a write under `mask` may touch all lanes: those that are not live have no say.
    #[inline]
    fn whole(&self, mask: u32) -> bool {
        mask | !self.live == u32::MAX
    }

    #[inline]
    pub(super) fn write_words(&mut self, d: Dst, value: &Lanes<u32>, mask: u32) {
        let whole = self.whole(mask);
        match d {
            Dst::None => {}
            Dst::Word(slot) if whole => self.words[usize::from(slot)] = *value,
            Dst::Word(slot) => blend(&mut self.words[usize::from(slot)], value, mask, |v| v),
            Dst::Half(slot) => {
                blend(&mut self.words[usize::from(slot)], value, mask, |v| {
                    v & 0xffff
                });
            }
            Dst::Double(slot) => {
                blend(&mut self.doubles[usize::from(slot)], value, mask, u64::from);
            }
        }
    }

    #[inline]
    pub(super) fn write_doubles(&mut self, d: Dst, value: &Lanes<u64>, mask: u32) {
        let whole = self.whole(mask);
        match d {
            Dst::None => {}
            Dst::Double(slot) if whole => self.doubles[usize::from(slot)] = *value,
            Dst::Double(slot) => blend(&mut self.doubles[usize::from(slot)], value, mask, |v| v),
            Dst::Word(slot) if whole => {
                let lanes = &mut self.words[usize::from(slot)];
                for i in 0..LANES {
                    lanes[i] = value[i] as u32;
                }
            }
            Dst::Word(slot) => {
                blend(&mut self.words[usize::from(slot)], value, mask, |v| {
                    v as u32
                });
            }
            Dst::Half(slot) => {
                let cut = |v| v as u32 & 0xffff;
                blend(&mut self.words[usize::from(slot)], value, mask, cut);
            }
        }
    }

    #[inline]
    pub(super) fn pred(&self, pred: Pred) -> u32 {
        match pred {
            Pred::Always => u32::MAX,
            Pred::Never => 0,
            Pred::Reg { slot, not: false } => self.preds[usize::from(slot)],
            Pred::Reg { slot, not: true } => !self.preds[usize::from(slot)],
        }
    }

    #[inline]
    pub(super) fn write_pred(&mut self, slot: u16, value: u32, mask: u32) {
        let old = &mut self.preds[usize::from(slot)];
        *old = (*old & !mask) | (value & mask);
    }

    /// Writes a lane's registers of `saved` into `bytes`.
    pub(super) fn read_slots(&self, saved: &Saved, lane: usize, bytes: &mut [u8]) {
        let range = |file: usize| usize::from(saved.first[file])..usize::from(saved.end[file]);
        let doubles = self.doubles[range(1)].iter().map(|d| d[lane]);
        let words = self.words[range(0)].iter().map(|w| w[lane]);
        let preds = self.preds[range(2)].iter().map(|p| (p >> lane) & 1);
        let mut at = 0;
        for value in doubles {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            at += 8;
        }
        for value in words.chain(preds) {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            at += 4;
        }
    }

    /// Reads them back.
    pub(super) fn write_slots(&mut self, saved: &Saved, lane: usize, bytes: &[u8]) {
        let range = |file: usize| usize::from(saved.first[file])..usize::from(saved.end[file]);
        let (doubles, rest) = bytes.split_at(8 * range(1).len());
        for (slot, value) in self.doubles[range(1)].iter_mut().zip(doubles.as_chunks().0) {
            slot[lane] = u64::from_le_bytes(*value);
        }
        let mut rest = rest.as_chunks().0.iter().map(|v| u32::from_le_bytes(*v));
        for (slot, value) in self.words[range(0)].iter_mut().zip(&mut rest) {
            slot[lane] = value;
        }
        for (slot, value) in self.preds[range(2)].iter_mut().zip(&mut rest) {
            *slot = (*slot & !(1 << lane)) | ((value & 1) << lane);
        }
    }

    /// Takes out the group that runs next; `None` when all wait or none is left.
    pub(super) fn choose(&mut self) -> Option<Turn> {
        if self.groups.len() > 1 {
            self.merge();
            self.turns = self.turns.wrapping_add(1);
        }
        // Lanes within a call go first, so that they meet their callers after it.
        let frames = &self.frames;
        let lowest = |groups: &[Group], wait: Wait| {
            let all = groups.iter().enumerate();
            all.filter(|(_, g)| g.wait == wait)
                .min_by_key(|(_, g)| (u32::MAX - frames.at(g.frame).depth, g.pc))
                .map(|(at, _)| at)
        };
        let mut forced = false;
        let mut at = lowest(&self.groups, Wait::No);
        if at.is_none() {
            at = lowest(&self.groups, Wait::Lanes);
            forced = true;
        } else if self.turns % FAIRNESS_TURNS == FAIRNESS_TURNS - 1 && self.groups.len() > 1 {
            let runnable = || {
                let all = self.groups.iter().enumerate();
                all.filter(|(_, g)| g.wait == Wait::No)
            };
            let nth = (self.turns / FAIRNESS_TURNS) as usize % runnable().count().max(1);
            at = runnable().nth(nth).map(|(at, _)| at);
        }
        let mut group = self.groups.swap_remove(at?);
        group.wait = Wait::No;
        self.frame = group.frame;
        let same = self.groups.iter().filter(|g| g.frame == group.frame);
        let ahead = same.map(|g| g.pc).filter(|pc| *pc > group.pc);
        let limit = ahead.min().unwrap_or(u32::MAX);
        Some(Turn {
            group,
            limit,
            forced,
        })
    }

    /// Joins groups with equal program counters. A joined group checks again for the lanes it waits
    /// for.
    fn merge(&mut self) {
        let mut at = 0;
        while at < self.groups.len() {
            let Group { pc, frame, .. } = self.groups[at];
            let mut other = at + 1;
            while other < self.groups.len() {
                if self.groups[other].pc == pc && self.groups[other].frame == frame {
                    let joined = self.groups.swap_remove(other);
                    self.groups[at].mask |= joined.mask;
                    self.groups[at].wait = Wait::No;
                } else {
                    other += 1;
                }
            }
            at += 1;
        }
    }

    /// Lanes that are gone need not be waited for.
    pub(super) fn exit(&mut self, lanes: u32) {
        self.live &= !lanes;
        self.frames.exit(self.frame, lanes);
        for group in &mut self.groups {
            if group.wait == Wait::Lanes {
                group.wait = Wait::No;
            }
        }
    }

    /// Linear index of a lane's thread in its block.
    pub(super) fn thread(&self, lane: usize) -> usize {
        self.index as usize * LANES + lane
    }
}

#[inline]
fn blend<T: Copy, V: Copy>(old: &mut Lanes<T>, new: &Lanes<V>, mask: u32, f: impl Fn(V) -> T) {
    for i in 0..LANES {
        if (mask >> i) & 1 == 1 {
            old[i] = f(new[i]);
        }
    }
}

/// The lanes of a mask, in order.
pub(super) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros();
            mask &= mask - 1;
            lane as usize
        })
    })
}
