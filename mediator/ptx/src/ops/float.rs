//! Floating point (PTX ISA 9.7.3). Singles and doubles are IEEE 754 to nearest even, as in Rust.

/// The NaN that the hardware makes of an invalid single operation (PTX ISA 9.7.3).
const NAN32: u32 = 0x7fff_ffff;
const NAN64: u64 = 0xfff8_0000_0000_0000;

/// `.ftz`: subnormal inputs and results become zeros of the same sign.
pub(crate) fn flush(a: f32) -> f32 {
    if a.abs() < f32::MIN_POSITIVE {
        f32::from_bits(a.to_bits() & (1 << 31))
    } else {
        a
    }
}

/// `.sat`: clamped to [0, 1]; NaN becomes +0.
pub(crate) fn saturate(a: f32) -> f32 {
    // The comparison order sends NaN and -0 to +0.
    if a > 0.0 {
        if a < 1.0 { a } else { 1.0 }
    } else {
        0.0
    }
}

/// As [`saturate`].
pub(crate) fn saturate64(a: f64) -> f64 {
    if a > 0.0 {
        if a < 1.0 { a } else { 1.0 }
    } else {
        0.0
    }
}

/// `a * b + c` with one rounding.
///
/// Without an FMA unit in the build's target, `f32::mul_add` is a call per lane. Here the product
/// is exact in double (48 bits). The sum is rounded to odd, which keeps enough bits to round
/// correctly to 24 bits afterwards (Boldo and Melquiond, "Emulation of FMA and correctly rounded
/// sums", 2008).
pub(crate) fn fma32(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_feature = "fma") {
        return a.mul_add(b, c);
    }
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    // Two-sum: the exact error of `sum`; NaN where `sum` is not finite.
    let rest = sum - product;
    let error = (product - (sum - rest)) + (c - rest);
    let bits = sum.to_bits();
    let inexact = (error != 0.0) & error.is_finite() & (bits & 1 == 0);
    // An even `sum` moves one unit towards the error: up in magnitude if both have the same sign.
    let same_sign = (bits ^ error.to_bits()) >> 63 == 0;
    let step = if same_sign { 1 } else { u64::MAX };
    let odd = if inexact {
        bits.wrapping_add(step)
    } else {
        bits
    };
    f64::from_bits(odd) as f32
}

/// `min`: a number wins over NaN; -0 is below +0.
pub(crate) fn min32(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::from_bits(NAN32),
        (true, false) => b,
        (false, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        _ if a < b => a,
        _ => b,
    }
}

/// `max`.
pub(crate) fn max32(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::from_bits(NAN32),
        (true, false) => b,
        (false, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        _ if a > b => a,
        _ => b,
    }
}

/// `min.NaN`: NaN wins.
pub(crate) fn min_nan32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        return f32::from_bits(NAN32);
    }
    min32(a, b)
}

/// `max.NaN`: NaN wins.
pub(crate) fn max_nan32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        return f32::from_bits(NAN32);
    }
    max32(a, b)
}

/// As [`min32`].
pub(crate) fn min64(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f64::from_bits(NAN64),
        (true, false) => b,
        (false, true) => a,
        _ if a == b => f64::from_bits(a.to_bits() | b.to_bits()),
        _ if a < b => a,
        _ => b,
    }
}

/// As [`max32`].
pub(crate) fn max64(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f64::from_bits(NAN64),
        (true, false) => b,
        (false, true) => a,
        _ if a == b => f64::from_bits(a.to_bits() & b.to_bits()),
        _ if a > b => a,
        _ => b,
    }
}

/// `rsqrt.approx`: computed in double, so nearer than the 2 ulp that PTX promises.
pub(crate) fn rsqrt32(a: f32) -> f32 {
    (1.0 / f64::from(a).sqrt()) as f32
}

/// An IEEE half as a single; exact.
pub(crate) fn from_half(half: u32) -> f32 {
    let sign = (half & 0x8000) << 16;
    let (exponent, fraction) = ((half >> 10) & 0x1f, half & 0x3ff);
    let magnitude = match exponent {
        0 => (fraction as f32 * 2f32.powi(-24)).to_bits(),
        0x1f => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// A single as an IEEE half, to nearest even.
pub(crate) fn to_half(a: f32) -> u32 {
    let bits = a.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 0x7fff; // the hardware's NaN
    }
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00; // 65520 and above round to infinity
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14 a half has units of 2^-24; adding 0.5 (unit 2^-24 in a single) rounds to
        // them.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0.5f32.to_bits());
    }
    let odd = (magnitude >> 13) & 1;
    sign | ((magnitude - 0x3800_0000 + 0xfff + odd) >> 13)
}

/// A `bf16` as a single.
pub(crate) fn from_brain(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// A single as a `bf16`, to nearest even.
pub(crate) fn to_brain(a: f32) -> u32 {
    if a.is_nan() {
        return 0x7fff;
    }
    let bits = a.to_bits();
    bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16
}

/// `.xorsign.abs`: `f` of the magnitudes, with the product's sign.
pub(crate) fn xor_signs(a: f32, b: f32, f: fn(f32, f32) -> f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & (1 << 31);
    f32::from_bits(f(a.abs(), b.abs()).to_bits() | sign)
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64` compute with the upper halves of doubles: the
/// lower half of the result is zero, and subnormal numbers are zeros.
pub(crate) fn upper_half(a: f64, f: fn(f64) -> f64) -> f64 {
    let flush = |a: f64| if a.is_subnormal() { a * 0.0 } else { a };
    let result = flush(f(flush(a)));
    if !result.is_finite() {
        return result;
    }
    f64::from_bits(result.to_bits().wrapping_add(1 << 31) & !0xffff_ffff)
}
