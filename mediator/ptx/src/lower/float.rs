//! Floating-point arithmetic: the kernel by type, rounding and modifiers.

use super::super::error::LoadError;
use super::super::kernels::{Lanewise, exactly, float, half};
use super::super::ops::exact::{Control, Mode};
use super::super::parse::Operand;
use super::super::types::Type;
use super::instruction::Instruction;
use super::{Builder, alu};

pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    ty: Type,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let mode = ptx.take_rounding();
    let approximate = ptx.take("approx") || (ptx.head == "div" && ptx.take("full"));
    let exact = matches!(ptx.head, "add" | "sub" | "mul" | "fma" | "mad");
    let rounded = matches!(ptx.head, "div" | "sqrt" | "rcp");
    let function = matches!(ptx.head, "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh");
    let fits = match (mode, approximate) {
        (Some(Mode::Away), _) | (Some(_), true) => false,
        (Some(_), false) => exact || rounded,
        (None, true) => function || (rounded && (ty.bits == 32 || ptx.head == "rcp")),
        // What has a default, or no rounding.
        (None, false) => !rounded && !function,
    };
    if !fits {
        return Err(ptx.unsupported());
    }
    let ftz = ptx.take("ftz");
    let sat = ptx.take("sat");
    let relu = ptx.head == "fma" && ptx.take("relu");
    let name = match ptx.head {
        "mad" => "fma",
        "min" | "max" => {
            let nan = ptx.take("NaN");
            let signs = ptx.take("xorsign") && ptx.take("abs");
            match (ptx.head, nan, signs) {
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
    ptx.end()?;
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
        return alu::uniform(entry, kernel, ty, ptx.operands);
    }
    let (Some(kernel), Some(format)) = (exactly(name), ty.format()) else {
        return Err(ptx.unsupported());
    };
    let control = Control {
        mode,
        ftz,
        sat,
        relu,
        packed: ty.float_pair(),
        ..Control::new(format)
    };
    controlled(entry, kernel, ty, control, ptx.operands, name == "rcp")
}

/// A kernel with the control word as its last operand; a reciprocal is a quotient of 1.
fn controlled(
    entry: &mut Builder<'_, '_>,
    kernel: Lanewise,
    ty: Type,
    control: Control,
    operands: &[Operand<'_>],
    reciprocal: bool,
) -> Result<(), LoadError> {
    let Some((d, sources)) = operands.split_first() else {
        return Err(entry.bad("the instruction takes operands"));
    };
    let d = entry.destination(d, ty, false)?;
    let mut list = Vec::with_capacity(4);
    if reciprocal {
        list.push(entry.out.pool(if ty.bits == 64 {
            1f64.to_bits()
        } else {
            u64::from(1f32.to_bits())
        }));
    }
    for operand in sources.iter().take(4) {
        list.push(entry.source(operand, ty, false)?);
    }
    list.push(entry.out.pool(control.to_bits()));
    entry.out.kernel(kernel, d, &list)
}
