//! Instructions in which the lanes of a warp compare or reduce values.

use super::super::code::{AtomOp, MatchArgs, Op, ReduceArgs};
use super::super::error::LoadError;
use super::super::parse::Operand;
use super::super::types::{Kind, Type};
use super::Builder;
use super::instruction::Instruction;

/// `match.any.sync`, `match.all.sync`, `redux.sync`, `elect.sync`.
pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    if !ptx.take("sync") {
        return Err(ptx.unsupported());
    }
    if ptx.head == "elect" {
        ptx.end()?;
        let [d, members] = ptx.operands else {
            return Err(entry.bad("`elect.sync` takes two operands"));
        };
        let (d, p) = entry.pair(d)?;
        let p = p.map_or(Ok(None), |p| entry.predicate_destination(p))?;
        let d = entry.destination(&Operand::Name(d), Type::B32, false)?;
        let members = entry.source(members, Type::B32, false)?;
        return entry.out.emit(Op::Elect { d, p, members });
    }
    let [d, a, members] = ptx.operands else {
        return Err(entry.bad("the instruction takes three operands"));
    };
    let ty = ptx.ty()?;
    if ptx.head == "match" {
        let all = ptx.take("all");
        let known = all || ptx.take("any");
        ptx.end()?;
        let (d, p) = entry.pair(d)?;
        if !known || ty.kind != Kind::Bits || ty.bits < 32 || (p.is_some() && !all) {
            return Err(ptx.unsupported());
        }
        let p = p.map_or(Ok(None), |p| entry.predicate_destination(p))?;
        let d = entry.destination(&Operand::Name(d), Type::B32, false)?;
        let a = entry.source(a, ty, false)?;
        let members = entry.source(members, Type::B32, false)?;
        return entry.out.emit(Op::Match(Box::new(MatchArgs {
            all,
            d,
            p,
            a,
            members,
        })));
    }
    let op = ptx.take_map(|m| {
        Some(match (m, ty.kind) {
            ("add", Kind::Unsigned | Kind::Signed) => AtomOp::Add,
            ("min", Kind::Unsigned) => AtomOp::MinU,
            ("max", Kind::Unsigned) => AtomOp::MaxU,
            ("min", Kind::Signed) => AtomOp::MinS,
            ("max", Kind::Signed) => AtomOp::MaxS,
            ("and", Kind::Bits) => AtomOp::And,
            ("or", Kind::Bits) => AtomOp::Or,
            ("xor", Kind::Bits) => AtomOp::Xor,
            _ => return None,
        })
    });
    ptx.end()?;
    let op = op.filter(|_| ty.bits == 32);
    let op = op.ok_or_else(|| ptx.unsupported())?;
    let d = entry.destination(d, ty, false)?;
    let a = entry.source(a, ty, false)?;
    let members = entry.source(members, Type::B32, false)?;
    entry
        .out
        .emit(Op::Reduce(Box::new(ReduceArgs { op, d, a, members })))
}
