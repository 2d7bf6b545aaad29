//! Integers and bits (PTX ISA 9.7.1).

/// The low 16 bits as a signed number.
pub(crate) fn s16(a: u32) -> i32 {
    i32::from(a as u16 as i16)
}

/// Sign- or zero-extends the low `BITS` of `a` to 64 bits.
pub(crate) fn extend<const BITS: u32, const SIGNED: bool>(a: u64) -> u64 {
    let shift = 64 - BITS;
    if SIGNED {
        ((a << shift).cast_signed() >> shift).cast_unsigned()
    } else {
        (a << shift) >> shift
    }
}

/// `mul.hi` of 64 bits.
pub(crate) fn mul_hi_u64(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// `mul.hi` of 64 bits, signed.
pub(crate) fn mul_hi_s64(a: u64, b: u64) -> u64 {
    ((i128::from(a.cast_signed()) * i128::from(b.cast_signed())) >> 64) as u64
}

/// Division. By zero it gives all ones; PTX leaves the value open.
pub(crate) fn div_u32(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(u32::MAX)
}

/// As [`div_u32`]; `MIN / -1` wraps.
pub(crate) fn div_s32(a: u32, b: u32) -> u32 {
    if b == 0 {
        return u32::MAX;
    }
    a.cast_signed()
        .wrapping_div(b.cast_signed())
        .cast_unsigned()
}

/// As [`div_u32`].
pub(crate) fn div_u64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(u64::MAX)
}

/// As [`div_s32`].
pub(crate) fn div_s64(a: u64, b: u64) -> u64 {
    if b == 0 {
        return u64::MAX;
    }
    a.cast_signed()
        .wrapping_div(b.cast_signed())
        .cast_unsigned()
}

/// Remainder; by zero it gives the dividend (PTX leaves it open).
pub(crate) fn rem_u32(a: u32, b: u32) -> u32 {
    a.checked_rem(b).unwrap_or(a)
}

/// As [`rem_u32`], with the sign of the dividend.
pub(crate) fn rem_s32(a: u32, b: u32) -> u32 {
    if b == 0 {
        return a;
    }
    a.cast_signed()
        .wrapping_rem(b.cast_signed())
        .cast_unsigned()
}

/// As [`rem_u32`].
pub(crate) fn rem_u64(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

/// As [`rem_s32`].
pub(crate) fn rem_s64(a: u64, b: u64) -> u64 {
    if b == 0 {
        return a;
    }
    a.cast_signed()
        .wrapping_rem(b.cast_signed())
        .cast_unsigned()
}

/// `shl` of `BITS`; amounts above the width give 0.
pub(crate) fn shl<const BITS: u64>(a: u64, n: u64) -> u64 {
    if n >= BITS { 0 } else { a << n }
}

/// `shr` of an unsigned value that is zero-extended.
pub(crate) fn shr_u<const BITS: u64>(a: u64, n: u64) -> u64 {
    if n >= BITS { 0 } else { a >> n }
}

/// `shr` of a signed value, sign-extended to 64 bits: large amounts leave copies of the sign.
pub(crate) fn shr_s(a: u64, n: u64) -> u64 {
    (a.cast_signed() >> n.min(63)).cast_unsigned()
}

/// `shl.b32`.
pub(crate) fn shl32(a: u32, n: u32) -> u32 {
    let shifted = a << (n & 31);
    if n > 31 { 0 } else { shifted }
}

/// `shr.u32`.
pub(crate) fn shr32(a: u32, n: u32) -> u32 {
    let shifted = a >> (n & 31);
    if n > 31 { 0 } else { shifted }
}

/// `shr.s32`.
pub(crate) fn sar32(a: u32, n: u32) -> u32 {
    (a.cast_signed() >> n.min(31)).cast_unsigned()
}

/// `shf.l.wrap`: the high word of `b:a` shifted left.
pub(crate) fn shf_l(a: u32, b: u32, n: u32) -> u32 {
    let both = (u64::from(b) << 32) | u64::from(a);
    ((both << n.min(32)) >> 32) as u32
}

/// `shf.r`: the low word of `b:a` shifted right.
pub(crate) fn shf_r(a: u32, b: u32, n: u32) -> u32 {
    let both = (u64::from(b) << 32) | u64::from(a);
    (both >> n.min(32)) as u32
}

/// `bfe`: `len` bits of `a` from `pos` on.
pub(crate) fn bfe<const BITS: u64, const SIGNED: bool>(a: u64, pos: u64, len: u64) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let a = extend_dyn(a, BITS);
    let valid = len.min(BITS - pos.min(BITS));
    let value = if pos >= BITS { 0 } else { a >> pos } & low(valid);
    if SIGNED && (a >> (pos + len - 1).min(BITS - 1)) & 1 == 1 {
        value | !low(valid)
    } else {
        value
    }
}

/// `bfi`: `b` with `len` bits of `a` inserted at `pos`.
pub(crate) fn bfi<const BITS: u64>(a: u64, b: u64, pos: u64, len: u64) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if pos >= BITS {
        return b;
    }
    let field = low(len.min(BITS - pos)) << pos;
    (b & !field) | ((a << pos) & field)
}

/// `bfind`: position of the highest bit that is not the sign, or all ones.
pub(crate) fn bfind<const BITS: u32, const SIGNED: bool>(a: u64) -> u64 {
    let mut a = extend::<BITS, SIGNED>(a);
    if SIGNED && a >> 63 == 1 {
        a = !a;
    }
    if a == 0 {
        return u64::MAX;
    }
    u64::from(63 - a.leading_zeros())
}

/// `prmt` in its default mode: four selectors of a byte of `b:a`, or of its sign.
pub(crate) fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let both = (u64::from(b) << 32) | u64::from(a);
    let mut out = 0;
    for i in 0..4 {
        let choice = (selector >> (4 * i)) & 0xf;
        let byte = (both >> (8 * (choice & 7))) as u32 & 0xff;
        let byte = if choice & 8 == 0 {
            byte
        } else {
            (byte >> 7) * 0xff
        };
        out |= byte << (8 * i);
    }
    out
}

/// `lop3`: the function of three bits with truth table `table`.
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut out = 0;
    for row in 0..8u32 {
        if (table >> row) & 1 == 1 {
            let pick = |value: u32, bit: u32| if (row >> bit) & 1 == 1 { value } else { !value };
            out |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    out
}

/// `dp4a`: products of four bytes, summed onto `c`.
pub(crate) fn dp4a<const A_SIGNED: bool, const B_SIGNED: bool>(a: u32, b: u32, c: u32) -> u32 {
    let mut sum = c;
    for (x, y) in a.to_le_bytes().into_iter().zip(b.to_le_bytes()) {
        let x = if A_SIGNED {
            i32::from(x as i8)
        } else {
            i32::from(x)
        };
        let y = if B_SIGNED {
            i32::from(y as i8)
        } else {
            i32::from(y)
        };
        sum = sum.wrapping_add((x * y).cast_unsigned());
    }
    sum
}

/// `dp2a`: products of the halves of `a` with the low bytes of `b`, summed onto `c`.
pub(crate) fn dp2a<const A_SIGNED: bool, const B_SIGNED: bool>(a: u32, b: u32, c: u32) -> u32 {
    let half = |a: u32| {
        if A_SIGNED {
            s16(a)
        } else {
            (a & 0xffff).cast_signed()
        }
    };
    let byte = |b: u32| {
        if B_SIGNED {
            i32::from(b as u8 as i8)
        } else {
            i32::from(b as u8)
        }
    };
    let sum = half(a)
        .wrapping_mul(byte(b))
        .wrapping_add(half(a >> 16).wrapping_mul(byte(b >> 8)));
    c.wrapping_add(sum.cast_unsigned())
}

/// `szext.clamp`: the low `n` bits, sign- or zero-extended.
pub(crate) fn field<const SIGNED: bool>(a: u32, n: u32) -> u32 {
    match n {
        0 => 0,
        32.. => a,
        _ if SIGNED => ((a << (32 - n)).cast_signed() >> (32 - n)).cast_unsigned(),
        _ => a & ((1 << n) - 1),
    }
}

/// `bmsk.clamp`: `len` ones from `pos` on.
pub(crate) fn mask_of(pos: u32, len: u32) -> u32 {
    if pos > 31 {
        return 0;
    }
    (low(u64::from(len)) << pos) as u32
}

/// `fns`: the position of the n-th set bit from `base` on, upwards or for a negative `n` downwards;
/// for 0 whether the bit at `base` is set. All ones if there is none.
pub(crate) fn find_nth(mask: u32, base: u32, n: u32) -> u32 {
    let (base, n) = (i64::from(base), i64::from(n.cast_signed()));
    let set = |at: i64| (0..32).contains(&at) && (mask >> at) & 1 == 1;
    if n == 0 {
        return if set(base) { base as u32 } else { u32::MAX };
    }
    let step = n.signum();
    let mut left = n.abs();
    for distance in 0..32 {
        let at = base + step * distance;
        left -= i64::from(set(at));
        if left == 0 {
            return at as u32;
        }
    }
    u32::MAX
}

/// `cvt.sat`: a number of 64 bits clamped to `range`, which is the bits of the result, its sign
/// (bit 8) and that of the source (bit 9).
pub(crate) fn clamp_to(a: u64, range: u64) -> u64 {
    let (bits, signed) = (range & 0xff, range & 0x100 != 0);
    let value = if range & 0x200 == 0 {
        i128::from(a)
    } else {
        i128::from(a.cast_signed())
    };
    let half = 1i128 << (bits.clamp(1, 64) - 1);
    let (least, most) = if signed {
        (-half, half - 1)
    } else {
        (0, 2 * half - 1)
    };
    value.clamp(least, most) as u64
}

/// `cvt.pack`: `b` in the low bits, then `a`, then the low part of `c`.
pub(crate) fn pack(a: u64, b: u64, c: u64, bits: u64) -> u64 {
    (b & low(bits)) | ((a & low(bits)) << bits) | (c << (2 * bits)) & 0xffff_ffff
}

fn low(bits: u64) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

fn extend_dyn(a: u64, bits: u64) -> u64 {
    a & low(bits)
}
