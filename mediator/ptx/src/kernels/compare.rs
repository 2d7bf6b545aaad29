//! Comparisons: two registers in, one bit per lane out.

use super::super::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use super::super::ops::int::s16;
use super::super::types::{Space, Type};
use super::super::{LANES, Lanes};
use std::fmt;

/// A comparison of 32 pairs; bit `i` of the result is lane `i`.
#[derive(Clone, Copy)]
pub(in super::super) struct Compare<T: 'static>(
    pub(in super::super) fn(&Lanes<T>, &Lanes<T>) -> u32,
);

impl<T> fmt::Debug for Compare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compare")
    }
}

/// A comparison on 32-bit or on 64-bit lanes.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Comparison {
    Words(Compare<u32>),
    Doubles(Compare<u64>),
}

#[inline(always)]
fn pairs<T: Copy>(a: &Lanes<T>, b: &Lanes<T>, f: impl Fn(T, T) -> bool) -> u32 {
    // Two steps, so that the comparisons vectorise.
    let mut truth = [0u8; LANES];
    for i in 0..LANES {
        truth[i] = u8::from(f(a[i], b[i]));
    }
    let mut mask = 0;
    for (byte, eight) in truth.chunks_exact(8).enumerate() {
        let mut spread = [0; 8];
        spread.copy_from_slice(eight);
        // Gathers bit 0 of eight bytes into one byte.
        let bits = u64::from_le_bytes(spread).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= (bits as u32) << (8 * byte);
    }
    mask
}

macro_rules! words {
    ($f:expr) => {
        Comparison::Words(Compare(|a, b| pairs(a, b, $f)))
    };
}
macro_rules! doubles {
    ($f:expr) => {
        Comparison::Doubles(Compare(|a, b| pairs(a, b, $f)))
    };
}

/// Integers and bits (PTX ISA, the operators of `setp`).
pub(in super::super) fn compare_integer(name: &str, ty: Type) -> Option<Comparison> {
    // `lo`, `ls`, `hi`, `hs` are the unsigned orders under their other names.
    let (name, signed) = match name {
        "lo" => ("lt", false),
        "ls" => ("le", false),
        "hi" => ("gt", false),
        "hs" => ("ge", false),
        other => (other, ty.signed()),
    };
    let comparison = match (name, signed, ty.bits) {
        ("eq", _, 16 | 32) => words!(|a, b| a == b),
        ("ne", _, 16 | 32) => words!(|a, b| a != b),
        ("eq", _, 64) => doubles!(|a, b| a == b),
        ("ne", _, 64) => doubles!(|a, b| a != b),
        ("lt", false, 16 | 32) => words!(|a, b| a < b),
        ("le", false, 16 | 32) => words!(|a, b| a <= b),
        ("gt", false, 16 | 32) => words!(|a, b| a > b),
        ("ge", false, 16 | 32) => words!(|a, b| a >= b),
        ("lt", true, 16) => words!(|a, b| s16(a) < s16(b)),
        ("le", true, 16) => words!(|a, b| s16(a) <= s16(b)),
        ("gt", true, 16) => words!(|a, b| s16(a) > s16(b)),
        ("ge", true, 16) => words!(|a, b| s16(a) >= s16(b)),
        ("lt", true, 32) => words!(|a, b| a.cast_signed() < b.cast_signed()),
        ("le", true, 32) => words!(|a, b| a.cast_signed() <= b.cast_signed()),
        ("gt", true, 32) => words!(|a, b| a.cast_signed() > b.cast_signed()),
        ("ge", true, 32) => words!(|a, b| a.cast_signed() >= b.cast_signed()),
        ("lt", false, 64) => doubles!(|a, b| a < b),
        ("le", false, 64) => doubles!(|a, b| a <= b),
        ("gt", false, 64) => doubles!(|a, b| a > b),
        ("ge", false, 64) => doubles!(|a, b| a >= b),
        ("lt", true, 64) => doubles!(|a, b| a.cast_signed() < b.cast_signed()),
        ("le", true, 64) => doubles!(|a, b| a.cast_signed() <= b.cast_signed()),
        ("gt", true, 64) => doubles!(|a, b| a.cast_signed() > b.cast_signed()),
        ("ge", true, 64) => doubles!(|a, b| a.cast_signed() >= b.cast_signed()),
        _ => return None,
    };
    Some(comparison)
}

/// One float comparison for singles and doubles.
macro_rules! floats {
    ($bits:expr, $f:expr) => {
        match $bits {
            32 => words!(|a, b| {
                let f: fn(f64, f64) -> bool = $f;
                f(f64::from(f32::from_bits(a)), f64::from(f32::from_bits(b)))
            }),
            64 => doubles!(|a, b| {
                let f: fn(f64, f64) -> bool = $f;
                f(f64::from_bits(a), f64::from_bits(b))
            }),
            _ => return None,
        }
    };
}

fn unordered(a: f64, b: f64) -> bool {
    a.is_nan() || b.is_nan()
}

/// Floats: ordered comparisons are false on NaN, those ending in `u` true. Singles are compared as
/// doubles, which is exact.
pub(in super::super) fn compare_float(name: &str, ty: Type) -> Option<Comparison> {
    let bits = ty.bits;
    let comparison = match name {
        "eq" => floats!(bits, |a, b| a == b),
        "ne" => floats!(bits, |a, b| a != b && !unordered(a, b)),
        "lt" => floats!(bits, |a, b| a < b),
        "le" => floats!(bits, |a, b| a <= b),
        "gt" => floats!(bits, |a, b| a > b),
        "ge" => floats!(bits, |a, b| a >= b),
        "equ" => floats!(bits, |a, b| a == b || unordered(a, b)),
        "neu" => floats!(bits, |a, b| a != b),
        "ltu" => floats!(bits, |a, b| a < b || unordered(a, b)),
        "leu" => floats!(bits, |a, b| a <= b || unordered(a, b)),
        "gtu" => floats!(bits, |a, b| a > b || unordered(a, b)),
        "geu" => floats!(bits, |a, b| a >= b || unordered(a, b)),
        "num" => floats!(bits, |a, b| !unordered(a, b)),
        "nan" => floats!(bits, unordered),
        _ => return None,
    };
    Some(comparison)
}

/// `testp` of the first operand; the second is ignored.
pub(in super::super) fn test_property(name: &str, ty: Type) -> Option<Comparison> {
    macro_rules! property {
        ($f32:expr, $f64:expr) => {
            match ty.bits {
                32 => words!(|a, _| $f32(f32::from_bits(a))),
                64 => doubles!(|a, _| $f64(f64::from_bits(a))),
                _ => return None,
            }
        };
    }
    let comparison = match name {
        "finite" => property!(f32::is_finite, f64::is_finite),
        "infinite" => property!(f32::is_infinite, f64::is_infinite),
        "number" => property!(|a: f32| !a.is_nan(), |a: f64| !a.is_nan()),
        "notanumber" => property!(f32::is_nan, f64::is_nan),
        "normal" => property!(f32::is_normal, f64::is_normal),
        "subnormal" => property!(f32::is_subnormal, f64::is_subnormal),
        _ => return None,
    };
    Some(comparison)
}

fn in_window(address: u64, window: u64) -> bool {
    address.wrapping_sub(window) < WINDOW_BYTES
}

/// `isspacep` of the first operand; the second is ignored.
pub(in super::super) fn is_space(space: Space) -> Option<Comparison> {
    Some(match space {
        Space::Shared => doubles!(|a, _| in_window(a, SHARED_WINDOW)),
        Space::Local => doubles!(|a, _| in_window(a, LOCAL_WINDOW)),
        Space::Param => doubles!(|a, _| in_window(a, PARAM_WINDOW)),
        Space::Global => doubles!(|a, _| a < SHARED_WINDOW),
        // Constant variables are global memory here.
        Space::Const => doubles!(|_, _| false),
        Space::Generic => return None,
    })
}
