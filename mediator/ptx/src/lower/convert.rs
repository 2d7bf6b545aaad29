//! Conversions, of values and of addresses.

use super::super::code::{Dst, Src};
use super::super::error::LoadError;
use super::super::kernels::{exactly, extension};
use super::super::ops::exact::{Control, Mode};
use super::super::types::{Kind, Space, Type};
use super::emit::Emitter;
use super::instruction::Instruction;
use super::operand::window;
use super::{Builder, compare};

/// The modifiers of a conversion.
#[derive(Debug, Clone, Copy)]
struct How {
    ftz: bool,
    sat: bool,
    /// `.satfinite`.
    finite: bool,
    relu: bool,
    /// Rounding to an integer.
    whole: Option<&'static str>,
    mode: Option<Mode>,
}

/// Whether a type has two numbers.
fn paired(ty: Type) -> bool {
    ty.float_pair() || matches!(ty.kind, Kind::FourPair | Kind::FivePair)
}

/// `cvt`, as a chain of simple steps.
pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    if ptx.take("pack") {
        return convert_pack(entry, ptx);
    }
    let from = ptx.ty()?;
    let to = ptx.ty()?;
    let how = How {
        ftz: ptx.take("ftz"),
        sat: ptx.take("sat"),
        finite: ptx.take("satfinite"),
        relu: ptx.take("relu"),
        whole: ptx.take_map(|m| {
            ["rni", "rzi", "rmi", "rpi"]
                .into_iter()
                .find(|known| *known == m)
        }),
        mode: ptx.take_rounding(),
    };
    ptx.end()?;
    if from.kind == Kind::Pred || to.kind == Kind::Pred {
        return Err(ptx.unsupported());
    }
    if paired(to) || paired(from) {
        return convert_pair(entry, (to, from), how, &ptx);
    }
    let [d, a] = ptx.operands else {
        return Err(entry.bad("`cvt` takes two operands"));
    };
    let width = entry.width_of(d).unwrap_or(to.bits);
    let dst = entry.destination(d, to, true)?;
    let value = entry.source(a, from, true)?;
    if !from.float() && !to.float() {
        if how.whole.is_some() || how.mode.is_some() {
            return Err(ptx.unsupported());
        }
        if how.sat {
            let clamped = clamped(&mut entry.out, value, to, from)?;
            let exact = Type::new(to.kind, 64);
            return convert_integer(&mut entry.out, dst, width, to, exact, (clamped, None));
        }
        let source = (value, entry.width_of(a));
        return convert_integer(&mut entry.out, dst, width, to, from, source);
    }
    let value = converted(&mut entry.out, value, (to, from), how, &ptx)?;
    // Into a wider register an integer is extended by its own kind (9.4.1).
    let last = match to.float() || width == to.bits {
        true => extension(Type::U64),
        false => extension(to),
    };
    entry.out.kernel(last, dst, &[value])
}

/// A number of floating point on at least one side.
fn converted(
    out: &mut Emitter,
    mut value: Src,
    (to, from): (Type, Type),
    how: How,
    ptx: &Instruction<'_, '_>,
) -> Result<Src, LoadError> {
    let single = |ty: Type| ty == Type::F32;
    let nearest = how.mode == Some(Mode::Nearest);
    match (from.float(), to.float()) {
        (false, true) => {
            let mode = how.mode.ok_or_else(|| ptx.unsupported())?;
            // Singles of 32-bit signed numbers have a kernel of their own.
            let direct = from.signed() && from.bits == 32 && single(to) && nearest;
            if !direct {
                value = out.helper(extension(from), &[value])?;
            }
            if nearest && to.kind == Kind::Float && to.bits >= 32 {
                value = out.step("cvt", to, from, value)?;
            } else {
                let control = Control {
                    mode,
                    ..exact_control(out, to, to, how)?
                };
                let name = if from.signed() {
                    "cvt.signed"
                } else {
                    "cvt.unsigned"
                };
                return exact_step(out, name, to, value, control);
            }
        }
        (true, false) => {
            let mode = how.whole.ok_or_else(|| ptx.unsupported())?;
            let by = if from.bits == 16 { Type::F32 } else { from };
            value = compare::widened(out, value, from)?;
            if how.ftz && single(by) {
                value = out.step("flush", by, by, value)?;
            }
            if mode != "rzi" {
                value = out.step(mode, by, by, value)?;
            }
            return out.step("cvt", to, by, value);
        }
        _ if let Some(mode) = how.whole => {
            let by = if from.bits == 16 { Type::F32 } else { from };
            value = compare::widened(out, value, from)?;
            if how.ftz && single(by) {
                value = out.step("flush", by, by, value)?;
            }
            value = out.step(mode, by, by, value)?;
            if to != by {
                let control = Control {
                    mode: Mode::Nearest,
                    ..exact_control(out, to, by, how)?
                };
                return exact_step(out, "cvt", to, value, control);
            }
        }
        _ => {
            let known = matches!((to, from), (Type::F32, Type::F32 | Type::F16 | Type::BF16))
                || (to.bits == 64 && from.bits >= 32)
                || (single(to) && from.bits == 64 && nearest)
                || (to == Type::F16 && single(from) && nearest && !how.relu && !how.finite);
            let narrows = to.bits < from.bits || to.kind != from.kind;
            let widens = single(to) || to.bits == 64;
            if narrows && !widens && how.mode.is_none() && from.bits > 16 {
                return Err(ptx.unsupported());
            }
            if !known || (how.ftz && to.bits == 16) || to.kind == Kind::Tensor {
                let control = exact_control(out, to, from, how)?;
                let name = if how.finite { "cvt.satfinite" } else { "cvt" };
                return exact_step(out, name, to, value, control);
            }
            if to.bits < from.bits && how.mode.is_none() {
                return Err(ptx.unsupported());
            }
            if how.ftz && single(from) {
                value = out.step("flush", from, from, value)?;
            }
            value = out.step("cvt", to, from, value)?;
        }
    }
    if how.ftz && single(to) {
        value = cut(out, value)?;
        value = out.step("flush", to, to, value)?;
    }
    if how.sat {
        if to.bits == 16 {
            let control = exact_control(out, to, to, how)?;
            return exact_step(out, "cvt", to, value, control);
        }
        if to.bits == 32 {
            value = cut(out, value)?;
        }
        value = out.step("sat", to, to, value)?;
    }
    Ok(value)
}

fn exact_control(out: &Emitter, to: Type, from: Type, how: How) -> Result<Control, LoadError> {
    let formats = to.format().zip(from.format());
    let (format, source) = formats.ok_or_else(|| out.no_type("cvt", from))?;
    Ok(Control {
        from: source,
        mode: how.mode.unwrap_or(Mode::Nearest),
        ftz: how.ftz,
        sat: how.sat,
        relu: how.relu,
        ..Control::new(format)
    })
}

fn exact_step(
    out: &mut Emitter,
    name: &str,
    to: Type,
    value: Src,
    control: Control,
) -> Result<Src, LoadError> {
    let kernel = exactly(name).ok_or_else(|| out.no_type(name, to))?;
    let control = out.pool(control.to_bits());
    out.helper(kernel, &[value, control])
}

/// Two numbers into one register, or out of one (`cvt.rn.f16x2.f32 d, a, b`: `a` is the upper).
fn convert_pair(
    entry: &mut Builder<'_, '_>,
    (to, from): (Type, Type),
    how: How,
    ptx: &Instruction<'_, '_>,
) -> Result<(), LoadError> {
    if how.whole.is_some() || !paired(to) || how.mode.is_none() {
        return Err(ptx.unsupported());
    }
    let (dst, high, low) = match ptx.operands {
        [d, a, b] if !paired(from) => {
            let high = entry.source(a, from, false)?;
            (d, high, entry.source(b, from, false)?)
        }
        [d, a] if paired(from) => {
            let both = entry.source(a, from, false)?;
            let (low, high) = match from.bits {
                32 => ("low16", "high16"),
                _ => ("low8", "high8"),
            };
            let mut part = |name| {
                let kernel = entry.out.integer(name, Type::new(Kind::Bits, from.bits))?;
                entry.out.helper(kernel, &[both])
            };
            (d, part(high)?, part(low)?)
        }
        _ => return Err(entry.bad("`cvt` takes another number of operands")),
    };
    let control = exact_control(&entry.out, to, from, how)?;
    let name = if how.finite { "cvt.satfinite" } else { "cvt" };
    let high = exact_step(&mut entry.out, name, to, high, control)?;
    let low = exact_step(&mut entry.out, name, to, low, control)?;
    let dst = entry.destination(dst, to, false)?;
    let join = if to.bits == 32 { "join16" } else { "join8" };
    let kernel = entry.out.integer(join, Type::new(Kind::Bits, to.bits))?;
    entry.out.kernel(kernel, dst, &[low, high])
}

/// An integer extended to 64 bits and clamped to another type's range.
fn clamped(out: &mut Emitter, value: Src, to: Type, from: Type) -> Result<Src, LoadError> {
    let slot = out.temp_double()?;
    out.kernel(extension(from), Dst::Double(slot), &[value])?;
    // Bits of the type, its sign, and the sign of the source.
    let range = u64::from(to.bits) | u64::from(to.signed()) << 8 | u64::from(from.signed()) << 9;
    let range = out.pool(range);
    let clamp = out.integer("clamp", Type::U64)?;
    out.kernel(clamp, Dst::Double(slot), &[Src::Double(slot), range])?;
    Ok(Src::Double(slot))
}

/// `cvt.pack.sat.type.s32{.b32} d, a, b{, c}`: `b` below `a`, below the low part of `c`.
fn convert_pack(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let known = ptx.take("sat");
    let upper = ptx.take("b32");
    let from = ptx.ty()?;
    let to = ptx.take_map(|m| {
        Some(match m {
            "u16" => (16, false),
            "s16" => (16, true),
            "u8" => (8, false),
            "s8" => (8, true),
            "u4" => (4, false),
            "s4" => (4, true),
            "u2" => (2, false),
            "s2" => (2, true),
            _ => return None,
        })
    });
    ptx.end()?;
    let (
        Some((bits, signed)),
        true,
        Type {
            kind: Kind::Signed,
            bits: 32,
        },
    ) = (to, known, from)
    else {
        return Err(ptx.unsupported());
    };
    let (d, a, b, c) = match ptx.operands {
        [d, a, b] if !upper && bits == 16 => (d, a, b, None),
        [d, a, b, c] if upper && bits < 16 => (d, a, b, Some(c)),
        _ => return Err(ptx.unsupported()),
    };
    let to = Type::new(if signed { Kind::Signed } else { Kind::Unsigned }, bits);
    let a = entry.source(a, from, false)?;
    let a = clamped(&mut entry.out, a, to, from)?;
    let b = entry.source(b, from, false)?;
    let b = clamped(&mut entry.out, b, to, from)?;
    let c = match c {
        Some(c) => entry.source(c, Type::B32, false)?,
        None => entry.out.pool(0),
    };
    let d = entry.destination(d, Type::B32, false)?;
    let bits = entry.out.pool(bits.into());
    let pack = entry.out.integer("pack", Type::U64)?;
    entry.out.kernel(pack, d, &[a, b, c, bits])
}

/// A 64-bit helper cut to 32 bits.
fn cut(out: &mut Emitter, value: Src) -> Result<Src, LoadError> {
    let slot = out.temp_word()?;
    out.kernel(extension(Type::U64), Dst::Word(slot), &[value])?;
    Ok(Src::Word(slot))
}

fn convert_integer(
    out: &mut Emitter,
    d: Dst,
    width: u8,
    to: Type,
    from: Type,
    (mut value, source_width): (Src, Option<u8>),
) -> Result<(), LoadError> {
    // Reads of 16- and 32-bit registers are zero-extended already.
    let exact = source_width == Some(from.bits);
    let narrow = to.bits < from.bits;
    let extend_source = !narrow && (!exact || from.signed());
    let extend_result = width != to.bits;
    if extend_source && extend_result {
        value = out.helper(extension(from), &[value])?;
    }
    let kernel = match (extend_result, extend_source) {
        (true, _) => extension(to),
        (false, true) => extension(from),
        (false, false) => extension(Type::U64),
    };
    out.kernel(kernel, d, &[value])
}

/// `cvta`: adds or takes off the window of a space.
pub(super) fn convert_address(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let ty = ptx.ty()?;
    let back = ptx.take("to");
    let space = ptx.take_map(Space::parse);
    ptx.end()?;
    let (Some(space), [d, a], 64) = (space, ptx.operands, ty.bits) else {
        return Err(ptx.unsupported());
    };
    let d = entry.destination(d, ty, false)?;
    let a = entry.source(a, ty, false)?;
    match window(space) {
        None => entry.out.kernel(extension(Type::U64), d, &[a]),
        Some(base) => {
            let name = if back { "sub" } else { "add" };
            let base = entry.out.pool(base);
            let kernel = entry.out.integer(name, Type::U64)?;
            entry.out.kernel(kernel, d, &[a, base])
        }
    }
}
