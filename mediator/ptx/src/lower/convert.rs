//! Conversions, of values and of addresses.

use super::super::code::{Dst, Src};
use super::super::error::LoadError;
use super::super::kernels::{Lanewise, convert_float, exactly, extension};
use super::super::ops::exact::{Control, Mode};
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Space, Type};
use super::Builder;
use super::operand::window;

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

impl<'a> Builder<'a, '_> {
    /// One step of a conversion into a helper register.
    pub(super) fn step(
        &mut self,
        step: &str,
        to: Type,
        from: Type,
        a: Src,
    ) -> Result<Src, LoadError> {
        let kernel = convert_float(step, to, from).ok_or_else(|| self.no_type(step, from))?;
        let (d, s) = self.temp(kernel)?;
        self.emit_kernel(kernel, d, &[a])?;
        Ok(s)
    }

    /// A helper register for what `kernel` makes.
    pub(super) fn temp(&mut self, kernel: Lanewise) -> Result<(Dst, Src), LoadError> {
        Ok(match kernel {
            Lanewise::Words(_) => {
                let slot = self.temp_word()?;
                (Dst::Word(slot), Src::Word(slot))
            }
            Lanewise::Doubles(_) => {
                let slot = self.temp_double()?;
                (Dst::Double(slot), Src::Double(slot))
            }
        })
    }

    /// `cvt`, as a chain of simple steps.
    pub(super) fn convert(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        if modifiers.take("pack") {
            return self.convert_pack(modifiers, operands);
        }
        let from = modifiers.ty()?;
        let to = modifiers.ty()?;
        let how = How {
            ftz: modifiers.take("ftz"),
            sat: modifiers.take("sat"),
            finite: modifiers.take("satfinite"),
            relu: modifiers.take("relu"),
            whole: modifiers.take_map(|m| {
                ["rni", "rzi", "rmi", "rpi"]
                    .into_iter()
                    .find(|known| *known == m)
            }),
            mode: modifiers.take_rounding(),
        };
        modifiers.end()?;
        if from.kind == Kind::Pred || to.kind == Kind::Pred {
            return Err(modifiers.unsupported());
        }
        if paired(to) || paired(from) {
            return self.convert_pair((to, from), how, &modifiers, operands);
        }
        let [d, a] = operands else {
            return Err(self.bad("`cvt` takes two operands"));
        };
        let width = self.width_of(d).unwrap_or(to.bits);
        let dst = self.destination(d, to, true)?;
        let value = self.source(a, from, true)?;
        if !from.float() && !to.float() {
            if how.whole.is_some() || how.mode.is_some() {
                return Err(modifiers.unsupported());
            }
            if how.sat {
                let clamped = self.clamped(value, to, from)?;
                let exact = Type::new(to.kind, 64);
                return self.convert_integer(dst, width, to, exact, (clamped, None));
            }
            return self.convert_integer(dst, width, to, from, (value, self.width_of(a)));
        }
        let value = self.converted(value, (to, from), how, &modifiers)?;
        // Into a wider register an integer is extended by its own kind (9.4.1).
        let last = match to.float() || width == to.bits {
            true => extension(Type::U64),
            false => extension(to),
        };
        self.emit_kernel(last, dst, &[value])
    }

    /// A number of floating point on at least one side.
    fn converted(
        &mut self,
        mut value: Src,
        (to, from): (Type, Type),
        how: How,
        modifiers: &Modifiers<'_>,
    ) -> Result<Src, LoadError> {
        let single = |ty: Type| ty == Type::F32;
        let nearest = how.mode == Some(Mode::Nearest);
        match (from.float(), to.float()) {
            (false, true) => {
                let mode = how.mode.ok_or_else(|| modifiers.unsupported())?;
                // Singles of 32-bit signed numbers have a kernel of their own.
                let direct = from.signed() && from.bits == 32 && single(to) && nearest;
                if !direct {
                    let d = self.temp_double()?;
                    self.emit_kernel(extension(from), Dst::Double(d), &[value])?;
                    value = Src::Double(d);
                }
                if nearest && to.kind == Kind::Float && to.bits >= 32 {
                    value = self.step("cvt", to, from, value)?;
                } else {
                    let control = Control {
                        mode,
                        ..self.exact_control(to, to, how)?
                    };
                    let name = if from.signed() {
                        "cvt.signed"
                    } else {
                        "cvt.unsigned"
                    };
                    return self.exact_step(name, to, value, control);
                }
            }
            (true, false) => {
                let mode = how.whole.ok_or_else(|| modifiers.unsupported())?;
                let by = if from.bits == 16 { Type::F32 } else { from };
                value = self.widened(value, from)?;
                if how.ftz && single(by) {
                    value = self.step("flush", by, by, value)?;
                }
                if mode != "rzi" {
                    value = self.step(mode, by, by, value)?;
                }
                return self.step("cvt", to, by, value);
            }
            _ if let Some(mode) = how.whole => {
                let by = if from.bits == 16 { Type::F32 } else { from };
                value = self.widened(value, from)?;
                if how.ftz && single(by) {
                    value = self.step("flush", by, by, value)?;
                }
                value = self.step(mode, by, by, value)?;
                if to != by {
                    let control = Control {
                        mode: Mode::Nearest,
                        ..self.exact_control(to, by, how)?
                    };
                    return self.exact_step("cvt", to, value, control);
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
                    return Err(modifiers.unsupported());
                }
                if !known || (how.ftz && to.bits == 16) || to.kind == Kind::Tensor {
                    let control = self.exact_control(to, from, how)?;
                    let name = if how.finite { "cvt.satfinite" } else { "cvt" };
                    return self.exact_step(name, to, value, control);
                }
                if to.bits < from.bits && how.mode.is_none() {
                    return Err(modifiers.unsupported());
                }
                if how.ftz && single(from) {
                    value = self.step("flush", from, from, value)?;
                }
                value = self.step("cvt", to, from, value)?;
            }
        }
        if how.ftz && single(to) {
            value = self.cut(value)?;
            value = self.step("flush", to, to, value)?;
        }
        if how.sat {
            if to.bits == 16 {
                let control = self.exact_control(to, to, how)?;
                return self.exact_step("cvt", to, value, control);
            }
            if to.bits == 32 {
                value = self.cut(value)?;
            }
            value = self.step("sat", to, to, value)?;
        }
        Ok(value)
    }

    fn exact_control(&self, to: Type, from: Type, how: How) -> Result<Control, LoadError> {
        let formats = to.format().zip(from.format());
        let (format, source) = formats.ok_or_else(|| self.no_type("cvt", from))?;
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
        &mut self,
        name: &str,
        to: Type,
        value: Src,
        control: Control,
    ) -> Result<Src, LoadError> {
        let kernel = exactly(name).ok_or_else(|| self.no_type(name, to))?;
        let slot = self.temp_double()?;
        let control = self.pool(control.to_bits());
        self.emit_kernel(kernel, Dst::Double(slot), &[value, control])?;
        Ok(Src::Double(slot))
    }

    /// Two numbers into one register, or out of one (`cvt.rn.f16x2.f32 d, a, b`: `a` is the upper).
    fn convert_pair(
        &mut self,
        (to, from): (Type, Type),
        how: How,
        modifiers: &Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        if how.whole.is_some() || !paired(to) || how.mode.is_none() {
            return Err(modifiers.unsupported());
        }
        let (dst, high, low) = match operands {
            [d, a, b] if !paired(from) => {
                let high = self.source(a, from, false)?;
                (d, high, self.source(b, from, false)?)
            }
            [d, a] if paired(from) => {
                let both = self.source(a, from, false)?;
                let (low, high) = match from.bits {
                    32 => ("low16", "high16"),
                    _ => ("low8", "high8"),
                };
                let mut part = |name| {
                    let kernel = self.integer_kernel(name, Type::new(Kind::Bits, from.bits))?;
                    let slot = self.temp_word()?;
                    self.emit_kernel(kernel, Dst::Word(slot), &[both])?;
                    Ok(Src::Word(slot))
                };
                (d, part(high)?, part(low)?)
            }
            _ => return Err(self.bad("`cvt` takes another number of operands")),
        };
        let control = self.exact_control(to, from, how)?;
        let name = if how.finite { "cvt.satfinite" } else { "cvt" };
        let high = self.exact_step(name, to, high, control)?;
        let low = self.exact_step(name, to, low, control)?;
        let dst = self.destination(dst, to, false)?;
        let join = if to.bits == 32 { "join16" } else { "join8" };
        let kernel = self.integer_kernel(join, Type::new(Kind::Bits, to.bits))?;
        self.emit_kernel(kernel, dst, &[low, high])
    }

    /// An integer extended to 64 bits and clamped to another type's range.
    fn clamped(&mut self, value: Src, to: Type, from: Type) -> Result<Src, LoadError> {
        let slot = self.temp_double()?;
        self.emit_kernel(extension(from), Dst::Double(slot), &[value])?;
        // Bits of the type, its sign, and the sign of the source.
        let range =
            u64::from(to.bits) | u64::from(to.signed()) << 8 | u64::from(from.signed()) << 9;
        let range = self.pool(range);
        let clamp = self.integer_kernel("clamp", Type::U64)?;
        self.emit_kernel(clamp, Dst::Double(slot), &[Src::Double(slot), range])?;
        Ok(Src::Double(slot))
    }

    /// `cvt.pack.sat.type.s32{.b32} d, a, b{, c}`: `b` below `a`, below the low part of `c`.
    fn convert_pack(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let known = modifiers.take("sat");
        let upper = modifiers.take("b32");
        let from = modifiers.ty()?;
        let to = modifiers.take_map(|m| {
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
        modifiers.end()?;
        let (
            Some((bits, signed)),
            true,
            Type {
                kind: Kind::Signed,
                bits: 32,
            },
        ) = (to, known, from)
        else {
            return Err(modifiers.unsupported());
        };
        let (d, a, b, c) = match operands {
            [d, a, b] if !upper && bits == 16 => (d, a, b, None),
            [d, a, b, c] if upper && bits < 16 => (d, a, b, Some(c)),
            _ => return Err(modifiers.unsupported()),
        };
        let to = Type::new(if signed { Kind::Signed } else { Kind::Unsigned }, bits);
        let a = self.source(a, from, false)?;
        let a = self.clamped(a, to, from)?;
        let b = self.source(b, from, false)?;
        let b = self.clamped(b, to, from)?;
        let c = match c {
            Some(c) => self.source(c, Type::B32, false)?,
            None => self.pool(0),
        };
        let d = self.destination(d, Type::B32, false)?;
        let bits = self.pool(bits.into());
        let pack = self.integer_kernel("pack", Type::U64)?;
        self.emit_kernel(pack, d, &[a, b, c, bits])
    }

    /// A 64-bit helper cut to 32 bits.
    fn cut(&mut self, value: Src) -> Result<Src, LoadError> {
        let slot = self.temp_word()?;
        self.emit_kernel(extension(Type::U64), Dst::Word(slot), &[value])?;
        Ok(Src::Word(slot))
    }

    fn convert_integer(
        &mut self,
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
            let slot = self.temp_double()?;
            self.emit_kernel(extension(from), Dst::Double(slot), &[value])?;
            value = Src::Double(slot);
        }
        let kernel = match (extend_result, extend_source) {
            (true, _) => extension(to),
            (false, true) => extension(from),
            (false, false) => extension(Type::U64),
        };
        self.emit_kernel(kernel, d, &[value])
    }

    /// `cvta`: adds or takes off the window of a space.
    pub(super) fn convert_address(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let ty = modifiers.ty()?;
        let back = modifiers.take("to");
        let space = modifiers.take_map(Space::parse);
        modifiers.end()?;
        let (Some(space), [d, a], 64) = (space, operands, ty.bits) else {
            return Err(modifiers.unsupported());
        };
        let d = self.destination(d, ty, false)?;
        let a = self.source(a, ty, false)?;
        match window(space) {
            None => self.emit_kernel(extension(Type::U64), d, &[a]),
            Some(base) => {
                let name = if back { "sub" } else { "add" };
                let base = self.pool(base);
                let kernel = self.integer_kernel(name, Type::U64)?;
                self.emit_kernel(kernel, d, &[a, base])
            }
        }
    }
}
