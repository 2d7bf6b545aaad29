//! Conversions, of values and of addresses.

use super::super::code::{Dst, Src};
use super::super::error::LoadError;
use super::super::kernels::{Lanewise, convert_float, extension};
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Space, Type};
use super::Builder;
use super::operand::window;

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
        let from = modifiers.ty()?;
        let to = modifiers.ty()?;
        let ftz = modifiers.take("ftz");
        let sat = modifiers.take("sat");
        let rounding = modifiers.take_map(|m| {
            ["rni", "rzi", "rmi", "rpi", "rn"]
                .into_iter()
                .find(|known| *known == m)
        });
        modifiers.end()?;
        let [d, a] = operands else {
            return Err(self.bad("`cvt` takes two operands"));
        };
        if from.kind == Kind::Pred || to.kind == Kind::Pred {
            return Err(modifiers.unsupported());
        }
        let width = self.width_of(d).unwrap_or(to.bits);
        let dst = self.destination(d, to, true)?;
        let mut value = self.source(a, from, true)?;
        if !from.float() && !to.float() {
            if sat || rounding.is_some() {
                return Err(modifiers.unsupported());
            }
            return self.convert_integer(dst, width, to, from, (value, a));
        }
        let single = |ty: Type| ty.float() && ty.bits == 32;
        if ftz && single(from) {
            value = self.step("flush", from, from, value)?;
        }
        match (from.float(), to.float(), rounding) {
            (false, true, Some("rn")) => {
                // Singles of 32-bit signed numbers have a kernel of their own.
                let direct = from.signed() && from.bits == 32 && to.bits == 32;
                if !direct {
                    let d = self.temp_double()?;
                    self.emit_kernel(extension(from), Dst::Double(d), &[value])?;
                    value = Src::Double(d);
                }
                value = self.step("cvt", to, from, value)?;
            }
            (true, false, Some(mode @ ("rni" | "rzi" | "rmi" | "rpi"))) => {
                if mode != "rzi" {
                    value = self.step(mode, from, from, value)?;
                }
                value = self.step("cvt", to, from, value)?;
            }
            (true, true, mode) => {
                if let Some(mode @ ("rni" | "rzi" | "rmi" | "rpi")) = mode {
                    value = self.step(mode, from, from, value)?;
                } else if (to.bits < from.bits) != (mode == Some("rn")) {
                    return Err(modifiers.unsupported());
                }
                value = self.step("cvt", to, from, value)?;
            }
            _ => return Err(modifiers.unsupported()),
        }
        if ftz && single(to) {
            value = self.cut(value)?;
            value = self.step("flush", to, to, value)?;
        }
        if sat && to.float() {
            value = if to.bits == 32 {
                self.cut(value)?
            } else {
                value
            };
            value = self.step("sat", to, to, value)?;
        }
        // Into a wider register an integer is extended by its own kind (9.4.1).
        let last = match to.float() || width == to.bits {
            true => extension(Type::U64),
            false => extension(to),
        };
        self.emit_kernel(last, dst, &[value])
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
        (mut value, operand): (Src, &Operand<'a>),
    ) -> Result<(), LoadError> {
        // Reads of 16- and 32-bit registers are zero-extended already.
        let exact = self.width_of(operand) == Some(from.bits);
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
