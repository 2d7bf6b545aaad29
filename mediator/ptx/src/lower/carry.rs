//! Extended-precision arithmetic (PTX ISA 9.7.2).

use super::super::code::{CarryArgs, Op};
use super::super::error::LoadError;
use super::super::types::Type;
use super::Builder;
use super::instruction::Instruction;

/// `add.cc`, `addc{.cc}`, `sub.cc`, `subc{.cc}`, `mad.lo.cc`, `madc.hi{.cc}`, …; the caller has
/// removed `.cc`.
pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let ty = ptx.ty()?;
    let product = if ptx.take("lo") {
        Some("mul.lo")
    } else if ptx.take("hi") {
        Some("mul.hi")
    } else {
        None
    };
    ptx.end()?;
    let (subtract, reads, multiplies) = match ptx.head {
        "add" => (false, false, false),
        "addc" => (false, true, false),
        "sub" => (true, false, false),
        "subc" => (true, true, false),
        "mad" => (false, false, true),
        "madc" => (false, true, true),
        _ => return Err(ptx.unsupported()),
    };
    if !ty.integer() || !matches!(ty.bits, 32 | 64) || multiplies != product.is_some() {
        return Err(ptx.unsupported());
    }
    let (d, a, b) = match (ptx.operands, product) {
        ([d, a, b], None) => (d, entry.source(a, ty, false)?, b),
        ([d, a, b, c], Some(name)) => {
            let kernel = entry.out.integer(name, Type::new(ty.kind, ty.bits))?;
            let a = entry.source(a, ty, false)?;
            let b = entry.source(b, ty, false)?;
            (d, entry.out.helper(kernel, &[a, b])?, c)
        }
        _ => return Err(entry.bad("the instruction takes another number of operands")),
    };
    let b = entry.source(b, ty, false)?;
    let d = entry.destination(d, ty, false)?;
    entry.out.emit(Op::Carry(Box::new(CarryArgs {
        subtract,
        wide: ty.bits == 64,
        reads,
        writes: ptx.written("cc"),
        d,
        a,
        b,
    })))
}
