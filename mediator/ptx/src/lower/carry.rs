//! Extended-precision arithmetic (PTX ISA 9.7.2).

use super::super::code::{CarryArgs, Op};
use super::super::error::LoadError;
use super::super::parse::Operand;
use super::super::types::{Modifiers, Type};
use super::Builder;

impl<'a> Builder<'a, '_> {
    /// `add.cc`, `addc{.cc}`, `sub.cc`, `subc{.cc}`, `mad.lo.cc`, `madc.hi{.cc}`, …; the caller has
    /// removed `.cc`.
    pub(super) fn carry(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let ty = modifiers.ty()?;
        let product = if modifiers.take("lo") {
            Some("mul.lo")
        } else if modifiers.take("hi") {
            Some("mul.hi")
        } else {
            None
        };
        modifiers.end()?;
        let (subtract, reads, multiplies) = match head {
            "add" => (false, false, false),
            "addc" => (false, true, false),
            "sub" => (true, false, false),
            "subc" => (true, true, false),
            "mad" => (false, false, true),
            "madc" => (false, true, true),
            _ => return Err(modifiers.unsupported()),
        };
        if !ty.integer() || !matches!(ty.bits, 32 | 64) || multiplies != product.is_some() {
            return Err(modifiers.unsupported());
        }
        let (d, a, b) = match (operands, product) {
            ([d, a, b], None) => (d, self.source(a, ty, false)?, b),
            ([d, a, b, c], Some(name)) => {
                let kernel = self.integer_kernel(name, Type::new(ty.kind, ty.bits))?;
                let a = self.source(a, ty, false)?;
                let b = self.source(b, ty, false)?;
                let (to, product) = self.temp(kernel)?;
                self.emit_kernel(kernel, to, &[a, b])?;
                (d, product, c)
            }
            _ => return Err(self.bad("the instruction takes another number of operands")),
        };
        let b = self.source(b, ty, false)?;
        let d = self.destination(d, ty, false)?;
        self.emit(Op::Carry(Box::new(CarryArgs {
            subtract,
            wide: ty.bits == 64,
            reads,
            writes: modifiers.written("cc"),
            d,
            a,
            b,
        })))
    }
}
