//! Instructions in which the lanes of a warp compare or reduce values.

use super::super::code::{AtomOp, MatchArgs, Op, ReduceArgs};
use super::super::error::LoadError;
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Type};
use super::Builder;

impl<'a> Builder<'a, '_> {
    /// `match.any.sync`, `match.all.sync`, `redux.sync`, `elect.sync`.
    pub(super) fn collective(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        if !modifiers.take("sync") {
            return Err(modifiers.unsupported());
        }
        if head == "elect" {
            modifiers.end()?;
            let [d, members] = operands else {
                return Err(self.bad("`elect.sync` takes two operands"));
            };
            let (d, p) = self.pair(d)?;
            let p = p.map_or(Ok(None), |p| self.predicate_destination(p))?;
            let d = self.destination(&Operand::Name(d), Type::B32, false)?;
            let members = self.source(members, Type::B32, false)?;
            return self.emit(Op::Elect { d, p, members });
        }
        let [d, a, members] = operands else {
            return Err(self.bad("the instruction takes three operands"));
        };
        let ty = modifiers.ty()?;
        if head == "match" {
            let all = modifiers.take("all");
            let known = all || modifiers.take("any");
            modifiers.end()?;
            let (d, p) = self.pair(d)?;
            if !known || ty.kind != Kind::Bits || ty.bits < 32 || (p.is_some() && !all) {
                return Err(modifiers.unsupported());
            }
            let p = p.map_or(Ok(None), |p| self.predicate_destination(p))?;
            let d = self.destination(&Operand::Name(d), Type::B32, false)?;
            let a = self.source(a, ty, false)?;
            let members = self.source(members, Type::B32, false)?;
            return self.emit(Op::Match(Box::new(MatchArgs {
                all,
                d,
                p,
                a,
                members,
            })));
        }
        let op = modifiers.take_map(|m| {
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
        modifiers.end()?;
        let op = op.filter(|_| ty.bits == 32);
        let op = op.ok_or_else(|| modifiers.unsupported())?;
        let d = self.destination(d, ty, false)?;
        let a = self.source(a, ty, false)?;
        let members = self.source(members, Type::B32, false)?;
        self.emit(Op::Reduce(Box::new(ReduceArgs { op, d, a, members })))
    }
}
