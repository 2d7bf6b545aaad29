//! The executable form of an entry.

use super::kernels::{Compare, Kernel};
use super::matrix::Part;
use super::types::Space;
use std::collections::HashMap;

/// Source of a value. Immediates are in the entry's pool.
#[derive(Debug, Clone, Copy)]
pub(super) enum Src {
    /// The file of 32-bit registers (16-bit ones live there too, zero-extended).
    Word(u16),
    /// The file of 64-bit registers.
    Double(u16),
    Pool(u32),
}

/// Where a result goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Dst {
    None,
    /// 32-bit file, low 16 bits.
    Half(u16),
    Word(u16),
    Double(u16),
}

/// A predicate operand: register, negated or not, or a constant.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pred {
    Always,
    Never,
    Reg { slot: u16, not: bool },
}

/// Bitwise operations of two predicates; `Move` takes the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logic {
    And,
    Or,
    Xor,
    Move,
}

impl Logic {
    pub(super) fn parse(text: &str) -> Option<Logic> {
        Some(match text {
            "and" => Logic::And,
            "or" => Logic::Or,
            "xor" => Logic::Xor,
            _ => return None,
        })
    }

    pub(super) fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Logic::And => a & b,
            Logic::Or => a | b,
            Logic::Xor => a ^ b,
            Logic::Move => a,
        }
    }
}

/// Special registers (PTX ISA 10); the dimension is 0 to 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    Clock,
    GlobalTimer,
    GlobalTimerHigh,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicSharedBytes,
    TotalSharedBytes,
    ClockHigh,
    /// Registers that are 0 here: of clusters of one block, of the environment, of counters.
    Zero,
    /// Sizes of clusters.
    One,
    // What follows are no PTX registers.
    /// Address at which the module's variables were placed.
    ModuleBase,
    /// Where the function's frame begins in local memory.
    Frame,
    /// Where the frame of a function that is called next will begin.
    NextFrame,
}

/// A load, store or atomic's address and shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) space: Space,
    /// Bytes of an element: 1, 2, 4, 8.
    pub(super) bytes: u8,
    /// Elements: 1, 2, 4.
    pub(super) count: u8,
    pub(super) base: Src,
    pub(super) offset: i64,
}

/// What an atomic does to memory (PTX ISA, `atom`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtomOp {
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    Inc,
    Dec,
    AddFloat,
    AddHalf,
    AddBrain,
    AddHalfPair,
    AddBrainPair,
    // On the 64 bits of an `mbarrier` object, see `ops/mbarrier.rs`.
    BarrierInit,
    BarrierArrive,
    BarrierDrop,
    BarrierExpect,
    BarrierComplete,
}

/// Source lane of a shuffle (PTX ISA, `shfl.sync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What a vote or a reducing barrier makes of the predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
    Count,
}

/// Results of a vote: a register or a predicate.
#[derive(Debug, Clone, Copy)]
pub(super) enum VoteDst {
    Reg(Dst),
    Pred(u16),
}

/// An operation on a warp.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Words {
        kernel: Kernel<u32>,
        d: Dst,
        s: [Src; 4],
    },
    Doubles {
        kernel: Kernel<u64>,
        d: Dst,
        s: [Src; 4],
    },
    CompareWords(Box<CompareArgs<u32>>),
    CompareDoubles(Box<CompareArgs<u64>>),
    /// `d = p ? a : b`.
    Select {
        d: Dst,
        a: Src,
        b: Src,
        p: Pred,
    },
    Logic {
        op: Logic,
        d: u16,
        a: Pred,
        b: Pred,
    },
    Carry(Box<CarryArgs>),
    Special {
        d: Dst,
        which: Special,
    },
    Load {
        access: Access,
        /// Sign-extend from the element to the register.
        signed: bool,
        d: [Dst; 4],
    },
    Store {
        access: Access,
        s: [Src; 4],
    },
    Atom {
        access: Access,
        op: AtomOp,
        d: Dst,
        b: Src,
        c: Src,
    },
    Shuffle(Box<ShuffleArgs>),
    Match(Box<MatchArgs>),
    Reduce(Box<ReduceArgs>),
    /// The lowest lane of the members: its number, and a predicate that holds there.
    Elect {
        d: Dst,
        p: Option<u16>,
        members: Src,
    },
    Matrix(Box<MatrixArgs>),
    CopyAsync(Box<CopyArgs>),
    Vote {
        vote: Vote,
        d: VoteDst,
        p: Pred,
        members: Src,
    },
    WarpSync {
        members: Src,
    },
    ActiveMask {
        d: Dst,
    },
    Barrier(Box<BarrierArgs>),
    Sleep {
        ns: Src,
    },
    Branch {
        target: u32,
    },
    /// Of the calls of the entry.
    Call(u32),
    Return,
    /// Moves the top of the frame up by the bytes in `s`, and gives where it was.
    Grow {
        d: Dst,
        bytes: Src,
    },
    Exit,
    Trap,
    Nop,
}

/// `setp` with its optional second result and combination.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompareArgs<T: 'static> {
    pub(super) compare: Compare<T>,
    pub(super) a: Src,
    pub(super) b: Src,
    pub(super) p: Option<u16>,
    pub(super) q: Option<u16>,
    pub(super) logic: Logic,
    pub(super) c: Pred,
}

/// A sum or difference with the carry flag.
#[derive(Debug, Clone, Copy)]
pub(super) struct CarryArgs {
    pub(super) subtract: bool,
    /// 64 bits, else 32.
    pub(super) wide: bool,
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) d: Dst,
    pub(super) a: Src,
    pub(super) b: Src,
}

/// Operands of `shfl.sync`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShuffleArgs {
    pub(super) mode: Shuffle,
    pub(super) d: Dst,
    pub(super) p: Option<u16>,
    pub(super) a: Src,
    pub(super) b: Src,
    pub(super) c: Src,
    pub(super) members: Src,
}

/// Operands of `match.any.sync`, and of `match.all.sync` if `all`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatchArgs {
    pub(super) all: bool,
    pub(super) d: Dst,
    pub(super) p: Option<u16>,
    pub(super) a: Src,
    pub(super) members: Src,
}

/// Operands of `redux.sync`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReduceArgs {
    pub(super) op: AtomOp,
    pub(super) d: Dst,
    pub(super) a: Src,
    pub(super) members: Src,
}

/// What a matrix instruction does.
#[derive(Debug, Clone, Copy)]
pub(super) enum MatrixOp {
    /// `D = A * B + C`; of bits by `and` or exclusive or.
    Product {
        parts: [Part; 4],
        clamp: bool,
        and: bool,
    },
    Load {
        part: Part,
        column: bool,
    },
    Store {
        part: Part,
        column: bool,
    },
    LoadTiles {
        transpose: bool,
    },
    StoreTiles {
        transpose: bool,
    },
    Transpose,
}

/// Operands of a matrix instruction.
#[derive(Debug, Clone)]
pub(super) struct MatrixArgs {
    pub(super) op: MatrixOp,
    pub(super) d: Vec<Dst>,
    pub(super) s: Vec<Src>,
    pub(super) access: Option<Access>,
    /// Elements from one row (or column) to the next.
    pub(super) stride: Option<Src>,
}

/// Operands of `cp.async`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyArgs {
    pub(super) to: Access,
    pub(super) from: Access,
    pub(super) bytes: u32,
    pub(super) size: Option<Src>,
    pub(super) ignore: Pred,
}

/// Operands of `bar.*`.
#[derive(Debug, Clone, Copy)]
pub(super) struct BarrierArgs {
    pub(super) id: Src,
    /// Number of threads, where given.
    pub(super) threads: Option<Src>,
    /// `bar.arrive` does not wait.
    pub(super) wait: bool,
    /// Of the cluster, which has one block, instead of the one that `id` names.
    pub(super) cluster: bool,
    /// `bar.red`.
    pub(super) reduce: Option<(Vote, VoteDst, Pred)>,
}

/// An operation, its guard predicate and its line in the text.
#[derive(Debug, Clone)]
pub(super) struct Inst {
    pub(super) guard: Pred,
    pub(super) line: u32,
    /// 1 for the last operation of a PTX instruction, 0 for its helpers: counts are of PTX
    /// instructions.
    pub(super) weight: u8,
    pub(super) op: Op,
}

/// Where a call goes: to a program counter, with a frame of so many bytes, or to an address.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallTarget {
    Pc(u32, u32),
    Address(Src),
}

/// Register slots (words, doubles, predicates) that a call must leave as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved {
    pub(super) first: [u16; 3],
    pub(super) end: [u16; 3],
}

impl Saved {
    /// Bytes of a thread's registers in its local memory.
    pub(super) fn bytes(&self) -> u32 {
        let [words, doubles, preds] =
            [0, 1, 2].map(|file| u32::from(self.end[file].saturating_sub(self.first[file])));
        (4 * (words + preds) + 8 * doubles).next_multiple_of(16)
    }
}

/// A call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) target: CallTarget,
    pub(super) save: Option<Box<Saved>>,
}

/// An entry's operations and the sizes of its register files.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// Ends with `Exit`.
    pub(super) insts: Vec<Inst>,
    pub(super) pool: Vec<u64>,
    pub(super) calls: Vec<Call>,
    /// Functions by address: program counter and bytes of the frame.
    pub(super) functions: HashMap<u64, (u32, u32)>,
    pub(super) entry_frame_bytes: u32,
    pub(super) words: u16,
    pub(super) doubles: u16,
    pub(super) preds: u16,
}

impl Code {
    /// Bytes of a lane's registers; predicates have a bit each.
    pub(super) fn register_bytes(&self) -> u64 {
        4 * u64::from(self.words) + 8 * u64::from(self.doubles) + u64::from(self.preds).div_ceil(8)
    }
}
