//! Floating-point arithmetic: the kernel by type, rounding and modifiers.

use super::super::error::LoadError;
use super::super::kernels::{exactly, float, half};
use super::super::ops::exact::{Control, Mode};
use super::super::parse::Operand;
use super::super::types::{Modifiers, Type};
use super::Builder;

impl<'a> Builder<'a, '_> {
    pub(super) fn float(
        &mut self,
        head: &str,
        ty: Type,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let mode = modifiers.take_rounding();
        let approximate = modifiers.take("approx") || (head == "div" && modifiers.take("full"));
        let exact = matches!(head, "add" | "sub" | "mul" | "fma" | "mad");
        let rounded = matches!(head, "div" | "sqrt" | "rcp");
        let function = matches!(head, "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh");
        let fits = match (mode, approximate) {
            (Some(Mode::Away), _) | (Some(_), true) => false,
            (Some(_), false) => exact || rounded,
            (None, true) => function || (rounded && (ty.bits == 32 || head == "rcp")),
            // What has a default, or no rounding.
            (None, false) => !rounded && !function,
        };
        if !fits {
            return Err(modifiers.unsupported());
        }
        let ftz = modifiers.take("ftz");
        let sat = modifiers.take("sat");
        let relu = head == "fma" && modifiers.take("relu");
        let name = match head {
            "mad" => "fma",
            "min" | "max" => {
                let nan = modifiers.take("NaN");
                let signs = modifiers.take("xorsign") && modifiers.take("abs");
                match (head, nan, signs) {
                    ("min", false, false) => "min",
                    ("min", true, false) => "min.NaN",
                    ("min", false, true) => "min.xorsign",
                    ("min", true, true) => "min.NaN.xorsign",
                    (_, false, false) => "max",
                    (_, true, false) => "max.NaN",
                    (_, false, true) => "max.xorsign",
                    (_, true, true) => "max.NaN.xorsign",
                }
            }
            other => other,
        };
        modifiers.end()?;
        let mode = mode.unwrap_or(Mode::Nearest);
        let native = mode == Mode::Nearest && !relu;
        let small = ty.bits == 16 || ty.float_pair();
        let kernel = match (native, small) {
            (true, false) if ty.bits == 64 && approximate && ftz => {
                float(&format!("{name}.ftz"), ty, false, sat)
            }
            (true, false) => float(name, ty, ftz, sat),
            (true, true) if !(sat || ftz && exact) => half(name, ty),
            _ => None,
        };
        if let Some(kernel) = kernel {
            return self.uniform(kernel, ty, operands);
        }
        let (Some(kernel), Some(format)) = (exactly(name), ty.format()) else {
            return Err(modifiers.unsupported());
        };
        let control = Control {
            mode,
            ftz,
            sat,
            relu,
            packed: ty.float_pair(),
            ..Control::new(format)
        };
        self.controlled(kernel, ty, control, operands, name == "rcp")
    }

    /// A kernel with the control word as its last operand; a reciprocal is a quotient of 1.
    fn controlled(
        &mut self,
        kernel: super::Lanewise,
        ty: Type,
        control: Control,
        operands: &[Operand<'a>],
        reciprocal: bool,
    ) -> Result<(), LoadError> {
        let Some((d, sources)) = operands.split_first() else {
            return Err(self.bad("the instruction takes operands"));
        };
        let d = self.destination(d, ty, false)?;
        let mut list = Vec::with_capacity(4);
        if reciprocal {
            list.push(self.pool(if ty.bits == 64 {
                1f64.to_bits()
            } else {
                u64::from(1f32.to_bits())
            }));
        }
        for operand in sources.iter().take(4) {
            list.push(self.source(operand, ty, false)?);
        }
        list.push(self.pool(control.to_bits()));
        self.emit_kernel(kernel, d, &list)
    }
}
