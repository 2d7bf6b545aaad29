//! Video instructions: operands with selectors, and their control words.

use super::super::error::LoadError;
use super::super::kernels::video as kernel;
use super::super::ops::video::{Calculation, Part, Second, Video, multiply_control};
use super::super::parse::Operand;
use super::super::types::Type;
use super::Builder;
use super::instruction::Instruction;

/// A comparison by its name in `vset`.
fn comparison(name: &str) -> Option<Calculation> {
    Some(match name {
        "eq" => Calculation::Equal,
        "ne" => Calculation::NotEqual,
        "lt" => Calculation::Less,
        "le" => Calculation::LessOrEqual,
        "gt" => Calculation::Greater,
        "ge" => Calculation::GreaterOrEqual,
        _ => return None,
    })
}

fn part(suffix: &str) -> Option<Part> {
    Some(match suffix {
        "b0" => Part::Byte(0),
        "b1" => Part::Byte(1),
        "b2" => Part::Byte(2),
        "b3" => Part::Byte(3),
        "h0" => Part::Half(0),
        "h1" => Part::Half(1),
        _ => return None,
    })
}

/// A register's name, and the selector behind its last dot.
fn selected<'o>(operand: &Operand<'o>) -> (Operand<'o>, &'o str) {
    match operand {
        Operand::Name(name) => match name.split_once('.') {
            Some((register, suffix)) => (Operand::Name(register), suffix),
            None => (operand.clone(), ""),
        },
        _ => (operand.clone(), ""),
    }
}

pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    if ptx.head == "vmad" {
        return video_multiply(entry, ptx);
    }
    let (name, count) = match ptx.head.as_bytes().last() {
        Some(b'2') => (&ptx.head[..ptx.head.len() - 1], 2),
        Some(b'4') => (&ptx.head[..ptx.head.len() - 1], 4),
        _ => (ptx.head, 1),
    };
    let sat = ptx.take("sat");
    let wrap = ptx.take("wrap");
    let clamp = ptx.take("clamp");
    let (calculation, compares) = match name {
        "vadd" => (Some(Calculation::Add), false),
        "vsub" => (Some(Calculation::Subtract), false),
        "vabsdiff" => (Some(Calculation::AbsoluteDifference), false),
        "vmin" => (Some(Calculation::Minimum), false),
        "vmax" => (Some(Calculation::Maximum), false),
        "vavrg" if count > 1 => (Some(Calculation::Average), false),
        "vshl" if count == 1 => (Some(Calculation::ShiftLeft), false),
        "vshr" if count == 1 => (Some(Calculation::ShiftRight), false),
        "vset" => (ptx.take_map(comparison), true),
        _ => (None, false),
    };
    let calculation = calculation.ok_or_else(|| ptx.unsupported())?;
    if (wrap || clamp) != (name == "vshl" || name == "vshr") || (sat && compares) {
        return Err(ptx.unsupported());
    }
    let second = ptx.take_map(|m| {
        Some(match m {
            "add" => Second::Add,
            "min" if count == 1 => Second::Minimum,
            "max" if count == 1 => Second::Maximum,
            _ => return None,
        })
    });
    let b = ptx.ty()?;
    let a = ptx.ty()?;
    let d = if compares { Type::U32 } else { ptx.ty()? };
    ptx.end()?;
    if [a, b, d].iter().any(|ty| !ty.integer() || ty.bits != 32) {
        return Err(ptx.unsupported());
    }
    let mut video = Video {
        calculation,
        signed: [d.signed(), a.signed(), b.signed()],
        parts: [Part::Word; 2],
        saturate: sat,
        second: second.unwrap_or(Second::None),
        count,
        wrap,
        mask: 15,
        selectors: if count == 4 {
            [0x3210, 0x7654]
        } else {
            [0x10, 0x32]
        },
    };
    let (list, c) = match ptx.operands {
        [d, a, b] if count == 1 => ([d, a, b], None),
        [d, a, b, c] => ([d, a, b], Some(c)),
        _ => return Err(entry.bad("the instruction takes another number of operands")),
    };
    let [(d, mask), (a, x), (b, y)] = list.map(selected);
    if count == 1 {
        for (suffix, slot) in [x, y].into_iter().zip(&mut video.parts) {
            if !suffix.is_empty() {
                *slot = part(suffix).ok_or_else(|| ptx.unsupported())?;
            }
        }
        if !mask.is_empty() {
            let into = part(mask).ok_or_else(|| ptx.unsupported())?;
            video.second = Second::Insert(into);
        }
    } else {
        for (suffix, slot) in [x, y].into_iter().zip(&mut video.selectors) {
            if !suffix.is_empty() {
                *slot = u16::from_str_radix(&suffix[1..], 16).map_err(|_| ptx.unsupported())?;
            }
        }
        if !mask.is_empty() {
            let named = |at: u8| mask.as_bytes()[1..].contains(&(b'0' + at));
            video.mask = (0..4).fold(0, |bits, at| bits | u8::from(named(at)) << at);
        }
    }
    let d = entry.destination(&d, Type::B32, false)?;
    let a = entry.source(&a, Type::B32, false)?;
    let b = entry.source(&b, Type::B32, false)?;
    let c = match c {
        Some(c) => entry.source(c, Type::B32, false)?,
        None => entry.out.pool(0),
    };
    let control = entry.out.pool(video.to_bits());
    entry.out.kernel(kernel("video"), d, &[a, b, c, control])
}

fn video_multiply(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let sat = ptx.take("sat");
    let plus_one = ptx.take("po");
    let shift = ptx.take_map(|m| match m {
        "shr7" => Some(7),
        "shr15" => Some(15),
        _ => None,
    });
    let types = [ptx.ty()?, ptx.ty()?, ptx.ty()?];
    ptx.end()?;
    let [d, list @ ..] = ptx.operands else {
        return Err(entry.bad("`vmad` takes four operands"));
    };
    if list.len() != 3 || types.iter().any(|ty| !ty.integer() || ty.bits != 32) {
        return Err(ptx.unsupported());
    }
    let mut negative = [false; 3];
    let mut parts = [Part::Word; 3];
    let mut sources = Vec::with_capacity(4);
    for (at, operand) in list.iter().enumerate() {
        let plain = match operand {
            Operand::Negative(name) => {
                negative[at] = true;
                Operand::Name(name)
            }
            other => other.clone(),
        };
        let (operand, suffix) = selected(&plain);
        if !suffix.is_empty() {
            parts[at] = part(suffix).ok_or_else(|| ptx.unsupported())?;
        }
        sources.push(entry.source(&operand, Type::B32, false)?);
    }
    let product = negative[0] != negative[1];
    let flags = [
        types[1].signed(),
        types[0].signed(),
        sat,
        product,
        negative[2],
        plus_one,
    ];
    let control = multiply_control(flags, shift.unwrap_or(0), [parts[0], parts[1]]);
    sources.push(entry.out.pool(control));
    let d = entry.destination(d, Type::B32, false)?;
    entry.out.kernel(kernel("vmad"), d, &sources)
}
