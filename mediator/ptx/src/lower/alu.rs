//! Arithmetic, logic, comparison, moves and conversions.

use super::super::code::{Logic, Op, Pred};
use super::super::error::LoadError;
use super::super::kernels::{Lanewise, compare_float, compare_integer, is_space, test_property};
use super::super::parse::Operand;
use super::super::types::{Kind, Space, Type};
use super::instruction::Instruction;
use super::{Builder, carry, compare, convert, float, video};

pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    match ptx.head {
        "mov" => mov(entry, ptx),
        "setp" | "set" => compare::lower(entry, ptx),
        "selp" => select(entry, ptx),
        "cvt" => convert::lower(entry, ptx),
        "cvta" => convert::convert_address(entry, ptx),
        "isspacep" => {
            let space = ptx.take_map(Space::parse);
            ptx.end()?;
            let comparison = space.and_then(is_space).ok_or_else(|| ptx.unsupported())?;
            compare::property(entry, comparison, Type::U64, ptx.operands)
        }
        "testp" => {
            let ty = ptx.ty()?;
            let comparison = ptx
                .take_map(|m| test_property(m, ty))
                .ok_or_else(|| ptx.unsupported())?;
            ptx.end()?;
            compare::property(entry, comparison, ty, ptx.operands)
        }
        "and" | "or" | "xor" | "not" => {
            let ty = ptx.ty()?;
            ptx.end()?;
            if ty.kind == Kind::Pred {
                return logic(entry, ptx.head, ptx.operands);
            }
            let bits = Type::new(Kind::Bits, ty.bits);
            let kernel = entry.out.integer(ptx.head, bits)?;
            uniform(entry, kernel, ty, ptx.operands)
        }
        _ => arithmetic(entry, ptx),
    }
}

/// All operands of one type.
pub(super) fn uniform(
    entry: &mut Builder<'_, '_>,
    kernel: Lanewise,
    ty: Type,
    operands: &[Operand<'_>],
) -> Result<(), LoadError> {
    let types = [ty; 4];
    typed(entry, kernel, ty, types, operands)
}

/// Destination first, then sources of the given types.
pub(super) fn typed(
    entry: &mut Builder<'_, '_>,
    kernel: Lanewise,
    to: Type,
    types: [Type; 4],
    operands: &[Operand<'_>],
) -> Result<(), LoadError> {
    let Some((d, sources)) = operands.split_first() else {
        return Err(entry.bad("the instruction takes operands"));
    };
    let d = entry.destination(d, to, false)?;
    let mut list = Vec::with_capacity(4);
    for (operand, ty) in sources.iter().zip(types) {
        list.push(entry.source(operand, ty, false)?);
    }
    if sources.len() > list.len() {
        return Err(entry.bad("the instruction takes fewer operands"));
    }
    entry.out.kernel(kernel, d, &list)
}

/// Instructions with an opcode of a name, modes and a type.
fn arithmetic(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let head = ptx.head;
    match head {
        "dp4a" | "dp2a" => return dot(entry, ptx),
        "slct" => return select_by_sign(entry, ptx),
        "lop3" => return lookup(entry, ptx),
        _ if head.len() > 3 && head.starts_with('v') => {
            return video::lower(entry, ptx);
        }
        _ => {}
    }
    if ptx.take("cc") || matches!(head, "addc" | "subc" | "madc") {
        return carry::lower(entry, ptx);
    }
    // The mode of `prmt` stands behind its type.
    let permutation = ptx.take_map(|m| {
        [".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"]
            .into_iter()
            .find(|mode| head == "prmt" && mode[1..] == *m)
    });
    let ty = ptx.ty()?;
    if ty.float() || ty.float_pair() {
        return float::lower(entry, ty, ptx);
    }
    let mode = match head {
        "mul" | "mad" | "mul24" | "mad24" => ptx.take_map(|m| match m {
            "lo" => Some(".lo"),
            "hi" => Some(".hi"),
            "wide" => Some(".wide"),
            _ => None,
        }),
        "shf" => {
            let (l, r) = (ptx.take("l"), ptx.take("r"));
            let (wrap, clamp) = (ptx.take("wrap"), ptx.take("clamp"));
            match (l, r, wrap, clamp) {
                (true, false, true, false) => Some(".l.wrap"),
                (true, false, false, true) => Some(".l.clamp"),
                (false, true, true, false) => Some(".r.wrap"),
                (false, true, false, true) => Some(".r.clamp"),
                _ => return Err(ptx.unsupported()),
            }
        }
        "add" | "sub" if ptx.take("sat") => Some(".sat"),
        "min" | "max" if ptx.take("relu") => Some(".relu"),
        "bfind" if ptx.take("shiftamt") => Some(".shiftamt"),
        "szext" | "bmsk" => ptx.take_map(|m| match m {
            "wrap" => Some(".wrap"),
            "clamp" => Some(".clamp"),
            _ => None,
        }),
        _ => permutation,
    };
    let sat = matches!(head, "mad" | "mad24") && mode == Some(".hi") && ptx.take("sat");
    ptx.end()?;
    let name = format!(
        "{head}{}{}",
        mode.unwrap_or(""),
        if sat { ".sat" } else { "" }
    );
    // Logic and bit counts are kernels of b-types. Some compilers write the shift's type as u
    // or s, which matters for `shr` only.
    let ty = match head {
        "shl" | "popc" | "clz" | "brev" | "cnot" => Type::new(Kind::Bits, ty.bits),
        _ => ty,
    };
    let kernel = entry.out.integer(&name, ty)?;
    let word = Type::U32;
    let wide = Type::new(ty.kind, ty.bits.saturating_mul(2).min(64));
    let (to, types) = match head {
        "popc" | "clz" | "bfind" => (word, [ty; 4]),
        "fns" => (word, [Type::B32; 4]),
        "shl" | "shr" => (ty, [ty, word, word, word]),
        "bfe" => (ty, [ty, word, word, word]),
        "bfi" => (ty, [ty, ty, word, word]),
        "mul" if mode == Some(".wide") => (wide, [ty; 4]),
        "mad" if mode == Some(".wide") => (wide, [ty, ty, wide, wide]),
        _ => (ty, [ty; 4]),
    };
    typed(entry, kernel, to, types, ptx.operands)
}

/// `dp4a.atype.btype`, `dp2a.mode.atype.btype`.
fn dot(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let b = ptx.ty()?;
    let a = ptx.ty()?;
    let sign = if a.signed() { "s32" } else { "u32" };
    let mode = ptx.take_map(|m| ["lo", "hi"].into_iter().find(|mode| *mode == m));
    ptx.end()?;
    let name = match mode {
        Some(mode) => format!("{}.{mode}.{sign}", ptx.head),
        None => format!("{}.{sign}", ptx.head),
    };
    let kernel = entry.out.integer(&name, b)?;
    uniform(entry, kernel, Type::U32, ptx.operands)
}

/// `mov`, also of addresses, special registers, and to and from vectors of narrower registers
/// (PTX ISA, `mov`).
fn mov(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let ty = ptx.ty()?;
    ptx.end()?;
    let [d, a] = ptx.operands else {
        return Err(entry.bad("`mov` takes two operands"));
    };
    if ty.kind == Kind::Pred {
        return logic(entry, "mov", ptx.operands);
    }
    let bits = Type::new(Kind::Bits, ty.bits);
    match (d, a) {
        (Operand::Vector(parts), _) => unpack(entry, bits, parts, a),
        (_, Operand::Vector(parts)) => pack(entry, bits, d, parts),
        _ => {
            let kernel = entry.out.integer("mov", bits)?;
            uniform(entry, kernel, ty, ptx.operands)
        }
    }
}

fn part(entry: &Builder<'_, '_>, ty: Type, parts: usize) -> Result<Type, LoadError> {
    match (ty.bits, parts) {
        (32, 2) | (64, 4) => Ok(Type::new(Kind::Bits, 16)),
        (64, 2) => Ok(Type::B32),
        _ => Err(entry.bad("vector does not fit the type")),
    }
}

fn pack(
    entry: &mut Builder<'_, '_>,
    ty: Type,
    d: &Operand<'_>,
    parts: &[Operand<'_>],
) -> Result<(), LoadError> {
    let part = part(entry, ty, parts.len())?;
    let d = entry.destination(d, ty, false)?;
    let mut sources = Vec::with_capacity(4);
    for operand in parts {
        sources.push(match operand {
            // A part that is left open.
            Operand::Name("_") => entry.out.pool(0),
            operand => entry.source(operand, part, false)?,
        });
    }
    let name = if part.bits == 16 { "join16" } else { "join32" };
    let kernel = entry.out.integer(name, ty)?;
    entry.out.kernel(kernel, d, &sources)
}

fn unpack(
    entry: &mut Builder<'_, '_>,
    ty: Type,
    parts: &[Operand<'_>],
    a: &Operand<'_>,
) -> Result<(), LoadError> {
    let part = part(entry, ty, parts.len())?;
    let a = entry.source(a, ty, false)?;
    for (i, operand) in parts.iter().enumerate() {
        let name = match i * usize::from(part.bits) {
            0 => "mov",
            16 => "high16",
            32 => "high32",
            _ => "high48",
        };
        let d = entry.destination(operand, part, false)?;
        let kernel = entry.out.integer(name, ty)?;
        entry.out.kernel(kernel, d, &[a])?;
    }
    Ok(())
}

/// Predicates: `and.pred` and its like.
fn logic(
    entry: &mut Builder<'_, '_>,
    head: &str,
    operands: &[Operand<'_>],
) -> Result<(), LoadError> {
    let (d, a, b) = match operands {
        [d, a] if matches!(head, "mov" | "not") => (d, a, None),
        [d, a, b] if !matches!(head, "mov" | "not") => (d, a, Some(b)),
        _ => return Err(entry.bad("the instruction takes another number of operands")),
    };
    let Operand::Name(name) = d else {
        return Err(entry.bad("expected a predicate"));
    };
    let d = entry.predicate_register(name)?;
    let mut a = entry.predicate(a)?;
    if head == "not" {
        a = match a {
            Pred::Reg { slot, not } => Pred::Reg { slot, not: !not },
            Pred::Always => Pred::Never,
            Pred::Never => Pred::Always,
        };
    }
    let b = b.map_or(Ok(Pred::Always), |b| entry.predicate(b))?;
    let op = Logic::parse(head).unwrap_or(Logic::Move);
    entry.out.emit(Op::Logic { op, d, a, b })
}

fn select(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let ty = ptx.ty()?;
    ptx.end()?;
    let [d, a, b, p] = ptx.operands else {
        return Err(entry.bad("`selp` takes four operands"));
    };
    if ty.bits < 16 {
        return Err(ptx.unsupported());
    }
    let d = entry.destination(d, ty, false)?;
    let a = entry.source(a, ty, false)?;
    let b = entry.source(b, ty, false)?;
    let p = entry.predicate(p)?;
    entry.out.emit(Op::Select { d, a, b, p })
}

/// `slct.type.ctype d, a, b, c`: `c >= 0 ? a : b`.
fn select_by_sign(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let by = ptx.ty()?;
    let ty = ptx.ty()?;
    let ftz = ptx.take("ftz");
    ptx.end()?;
    let [d, a, b, c] = ptx.operands else {
        return Err(entry.bad("`slct` takes four operands"));
    };
    let comparison = if by.float() {
        compare_float("ge", by)
    } else {
        compare_integer("ge", by)
    };
    let comparison = comparison.ok_or_else(|| ptx.unsupported())?;
    let d = entry.destination(d, ty, false)?;
    let a = entry.source(a, ty, false)?;
    let b = entry.source(b, ty, false)?;
    let mut c = entry.source(c, by, false)?;
    if ftz {
        c = entry.out.step("flush", by, by, c)?;
    }
    let zero = entry.out.pool(0);
    let slot = entry.out.temp_predicate()?;
    entry.out.test(comparison, (c, zero), Some(slot))?;
    let p = Pred::Reg { slot, not: false };
    entry.out.emit(Op::Select { d, a, b, p })
}

/// `lop3.b32`, and `lop3.or.b32 d|p, a, b, c, table, q`, which also compares with zero.
fn lookup(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let ty = ptx.ty()?;
    let logic = ptx.take_map(Logic::parse);
    ptx.end()?;
    let kernel = entry.out.integer("lop3", ty)?;
    let Some(logic) = logic else {
        return uniform(entry, kernel, ty, ptx.operands);
    };
    let [d, sources @ .., q] = ptx.operands else {
        return Err(entry.bad("`lop3` takes more operands"));
    };
    let (d, p) = entry.pair(d)?;
    let p = p.map_or(Ok(None), |p| entry.predicate_destination(p))?;
    let mut list = Vec::with_capacity(4);
    for operand in sources {
        list.push(entry.source(operand, ty, false)?);
    }
    let result = entry.out.helper(kernel, &list)?;
    let zero = entry.out.pool(0);
    let d = entry.destination(&Operand::Name(d), ty, false)?;
    let q = entry.predicate(q)?;
    let unequal = compare_integer("ne", ty).ok_or_else(|| ptx.unsupported())?;
    let sides = (result, zero);
    entry.out.compare(unequal, sides, (p, None), (logic, q))?;
    let kernel = entry.out.integer("mov", ty)?;
    entry.out.kernel(kernel, d, &[result])
}
