//! Kernels on numbers of 16 bits and on pairs of them, by way of singles; and those of the exact
//! arithmetic.

use super::super::LANES;
use super::super::ops::exact;
use super::super::ops::float::*;
use super::super::ops::video;
use super::super::types::{Kind, Type};
use super::{Kernel, Lanewise, d2, d3, d4, map1, map2, map3, w1, w2};

/// Applies `f` to both halves of words.
fn both1(a: u32, f: impl Fn(u32) -> u32) -> u32 {
    f(a & 0xffff) | (f(a >> 16) << 16)
}

fn both2(a: u32, b: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    f(a & 0xffff, b & 0xffff) | (f(a >> 16, b >> 16) << 16)
}

macro_rules! h1 {
    ($kind:expr, $f:expr) => {
        match $kind {
            Kind::Float => w1!(|a| to_half($f(from_half(a)))),
            Kind::Brain => w1!(|a| to_brain($f(from_brain(a)))),
            Kind::HalfPair => w1!(|a| both1(a, |a| to_half($f(from_half(a))))),
            Kind::BrainPair => w1!(|a| both1(a, |a| to_brain($f(from_brain(a))))),
            _ => return None,
        }
    };
}
macro_rules! h2 {
    ($kind:expr, $f:expr) => {
        match $kind {
            Kind::Float => w2!(|a, b| to_half($f(from_half(a), from_half(b)))),
            Kind::Brain => w2!(|a, b| to_brain($f(from_brain(a), from_brain(b)))),
            Kind::HalfPair => {
                w2!(|a, b| both2(a, b, |a, b| to_half($f(from_half(a), from_half(b)))))
            }
            Kind::BrainPair => {
                w2!(|a, b| both2(a, b, |a, b| to_brain($f(from_brain(a), from_brain(b)))))
            }
            _ => return None,
        }
    };
}

/// The kernel of an instruction on `f16`, `bf16` and their pairs. A single holds a sum or a product
/// with enough digits that rounding twice is rounding once.
pub(in super::super) fn half(name: &str, ty: Type) -> Option<Lanewise> {
    let kernel = match name {
        "add" => h2!(ty.kind, |a: f32, b: f32| a + b),
        "sub" => h2!(ty.kind, |a: f32, b: f32| a - b),
        "mul" => h2!(ty.kind, |a: f32, b: f32| a * b),
        "min" => h2!(ty.kind, min32),
        "max" => h2!(ty.kind, max32),
        "min.NaN" => h2!(ty.kind, min_nan32),
        "max.NaN" => h2!(ty.kind, max_nan32),
        "min.xorsign" => h2!(ty.kind, |a, b| xor_signs(a, b, min32)),
        "max.xorsign" => h2!(ty.kind, |a, b| xor_signs(a, b, max32)),
        "min.NaN.xorsign" => h2!(ty.kind, |a, b| xor_signs(a, b, min_nan32)),
        "max.NaN.xorsign" => h2!(ty.kind, |a, b| xor_signs(a, b, max_nan32)),
        "ex2" => h1!(ty.kind, f32::exp2),
        "tanh" => h1!(ty.kind, f32::tanh),
        "abs" => w1!(|a| a & 0x7fff_7fff),
        "neg" if ty.bits == 32 => w1!(|a| a ^ 0x8000_8000),
        "neg" => w1!(|a| a ^ 0x8000),
        _ => return None,
    };
    Some(kernel)
}

/// The kernel of video instructions; its last operand is the control word.
pub(in super::super) fn video(name: &str) -> Lanewise {
    match name {
        "vmad" => d4!(video::multiply_add),
        _ => d4!(video::video),
    }
}

/// The kernel of the exact arithmetic; its last operand is the control word.
pub(in super::super) fn exactly(name: &str) -> Option<Lanewise> {
    let kernel = match name {
        "add" => d3!(exact::add),
        "sub" => d3!(exact::sub),
        "mul" => d3!(exact::mul),
        "fma" => d4!(exact::fma),
        "div" | "rcp" => d3!(exact::div),
        "sqrt" => d2!(exact::sqrt),
        "cvt" => d2!(exact::convert),
        "cvt.satfinite" => d2!(exact::convert_clamped),
        "cvt.signed" => d2!(exact::from_signed),
        "cvt.unsigned" => d2!(exact::from_unsigned),
        _ => return None,
    };
    Some(kernel)
}
