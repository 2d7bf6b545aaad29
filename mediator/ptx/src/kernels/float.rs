//! Kernels of floating-point instructions.

use super::super::ops::float::*;
use super::super::types::{Kind, Type};
use super::{Kernel, Lanewise, d1, d2, d3, map1, map2, map3, w1, w2, w3};

#[inline(always)]
fn single<const FTZ: bool>(bits: u32) -> f32 {
    let a = f32::from_bits(bits);
    if FTZ { flush(a) } else { a }
}

#[inline(always)]
fn result<const FTZ: bool, const SAT: bool>(a: f32) -> u32 {
    let a = if FTZ { flush(a) } else { a };
    let a = if SAT { saturate(a) } else { a };
    a.to_bits()
}

/// A kernel on singles in the four combinations of `.ftz` and `.sat`.
macro_rules! singles {
    ($make:ident, $ftz:expr, $sat:expr, $f:expr, $($x:ident),+) => {
        match ($ftz, $sat) {
            (false, false) => $make!(|$($x),+| result::<false, false>($f($(single::<false>($x)),+))),
            (false, true) => $make!(|$($x),+| result::<false, true>($f($(single::<false>($x)),+))),
            (true, false) => $make!(|$($x),+| result::<true, false>($f($(single::<true>($x)),+))),
            (true, true) => $make!(|$($x),+| result::<true, true>($f($(single::<true>($x)),+))),
        }
    };
}
macro_rules! s1 {
    ($ftz:expr, $sat:expr, $f:expr) => {
        singles!(w1, $ftz, $sat, $f, a)
    };
}
macro_rules! s2 {
    ($ftz:expr, $sat:expr, $f:expr) => {
        singles!(w2, $ftz, $sat, $f, a, b)
    };
}
macro_rules! s3 {
    ($ftz:expr, $sat:expr, $f:expr) => {
        singles!(w3, $ftz, $sat, $f, a, b, c)
    };
}

fn double(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The kernel of a float instruction. The caller has already stripped its rounding (`rn`, `approx`,
/// `full`).
pub(in super::super) fn float(name: &str, ty: Type, ftz: bool, sat: bool) -> Option<Lanewise> {
    match ty.bits {
        32 => singles(name, ftz, sat),
        64 if !ftz && !sat => doubles(name),
        _ => None,
    }
}

fn singles(name: &str, ftz: bool, sat: bool) -> Option<Lanewise> {
    let kernel = match name {
        "add" => s2!(ftz, sat, |a: f32, b: f32| a + b),
        "sub" => s2!(ftz, sat, |a: f32, b: f32| a - b),
        "mul" => s2!(ftz, sat, |a: f32, b: f32| a * b),
        "fma" => s3!(ftz, sat, fma32),
        _ if sat => return None,
        "div" => s2!(ftz, false, |a: f32, b: f32| a / b),
        "min" => s2!(ftz, false, min32),
        "max" => s2!(ftz, false, max32),
        "min.xorsign" => s2!(ftz, false, |a, b| xor_signs(a, b, min32)),
        "max.xorsign" => s2!(ftz, false, |a, b| xor_signs(a, b, max32)),
        "min.NaN.xorsign" => s2!(ftz, false, |a, b| xor_signs(a, b, min_nan32)),
        "max.NaN.xorsign" => s2!(ftz, false, |a, b| xor_signs(a, b, max_nan32)),
        "min.NaN" => s2!(ftz, false, min_nan32),
        "max.NaN" => s2!(ftz, false, max_nan32),
        // Signs are bits: NaN keeps its payload here.
        "abs" if !ftz => w1!(|a| a & 0x7fff_ffff),
        "neg" if !ftz => w1!(|a| a ^ 0x8000_0000),
        "abs" => s1!(ftz, false, f32::abs),
        "neg" => s1!(ftz, false, |a: f32| -a),
        "sqrt" => s1!(ftz, false, f32::sqrt),
        "rcp" => s1!(ftz, false, |a: f32| 1.0 / a),
        "rsqrt" => s1!(ftz, false, rsqrt32),
        "ex2" => s1!(ftz, false, f32::exp2),
        "lg2" => s1!(ftz, false, f32::log2),
        "sin" => s1!(ftz, false, f32::sin),
        "cos" => s1!(ftz, false, f32::cos),
        "tanh" => s1!(ftz, false, f32::tanh),
        // The sign of `a` on `b`.
        "copysign" if !ftz => w2!(|a, b| (a & 0x8000_0000) | (b & 0x7fff_ffff)),
        _ => return None,
    };
    Some(kernel)
}

fn doubles(name: &str) -> Option<Lanewise> {
    let kernel = match name {
        "add" => d2!(|a, b| (double(a) + double(b)).to_bits()),
        "sub" => d2!(|a, b| (double(a) - double(b)).to_bits()),
        "mul" => d2!(|a, b| (double(a) * double(b)).to_bits()),
        "div" => d2!(|a, b| (double(a) / double(b)).to_bits()),
        "fma" => d3!(|a, b, c| double(a).mul_add(double(b), double(c)).to_bits()),
        "min" => d2!(|a, b| min64(double(a), double(b)).to_bits()),
        "max" => d2!(|a, b| max64(double(a), double(b)).to_bits()),
        "abs" => d1!(|a| a & !(1 << 63)),
        "neg" => d1!(|a| a ^ (1 << 63)),
        "sqrt" => d1!(|a| double(a).sqrt().to_bits()),
        "rcp" => d1!(|a| (1.0 / double(a)).to_bits()),
        "rcp.ftz" => d1!(|a| upper_half(double(a), |a| 1.0 / a).to_bits()),
        "rsqrt.ftz" => d1!(|a| upper_half(double(a), |a| 1.0 / a.sqrt()).to_bits()),
        "rsqrt" => d1!(|a| (1.0 / double(a).sqrt()).to_bits()),
        "copysign" => d2!(|a, b| (a & (1 << 63)) | (b & !(1 << 63))),
        _ => return None,
    };
    Some(kernel)
}

/// Steps of `cvt`, by name, between the types of the step. The caller chains them: flush, round,
/// convert, saturate. Integer sources are extended to 64 bits before, results are cut by the write.
pub(in super::super) fn convert_float(step: &str, to: Type, from: Type) -> Option<Lanewise> {
    use Kind::{Brain, Float, Signed};
    let kernel = match (step, to.kind, to.bits, from.kind, from.bits) {
        ("flush", _, _, Float, 32) => w1!(|a| flush(f32::from_bits(a)).to_bits()),
        ("sat", _, _, Float, 32) => w1!(|a| saturate(f32::from_bits(a)).to_bits()),
        ("sat", _, _, Float, 64) => d1!(|a| saturate64(double(a)).to_bits()),
        ("rni", _, _, Float, 32) => w1!(|a| f32::from_bits(a).round_ties_even().to_bits()),
        ("rzi", _, _, Float, 32) => w1!(|a| f32::from_bits(a).trunc().to_bits()),
        ("rmi", _, _, Float, 32) => w1!(|a| f32::from_bits(a).floor().to_bits()),
        ("rpi", _, _, Float, 32) => w1!(|a| f32::from_bits(a).ceil().to_bits()),
        ("rni", _, _, Float, 64) => d1!(|a| double(a).round_ties_even().to_bits()),
        ("rzi", _, _, Float, 64) => d1!(|a| double(a).trunc().to_bits()),
        ("rmi", _, _, Float, 64) => d1!(|a| double(a).floor().to_bits()),
        ("rpi", _, _, Float, 64) => d1!(|a| double(a).ceil().to_bits()),
        ("cvt", Float, 64, Float, 32) => d1!(|a| f64::from(f32::from_bits(a as u32)).to_bits()),
        ("cvt", Float, 32, Float, 64) => d1!(|a| u64::from((double(a) as f32).to_bits())),
        ("cvt", Float, 16, Float, 32) => w1!(|a| to_half(f32::from_bits(a))),
        ("cvt", Float, 32, Float, 16) => w1!(|a| from_half(a).to_bits()),
        ("cvt", Float, 32, Brain, 16) => w1!(|a| from_brain(a).to_bits()),
        ("cvt", Float, 32, Float, 32) => w1!(|a| a),
        ("cvt", Float, 64, Float, 64) => d1!(|a| a),
        // Rust's `as` converts to integers as PTX does: clamp, NaN to 0 (PTX ISA, `cvt`).
        ("cvt", Signed, 8, Float, 32) => w1!(|a| (f32::from_bits(a) as i8) as u32),
        ("cvt", Signed, 16, Float, 32) => w1!(|a| (f32::from_bits(a) as i16) as u32),
        ("cvt", Signed, 32, Float, 32) => w1!(|a| (f32::from_bits(a) as i32) as u32),
        ("cvt", Signed, 64, Float, 32) => d1!(|a| (f32::from_bits(a as u32) as i64) as u64),
        ("cvt", _, 8, Float, 32) => w1!(|a| u32::from(f32::from_bits(a) as u8)),
        ("cvt", _, 16, Float, 32) => w1!(|a| u32::from(f32::from_bits(a) as u16)),
        ("cvt", _, 32, Float, 32) => w1!(|a| f32::from_bits(a) as u32),
        ("cvt", _, 64, Float, 32) => d1!(|a| f32::from_bits(a as u32) as u64),
        ("cvt", Signed, 8, Float, 64) => d1!(|a| (double(a) as i8) as u64),
        ("cvt", Signed, 16, Float, 64) => d1!(|a| (double(a) as i16) as u64),
        ("cvt", Signed, 32, Float, 64) => d1!(|a| (double(a) as i32) as u64),
        ("cvt", Signed, 64, Float, 64) => d1!(|a| (double(a) as i64) as u64),
        ("cvt", _, 8, Float, 64) => d1!(|a| u64::from(double(a) as u8)),
        ("cvt", _, 16, Float, 64) => d1!(|a| u64::from(double(a) as u16)),
        ("cvt", _, 32, Float, 64) => d1!(|a| u64::from(double(a) as u32)),
        ("cvt", _, 64, Float, 64) => d1!(|a| double(a) as u64),
        // From integers, to nearest even.
        ("cvt", Float, 32, Signed, 32) => w1!(|a| (a.cast_signed() as f32).to_bits()),
        ("cvt", Float, 32, Signed, _) => d1!(|a| u64::from((a.cast_signed() as f32).to_bits())),
        ("cvt", Float, 32, _, _) => d1!(|a| u64::from((a as f32).to_bits())),
        ("cvt", Float, 64, Signed, _) => d1!(|a| (a.cast_signed() as f64).to_bits()),
        ("cvt", Float, 64, _, _) => d1!(|a| (a as f64).to_bits()),
        _ => return None,
    };
    Some(kernel)
}
