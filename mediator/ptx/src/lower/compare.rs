//! Comparisons.

use super::super::code::{Dst, Logic, Op, Pred, Src};
use super::super::error::LoadError;
use super::super::kernels::{Comparison, compare_float, compare_integer};
use super::super::parse::Operand;
use super::super::types::{Kind, Type};
use super::Builder;
use super::emit::Emitter;
use super::instruction::Instruction;

/// A predicate of one operand.
pub(super) fn property(
    entry: &mut Builder<'_, '_>,
    comparison: Comparison,
    ty: Type,
    operands: &[Operand<'_>],
) -> Result<(), LoadError> {
    let [Operand::Name(p), a] = operands else {
        return Err(entry.bad("expected a predicate and a register"));
    };
    let p = entry.predicate_destination(p)?;
    let a = entry.source(a, ty, false)?;
    entry.out.test(comparison, (a, a), p)
}

/// `setp` and `set`, which makes a number of the predicate. Of a pair both numbers are
/// compared.
pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let ty = ptx.ty()?;
    let to = if ptx.head == "set" {
        Some(ptx.ty()?)
    } else {
        None
    };
    let ftz = ptx.take("ftz");
    // Numbers of 16 bits are compared as singles.
    let by = if ty.format().is_some() && ty.bits != 64 {
        Type::F32
    } else {
        ty
    };
    // The comparison stands first: `setp.lt.and.s32`.
    let comparison = ptx.take_map(|m| match by.float() {
        true => compare_float(m, by),
        false => compare_integer(m, by),
    });
    let comparison = comparison.ok_or_else(|| ptx.unsupported())?;
    let logic = ptx.take_map(Logic::parse);
    ptx.end()?;
    let (d, a, b, c) = match (ptx.operands, logic) {
        ([d, a, b], None) => (d, a, b, Pred::Always),
        ([d, a, b, c], Some(_)) => (d, a, b, entry.predicate(c)?),
        _ => return Err(entry.bad("the comparison takes another number of operands")),
    };
    let logic = (logic.unwrap_or(Logic::Move), c);
    let mut sides = [[Src::Pool(0); 2]; 2];
    for (operand, side) in [a, b].into_iter().zip(0..) {
        let source = entry.source(operand, ty, false)?;
        sides[0][side] = compared(&mut entry.out, source, ty, ftz)?;
        if ty.float_pair() {
            let high = half_of(&mut entry.out, source)?;
            sides[1][side] = compared(&mut entry.out, high, ty, ftz)?;
        }
    }
    let [low, high] = sides.map(|[a, b]| (a, b));
    let Some(to) = to else {
        let (p, q) = entry.pair(d)?;
        let p = entry.predicate_destination(p)?;
        let q = q.map_or(Ok(None), |q| entry.predicate_destination(q))?;
        if !ty.float_pair() {
            return entry.out.compare(comparison, low, (p, q), logic);
        }
        // `c` may be one of the results.
        let slot = entry.out.temp_predicate()?;
        let first = (Some(slot), None);
        entry.out.compare(comparison, low, first, logic)?;
        entry.out.compare(comparison, high, (q, None), logic)?;
        if let Some(d) = p {
            let (a, b) = (Pred::Reg { slot, not: false }, Pred::Always);
            let op = Logic::Move;
            return entry.out.emit(Op::Logic { op, d, a, b });
        }
        return Ok(());
    };
    let one = match (to.kind, to.bits) {
        (Kind::Float, 32) => u64::from(1f32.to_bits()),
        (Kind::Float, 16) | (Kind::HalfPair, _) => 0x3c00,
        (Kind::Brain | Kind::BrainPair, _) => 0x3f80,
        (Kind::Unsigned | Kind::Signed, 16 | 32) if ty.float_pair() => 0xffff,
        (Kind::Unsigned | Kind::Signed, bits @ (16 | 32)) => (1 << bits) - 1,
        _ => return Err(ptx.unsupported()),
    };
    let d = entry.destination(d, to, false)?;
    if !ty.float_pair() {
        return one_if(&mut entry.out, comparison, low, logic, (one, d));
    }
    let (x, y) = (entry.out.temp_word()?, entry.out.temp_word()?);
    one_if(&mut entry.out, comparison, low, logic, (one, Dst::Word(x)))?;
    one_if(&mut entry.out, comparison, high, logic, (one, Dst::Word(y)))?;
    let join = entry.out.integer("join16", Type::B32)?;
    entry.out.kernel(join, d, &[Src::Word(x), Src::Word(y)])
}

/// A source as it is compared.
fn compared(out: &mut Emitter, source: Src, ty: Type, ftz: bool) -> Result<Src, LoadError> {
    let mut source = widened(out, source, ty)?;
    if ftz {
        source = out.step("flush", Type::F32, Type::F32, source)?;
    }
    Ok(source)
}

/// The upper half of a register of 32 bits.
pub(super) fn half_of(out: &mut Emitter, source: Src) -> Result<Src, LoadError> {
    let high = out.integer("high16", Type::B32)?;
    out.helper(high, &[source])
}

/// A number of 16 bits as a single; others as they are.
pub(super) fn widened(out: &mut Emitter, source: Src, ty: Type) -> Result<Src, LoadError> {
    match ty.element() {
        small @ (Type::F16 | Type::BF16) => out.step("cvt", Type::F32, small, source),
        _ => Ok(source),
    }
}

fn one_if(
    out: &mut Emitter,
    comparison: Comparison,
    sides: (Src, Src),
    logic: (Logic, Pred),
    (one, d): (u64, Dst),
) -> Result<(), LoadError> {
    // `set` is rare: each takes a predicate of its own.
    let slot = out.temp_predicate()?;
    out.compare(comparison, sides, (Some(slot), None), logic)?;
    let (a, b) = (out.pool(one), out.pool(0));
    let p = Pred::Reg { slot, not: false };
    out.emit(Op::Select { d, a, b, p })
}
