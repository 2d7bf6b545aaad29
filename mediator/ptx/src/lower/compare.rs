//! Comparisons.

use super::super::code::{CompareArgs, Dst, Logic, Op, Pred, Src};
use super::super::error::LoadError;
use super::super::kernels::{Comparison, compare_float, compare_integer};
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Type};
use super::Builder;

impl<'a> Builder<'a, '_> {
    /// Emits a comparison into predicates.
    pub(super) fn emit_compare(
        &mut self,
        comparison: Comparison,
        (a, b): (Src, Src),
        (p, q): (Option<u16>, Option<u16>),
        (logic, c): (Logic, Pred),
    ) -> Result<(), LoadError> {
        self.emit(match comparison {
            Comparison::Words(compare) => Op::CompareWords(Box::new(CompareArgs {
                compare,
                a,
                b,
                p,
                q,
                logic,
                c,
            })),
            Comparison::Doubles(compare) => Op::CompareDoubles(Box::new(CompareArgs {
                compare,
                a,
                b,
                p,
                q,
                logic,
                c,
            })),
        })
    }

    /// A predicate of one operand.
    pub(super) fn property(
        &mut self,
        comparison: Comparison,
        ty: Type,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let [Operand::Name(p), a] = operands else {
            return Err(self.bad("expected a predicate and a register"));
        };
        let p = self.predicate_destination(p)?;
        let a = self.source(a, ty, false)?;
        self.emit_compare(comparison, (a, a), (p, None), (Logic::Move, Pred::Always))
    }

    /// A fresh predicate.
    pub(super) fn temp_predicate(&mut self) -> Result<u16, LoadError> {
        let slot = self.code.preds;
        self.code.preds = slot.checked_add(1).ok_or(self.bad("too many registers"))?;
        Ok(slot)
    }

    /// `setp` and `set`, which makes a number of the predicate. Of a pair both numbers are
    /// compared.
    pub(super) fn compare(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let ty = modifiers.ty()?;
        let to = if head == "set" {
            Some(modifiers.ty()?)
        } else {
            None
        };
        let ftz = modifiers.take("ftz");
        // Numbers of 16 bits are compared as singles.
        let by = if ty.format().is_some() && ty.bits != 64 {
            Type::F32
        } else {
            ty
        };
        // The comparison stands first: `setp.lt.and.s32`.
        let comparison = modifiers.take_map(|m| match by.float() {
            true => compare_float(m, by),
            false => compare_integer(m, by),
        });
        let comparison = comparison.ok_or_else(|| modifiers.unsupported())?;
        let logic = modifiers.take_map(Logic::parse);
        modifiers.end()?;
        let (d, a, b, c) = match (operands, logic) {
            ([d, a, b], None) => (d, a, b, Pred::Always),
            ([d, a, b, c], Some(_)) => (d, a, b, self.predicate(c)?),
            _ => return Err(self.bad("the comparison takes another number of operands")),
        };
        let logic = (logic.unwrap_or(Logic::Move), c);
        let mut sides = [[Src::Pool(0); 2]; 2];
        for (operand, side) in [a, b].into_iter().zip(0..) {
            let source = self.source(operand, ty, false)?;
            sides[0][side] = self.compared(source, ty, ftz)?;
            if ty.float_pair() {
                let high = self.half_of(source)?;
                sides[1][side] = self.compared(high, ty, ftz)?;
            }
        }
        let [low, high] = sides.map(|[a, b]| (a, b));
        let Some(to) = to else {
            let (p, q) = self.pair(d)?;
            let p = self.predicate_destination(p)?;
            let q = q.map_or(Ok(None), |q| self.predicate_destination(q))?;
            if !ty.float_pair() {
                return self.emit_compare(comparison, low, (p, q), logic);
            }
            // `c` may be one of the results.
            let slot = self.temp_predicate()?;
            self.emit_compare(comparison, low, (Some(slot), None), logic)?;
            self.emit_compare(comparison, high, (q, None), logic)?;
            if let Some(d) = p {
                let (a, b) = (Pred::Reg { slot, not: false }, Pred::Always);
                let op = Logic::Move;
                return self.emit(Op::Logic { op, d, a, b });
            }
            return Ok(());
        };
        let one = match (to.kind, to.bits) {
            (Kind::Float, 32) => u64::from(1f32.to_bits()),
            (Kind::Float, 16) | (Kind::HalfPair, _) => 0x3c00,
            (Kind::Brain | Kind::BrainPair, _) => 0x3f80,
            (Kind::Unsigned | Kind::Signed, 16 | 32) if ty.float_pair() => 0xffff,
            (Kind::Unsigned | Kind::Signed, bits @ (16 | 32)) => (1 << bits) - 1,
            _ => return Err(modifiers.unsupported()),
        };
        let d = self.destination(d, to, false)?;
        if !ty.float_pair() {
            return self.one_if(comparison, low, logic, (one, d));
        }
        let (x, y) = (self.temp_word()?, self.temp_word()?);
        self.one_if(comparison, low, logic, (one, Dst::Word(x)))?;
        self.one_if(comparison, high, logic, (one, Dst::Word(y)))?;
        let join = self.integer_kernel("join16", Type::B32)?;
        self.emit_kernel(join, d, &[Src::Word(x), Src::Word(y)])
    }

    /// A source as it is compared.
    fn compared(&mut self, source: Src, ty: Type, ftz: bool) -> Result<Src, LoadError> {
        let mut source = self.widened(source, ty)?;
        if ftz {
            source = self.step("flush", Type::F32, Type::F32, source)?;
        }
        Ok(source)
    }

    /// The upper half of a register of 32 bits.
    pub(super) fn half_of(&mut self, source: Src) -> Result<Src, LoadError> {
        let slot = self.temp_word()?;
        let high = self.integer_kernel("high16", Type::B32)?;
        self.emit_kernel(high, Dst::Word(slot), &[source])?;
        Ok(Src::Word(slot))
    }

    /// A number of 16 bits as a single; others as they are.
    pub(super) fn widened(&mut self, source: Src, ty: Type) -> Result<Src, LoadError> {
        match ty.element() {
            small @ (Type::F16 | Type::BF16) => self.step("cvt", Type::F32, small, source),
            _ => Ok(source),
        }
    }

    fn one_if(
        &mut self,
        comparison: Comparison,
        sides: (Src, Src),
        logic: (Logic, Pred),
        (one, d): (u64, Dst),
    ) -> Result<(), LoadError> {
        // `set` is rare: each takes a predicate of its own.
        let slot = self.temp_predicate()?;
        self.emit_compare(comparison, sides, (Some(slot), None), logic)?;
        let (a, b) = (self.pool(one), self.pool(0));
        let p = Pred::Reg { slot, not: false };
        self.emit(Op::Select { d, a, b, p })
    }
}
