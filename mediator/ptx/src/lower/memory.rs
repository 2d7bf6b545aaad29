//! Loads, stores and atomics.

use super::super::code::{Access, AtomOp, Dst, Op, Src};
use super::super::error::LoadError;
use super::super::parse::Operand;
use super::super::types::{Kind, Space, Type};
use super::instruction::Instruction;
use super::{Builder, Meaning, Variables};

pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    if matches!(ptx.head, "prefetch" | "prefetchu") {
        // A hint without a visible effect; its address is not even checked, as on hardware.
        return entry.out.emit(Op::Nop);
    }
    let ty = ptx.ty()?;
    if matches!(ptx.head, "atom" | "red") {
        return atomic(entry, ptx.head == "atom", ty, ptx);
    }
    let count = if ptx.take("v2") {
        2
    } else if ptx.take("v4") {
        4
    } else {
        1
    };
    let space = ptx.take_map(Space::parse).unwrap_or(Space::Generic);
    ptx.take_cache_hint();
    ptx.end()?;
    let known = ty.kind != Kind::Pred && !(ty.float() && ty.bits == 16);
    if !known || ty.bytes() * count > 16 {
        return Err(ptx.unsupported());
    }
    let (registers, address) = match (ptx.head, ptx.operands) {
        ("ld" | "ldu", [d, address]) => (d, address),
        ("st", [address, s]) => (s, address),
        _ => return Err(entry.bad("the access takes two operands")),
    };
    let registers = match (registers, count) {
        (Operand::Vector(parts), n) if parts.len() == n as usize => parts.as_slice(),
        (Operand::Vector(_), _) => return Err(entry.bad("vector of another length")),
        (one, 1) => std::slice::from_ref(one),
        _ => return Err(entry.bad("expected a vector")),
    };
    // CAST: at most 8 and 4.
    let shape = (ty.bytes() as u8, count as u8);
    if ptx.head == "st" {
        if space == Space::Const {
            return Err(ptx.unsupported());
        }
        let mut s = [Src::Pool(0); 4];
        for (slot, operand) in s.iter_mut().zip(registers) {
            *slot = entry.source(operand, ty, true)?;
        }
        let access = access(entry, space, shape, address)?;
        if access.space == Space::Param {
            // An entry's own parameters are read-only.
            return Err(ptx.unsupported());
        }
        return entry.out.emit(Op::Store { access, s });
    }
    let access = access(entry, space, shape, address)?;
    let mut d = [Dst::None; 4];
    for (slot, operand) in d.iter_mut().zip(registers) {
        *slot = entry.destination(operand, ty, true)?;
    }
    let signed = ty.signed();
    entry.out.emit(Op::Load { access, signed, d })
}

/// `[register+offset]`, `[variable+offset]`, `[number]`.
pub(super) fn access(
    entry: &mut Builder<'_, '_>,
    mut space: Space,
    (bytes, count): (u8, u8),
    operand: &Operand<'_>,
) -> Result<Access, LoadError> {
    let Operand::Address(base, offset) = operand else {
        return Err(entry.bad("expected an address"));
    };
    let mut offset = *offset;
    let base = match base {
        None => entry.out.pool(0),
        Some(name) => match entry.variable_named(name) {
            Some(variable) => {
                let (mut at, source) = entry.variable(variable, offset)?;
                if let Variables::Frame { param: true, .. } = variable {
                    at = Space::Param;
                    if space == Space::Param {
                        space = Space::Local;
                        at = Space::Local;
                    }
                }
                if at != space {
                    return Err(entry.bad(&format!("`{name}` is in another state space")));
                }
                offset = 0;
                source
            }
            None => match entry.find(name) {
                Some(Meaning::Register { slot, bits: 64 }) => Src::Double(slot),
                Some(Meaning::Register { slot, bits: 32 }) => Src::Word(slot),
                Some(_) => return Err(entry.bad("an address has 32 or 64 bits")),
                None => return Err(entry.unknown(name)),
            },
        },
    };
    // The parameters of a function are in its frame, which is local memory.
    if space == Space::Param && entry.calls.in_function() {
        space = Space::Local;
    }
    Ok(Access {
        space,
        bytes,
        count,
        base,
        offset,
    })
}

fn atomic(
    entry: &mut Builder<'_, '_>,
    returns: bool,
    ty: Type,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let space = ptx.take_map(Space::parse).unwrap_or(Space::Generic);
    let op = ptx.take_map(|m| {
        Some(match (m, ty.kind, ty.bits) {
            ("add", Kind::Float, 32 | 64) => AtomOp::AddFloat,
            ("add", Kind::Unsigned | Kind::Signed, 32 | 64) => AtomOp::Add,
            ("min", Kind::Unsigned, 32 | 64) => AtomOp::MinU,
            ("max", Kind::Unsigned, 32 | 64) => AtomOp::MaxU,
            ("min", Kind::Signed, 32 | 64) => AtomOp::MinS,
            ("max", Kind::Signed, 32 | 64) => AtomOp::MaxS,
            ("and", Kind::Bits, 32 | 64) => AtomOp::And,
            ("or", Kind::Bits, 32 | 64) => AtomOp::Or,
            ("xor", Kind::Bits, 32 | 64) => AtomOp::Xor,
            ("exch", Kind::Bits, 32 | 64) => AtomOp::Exchange,
            ("cas", Kind::Bits, 32 | 64) => AtomOp::CompareAndSwap,
            ("cas", Kind::Bits, 16) => AtomOp::CompareAndSwap,
            ("exch", Kind::Bits, 16) => AtomOp::Exchange,
            ("add", Kind::Float, 16) => AtomOp::AddHalf,
            ("add", Kind::Brain, 16) => AtomOp::AddBrain,
            ("add", Kind::HalfPair, _) => AtomOp::AddHalfPair,
            ("add", Kind::BrainPair, _) => AtomOp::AddBrainPair,
            ("inc", Kind::Unsigned, 32) => AtomOp::Inc,
            ("dec", Kind::Unsigned, 32) => AtomOp::Dec,
            _ => return None,
        })
    });
    let op = op.ok_or_else(|| ptx.unsupported())?;
    if ty.bits == 16 || ty.float_pair() {
        ptx.take("noftz");
    }
    ptx.take_cache_hint();
    ptx.end()?;
    if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
        return Err(ptx.unsupported());
    }
    let (d, rest) = match ptx.operands.split_first() {
        Some((d, rest)) if returns => (entry.destination(d, ty, false)?, rest),
        _ => (Dst::None, ptx.operands),
    };
    let access =
        |entry: &mut Builder<'_, '_>, operand| access(entry, space, (ty.bytes() as u8, 1), operand);
    let (access, b, c) = match rest {
        [address, b] if op != AtomOp::CompareAndSwap => (
            access(entry, address)?,
            entry.source(b, ty, false)?,
            Src::Pool(0),
        ),
        [address, b, c] if op == AtomOp::CompareAndSwap => {
            let access = access(entry, address)?;
            let b = entry.source(b, ty, false)?;
            (access, b, entry.source(c, ty, false)?)
        }
        _ => return Err(entry.bad("the atomic takes another number of operands")),
    };
    entry.out.emit(Op::Atom {
        access,
        op,
        d,
        b,
        c,
    })
}
