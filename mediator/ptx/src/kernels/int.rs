//! Kernels of integer and bit instructions.

use super::super::LANES;
use super::super::ops::int::*;
use super::super::types::{Kind, Type};
use super::{Kernel, Lanewise, d1, d2, d3, d4, map1, map2, map3, w1, w2, w3, w4};

/// The kernel of an integer instruction; `name` includes the mode (`mul.wide`). Types are those of
/// the operands; 16-bit operands are zero-extended, and results are cut to the destination by the
/// write.
pub(in super::super) fn integer(name: &str, ty: Type) -> Option<Lanewise> {
    use Kind::{Bits, Signed, Unsigned};
    if !matches!(ty.kind, Bits | Signed | Unsigned) || ty.bits == 8 {
        return None;
    }
    if ty.kind == Bits {
        return bits(name, ty.bits);
    }
    let kernel = match (name, ty.kind, ty.bits) {
        ("add", _, 16 | 32) => w2!(u32::wrapping_add),
        ("add", _, 64) => d2!(u64::wrapping_add),
        ("sub", _, 16 | 32) => w2!(u32::wrapping_sub),
        ("sub", _, 64) => d2!(u64::wrapping_sub),
        ("add.sat", Signed, 32) => {
            w2!(|a, b| a
                .cast_signed()
                .saturating_add(b.cast_signed())
                .cast_unsigned())
        }
        ("sub.sat", Signed, 32) => {
            w2!(|a, b| a
                .cast_signed()
                .saturating_sub(b.cast_signed())
                .cast_unsigned())
        }
        ("mul.lo", _, 16 | 32) => w2!(u32::wrapping_mul),
        ("mul.lo", _, 64) => d2!(u64::wrapping_mul),
        ("mul.hi", Unsigned, 16) => w2!(|a, b| a.wrapping_mul(b) >> 16),
        ("mul.hi", Signed, 16) => w2!(|a, b| ((s16(a) * s16(b)) >> 16).cast_unsigned()),
        ("mul.hi", Unsigned, 32) => w2!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        ("mul.hi", Signed, 32) => {
            w2!(|a, b| ((i64::from(a.cast_signed()) * i64::from(b.cast_signed())) >> 32) as u32)
        }
        ("mul.hi", Unsigned, 64) => d2!(mul_hi_u64),
        ("mul.hi", Signed, 64) => d2!(mul_hi_s64),
        ("mul.wide", Unsigned, 16) => w2!(u32::wrapping_mul),
        ("mul.wide", Signed, 16) => w2!(|a, b| (s16(a) * s16(b)).cast_unsigned()),
        ("mul.wide", Unsigned, 32) => d2!(|a, b| (a & 0xffff_ffff) * (b & 0xffff_ffff)),
        ("mul.wide", Signed, 32) => d2!(wide_s32),
        ("mad.lo", _, 16 | 32) => w3!(|a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad.lo", _, 64) => d3!(|a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad.hi", Unsigned, 32) => {
            w3!(|a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        ("mad.hi", Signed, 32) => w3!(|a, b, c| {
            let product = i64::from(a.cast_signed()) * i64::from(b.cast_signed());
            ((product >> 32) as u32).wrapping_add(c)
        }),
        ("mad.hi", Unsigned, 64) => d3!(|a, b, c| mul_hi_u64(a, b).wrapping_add(c)),
        ("mad.hi", Signed, 64) => d3!(|a, b, c| mul_hi_s64(a, b).wrapping_add(c)),
        ("mad.wide", Unsigned, 16) => w3!(|a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad.wide", Signed, 16) => {
            w3!(|a, b, c| (s16(a) * s16(b)).cast_unsigned().wrapping_add(c))
        }
        ("mad.wide", Unsigned, 32) => {
            d3!(|a, b, c| ((a & 0xffff_ffff) * (b & 0xffff_ffff)).wrapping_add(c))
        }
        ("mad.wide", Signed, 32) => d3!(|a, b, c| wide_s32(a, b).wrapping_add(c)),
        ("mad.hi", Unsigned, 16) => w3!(|a, b, c| (a.wrapping_mul(b) >> 16).wrapping_add(c)),
        ("mad.hi", Signed, 16) => {
            w3!(|a, b, c| ((s16(a) * s16(b)) >> 16).cast_unsigned().wrapping_add(c))
        }
        ("mad.hi.sat", Signed, 32) => w3!(|a, b, c| {
            let product = i64::from(a.cast_signed()) * i64::from(b.cast_signed());
            ((product >> 32) as i32)
                .saturating_add(c.cast_signed())
                .cast_unsigned()
        }),
        ("mul24.hi", Unsigned, 32) => w2!(|a, b| ((long24(a) * long24(b)) >> 16) as u32),
        ("mul24.hi", Signed, 32) => w2!(|a, b| ((signed24(a) * signed24(b)) >> 16) as u32),
        ("mad24.hi", Unsigned, 32) => {
            w3!(|a, b, c| (((long24(a) * long24(b)) >> 16) as u32).wrapping_add(c))
        }
        ("mad24.hi", Signed, 32) => {
            w3!(|a, b, c| (((signed24(a) * signed24(b)) >> 16) as u32).wrapping_add(c))
        }
        ("mad24.hi.sat", Signed, 32) => w3!(|a, b, c| {
            let high = (signed24(a) * signed24(b)) >> 16;
            (high as i32)
                .saturating_add(c.cast_signed())
                .cast_unsigned()
        }),
        ("mul24.lo", Unsigned, 32) => w2!(|a, b| u24(a).wrapping_mul(u24(b))),
        ("mul24.lo", Signed, 32) => w2!(|a, b| s24(a).wrapping_mul(s24(b))),
        ("mad24.lo", Unsigned, 32) => w3!(|a, b, c| u24(a).wrapping_mul(u24(b)).wrapping_add(c)),
        ("mad24.lo", Signed, 32) => w3!(|a, b, c| s24(a).wrapping_mul(s24(b)).wrapping_add(c)),
        ("div", Unsigned, 16) => w2!(|a, b| div_u32(a, b) & 0xffff),
        ("div", Signed, 16) => {
            w2!(|a, b| div_s32(s16(a).cast_unsigned(), s16(b).cast_unsigned()))
        }
        ("div", Unsigned, 32) => w2!(div_u32),
        ("div", Signed, 32) => w2!(div_s32),
        ("div", Unsigned, 64) => d2!(div_u64),
        ("div", Signed, 64) => d2!(div_s64),
        ("rem", Unsigned, 16 | 32) => w2!(rem_u32),
        ("rem", Signed, 16) => {
            w2!(|a, b| rem_s32(s16(a).cast_unsigned(), s16(b).cast_unsigned()))
        }
        ("rem", Signed, 32) => w2!(rem_s32),
        ("rem", Unsigned, 64) => d2!(rem_u64),
        ("rem", Signed, 64) => d2!(rem_s64),
        ("abs", Signed, 16) => w1!(|a| s16(a).unsigned_abs()),
        ("abs", Signed, 32) => w1!(|a: u32| a.cast_signed().wrapping_abs().cast_unsigned()),
        ("abs", Signed, 64) => d1!(|a: u64| a.cast_signed().wrapping_abs().cast_unsigned()),
        ("neg", Signed, 16 | 32) => w1!(u32::wrapping_neg),
        ("neg", Signed, 64) => d1!(u64::wrapping_neg),
        ("min", Unsigned, 16 | 32) => w2!(|a, b| a.min(b)),
        ("min", Signed, 16) => w2!(|a, b| s16(a).min(s16(b)).cast_unsigned()),
        ("min", Signed, 32) => w2!(|a, b| a.cast_signed().min(b.cast_signed()).cast_unsigned()),
        ("min", Unsigned, 64) => d2!(|a, b| a.min(b)),
        ("min", Signed, 64) => d2!(|a, b| a.cast_signed().min(b.cast_signed()).cast_unsigned()),
        ("max", Unsigned, 16 | 32) => w2!(|a, b| a.max(b)),
        ("max", Signed, 16) => w2!(|a, b| s16(a).max(s16(b)).cast_unsigned()),
        ("max", Signed, 32) => w2!(|a, b| a.cast_signed().max(b.cast_signed()).cast_unsigned()),
        ("max", Unsigned, 64) => d2!(|a, b| a.max(b)),
        ("max", Signed, 64) => d2!(|a, b| a.cast_signed().max(b.cast_signed()).cast_unsigned()),
        ("sad", Unsigned, 16) => w3!(|a, b, c| a.abs_diff(b).wrapping_add(c)),
        ("sad", Signed, 16) => w3!(|a, b, c| s16(a).abs_diff(s16(b)).wrapping_add(c)),
        ("sad", Unsigned, 64) => d3!(|a, b, c| a.abs_diff(b).wrapping_add(c)),
        ("sad", Signed, 64) => {
            d3!(|a, b, c| a.cast_signed().abs_diff(b.cast_signed()).wrapping_add(c))
        }
        ("min.relu", Signed, 32) => {
            w2!(|a, b| a.cast_signed().min(b.cast_signed()).max(0).cast_unsigned())
        }
        ("max.relu", Signed, 32) => {
            w2!(|a, b| a.cast_signed().max(b.cast_signed()).max(0).cast_unsigned())
        }
        ("szext.wrap", Unsigned, 32) => w2!(|a, n| field::<false>(a, n & 31)),
        ("szext.wrap", Signed, 32) => w2!(|a, n| field::<true>(a, n & 31)),
        ("szext.clamp", Unsigned, 32) => w2!(field::<false>),
        ("szext.clamp", Signed, 32) => w2!(field::<true>),
        ("sad", Unsigned, 32) => w3!(|a, b, c| a.abs_diff(b).wrapping_add(c)),
        ("sad", Signed, 32) => {
            w3!(|a, b, c| a.cast_signed().abs_diff(b.cast_signed()).wrapping_add(c))
        }
        // The second operand is the range: bits, sign of the result, sign of the source.
        ("clamp", Unsigned, 64) => d2!(clamp_to),
        ("pack", Unsigned, 64) => d4!(pack),
        ("shr", Unsigned, 16) => d2!(shr_u::<16>),
        ("shr", Signed, 16) => d2!(|a, n| shr_s(extend::<16, true>(a), n)),
        ("shr", Unsigned, 32) => w2!(shr32),
        ("shr", Signed, 32) => w2!(sar32),
        ("shr", Unsigned, 64) => d2!(shr_u::<64>),
        ("shr", Signed, 64) => d2!(shr_s),
        ("bfe", Unsigned, 32) => d3!(bfe::<32, false>),
        ("bfe", Signed, 32) => d3!(bfe::<32, true>),
        ("bfe", Unsigned, 64) => d3!(bfe::<64, false>),
        ("bfe", Signed, 64) => d3!(bfe::<64, true>),
        ("bfind.shiftamt", Unsigned, 32) => d1!(|a| shift_amount::<32>(bfind::<32, false>(a))),
        ("bfind.shiftamt", Signed, 32) => d1!(|a| shift_amount::<32>(bfind::<32, true>(a))),
        ("bfind.shiftamt", Unsigned, 64) => d1!(|a| shift_amount::<64>(bfind::<64, false>(a))),
        ("bfind.shiftamt", Signed, 64) => d1!(|a| shift_amount::<64>(bfind::<64, true>(a))),
        ("bfind", Unsigned, 32) => d1!(bfind::<32, false>),
        ("bfind", Signed, 32) => d1!(bfind::<32, true>),
        ("bfind", Unsigned, 64) => d1!(bfind::<64, false>),
        ("bfind", Signed, 64) => d1!(bfind::<64, true>),
        ("dp2a.lo.u32", Unsigned, 32) => w3!(dp2a::<false, false>),
        ("dp2a.lo.u32", Signed, 32) => w3!(dp2a::<false, true>),
        ("dp2a.lo.s32", Unsigned, 32) => w3!(dp2a::<true, false>),
        ("dp2a.lo.s32", Signed, 32) => w3!(dp2a::<true, true>),
        ("dp2a.hi.u32", Unsigned, 32) => w3!(|a, b, c| dp2a::<false, false>(a, b >> 16, c)),
        ("dp2a.hi.u32", Signed, 32) => w3!(|a, b, c| dp2a::<false, true>(a, b >> 16, c)),
        ("dp2a.hi.s32", Unsigned, 32) => w3!(|a, b, c| dp2a::<true, false>(a, b >> 16, c)),
        ("dp2a.hi.s32", Signed, 32) => w3!(|a, b, c| dp2a::<true, true>(a, b >> 16, c)),
        ("dp4a.u32", Unsigned, 32) => w3!(dp4a::<false, false>),
        ("dp4a.u32", Signed, 32) => w3!(dp4a::<false, true>),
        ("dp4a.s32", Unsigned, 32) => w3!(dp4a::<true, false>),
        ("dp4a.s32", Signed, 32) => w3!(dp4a::<true, true>),
        _ => return None,
    };
    Some(kernel)
}

/// Untyped bits.
fn bits(name: &str, width: u8) -> Option<Lanewise> {
    let kernel = match (name, width) {
        ("mov", 16 | 32) => w1!(|a| a),
        ("mov", 64) => d1!(|a| a),
        ("and", 16 | 32) => w2!(|a, b| a & b),
        ("and", 64) => d2!(|a, b| a & b),
        ("or", 16 | 32) => w2!(|a, b| a | b),
        ("or", 64) => d2!(|a, b| a | b),
        ("xor", 16 | 32) => w2!(|a, b| a ^ b),
        ("xor", 64) => d2!(|a, b| a ^ b),
        ("not", 16 | 32) => w1!(|a: u32| !a),
        ("not", 64) => d1!(|a: u64| !a),
        ("cnot", 16 | 32) => w1!(|a| u32::from(a == 0)),
        ("cnot", 64) => d1!(|a| u64::from(a == 0)),
        ("shl", 16) => d2!(shl::<16>),
        ("shl", 32) => w2!(shl32),
        ("shl", 64) => d2!(shl::<64>),
        ("shr", 16) => d2!(shr_u::<16>),
        ("shr", 32) => w2!(shr32),
        ("shr", 64) => d2!(shr_u::<64>),
        ("popc", 32) => w1!(u32::count_ones),
        ("popc", 64) => d1!(|a: u64| u64::from(a.count_ones())),
        ("clz", 32) => w1!(u32::leading_zeros),
        ("clz", 64) => d1!(|a: u64| u64::from(a.leading_zeros())),
        ("brev", 32) => w1!(u32::reverse_bits),
        ("brev", 64) => d1!(u64::reverse_bits),
        ("bfi", 32) => d4!(bfi::<32>),
        ("bfi", 64) => d4!(bfi::<64>),
        ("prmt", 32) => w3!(prmt),
        ("prmt.f4e", 32) => w3!(|a, b, s| prmt(a, b, 0x3210 + 0x1111 * (s & 3))),
        ("prmt.b4e", 32) => w3!(|a, b, s| prmt(a, b, BACKWARD[(s & 3) as usize])),
        ("prmt.rc8", 32) => w3!(|a, b, s| prmt(a, b, 0x1111 * (s & 3))),
        ("prmt.ecl", 32) => w3!(|a, b, s| prmt(a, b, EDGE_LEFT[(s & 3) as usize])),
        ("prmt.ecr", 32) => w3!(|a, b, s| prmt(a, b, EDGE_RIGHT[(s & 3) as usize])),
        ("prmt.rc16", 32) => w3!(|a, b, s| prmt(a, b, if s & 1 == 1 { 0x3232 } else { 0x1010 })),
        ("bmsk.clamp", 32) => w2!(mask_of),
        ("bmsk.wrap", 32) => w2!(|a, b| mask_of(a & 31, b & 31)),
        ("fns", 32) => w3!(find_nth),
        ("join8", 16) => w2!(|a, b| (a & 0xff) | (b << 8)),
        ("low8", 16) => w1!(|a| a & 0xff),
        ("high8", 16) => w1!(|a| (a >> 8) & 0xff),
        ("low16", 32) => w1!(|a| a & 0xffff),
        ("lop3", 32) => w4!(lop3),
        ("shf.l.wrap", 32) => w3!(|a, b, n| shf_l(a, b, n & 31)),
        ("shf.l.clamp", 32) => w3!(shf_l),
        ("shf.r.wrap", 32) => w3!(|a, b, n| shf_r(a, b, n & 31)),
        ("shf.r.clamp", 32) => w3!(shf_r),
        // Pieces of vector moves: `join` from low to high, `high` is the upper half.
        ("join16", 32) => w2!(|a, b| a | (b << 16)),
        ("join32", 64) => d2!(|a, b| (a & 0xffff_ffff) | (b << 32)),
        ("join16", 64) => {
            d4!(|a: u64, b: u64, c: u64, d: u64| a | (b << 16) | (c << 32) | (d << 48))
        }
        ("high16", 32) => w1!(|a| a >> 16),
        ("high16", 64) => d1!(|a| a >> 16),
        ("high32", 64) => d1!(|a| a >> 32),
        ("high48", 64) => d1!(|a| a >> 48),
        _ => return None,
    };
    Some(kernel)
}

/// The kernel that extends the low bits of a value to 64, by the kind of `ty`.
pub(in super::super) fn extension(ty: Type) -> Lanewise {
    match (ty.signed(), ty.bits) {
        (false, 8) => d1!(extend::<8, false>),
        (false, 16) => d1!(extend::<16, false>),
        (false, 32) => d1!(extend::<32, false>),
        (true, 8) => d1!(extend::<8, true>),
        (true, 16) => d1!(extend::<16, true>),
        (true, 32) => d1!(extend::<32, true>),
        _ => d1!(|a| a),
    }
}

fn wide_s32(a: u64, b: u64) -> u64 {
    let product = i64::from((a as u32).cast_signed()) * i64::from((b as u32).cast_signed());
    product.cast_unsigned()
}

/// Selectors of `prmt`'s modes by the low bits of its third operand (PTX ISA, `prmt`).
const BACKWARD: [u32; 4] = [0x5670, 0x6701, 0x7012, 0x0123];
const EDGE_LEFT: [u32; 4] = [0x3210, 0x3211, 0x3222, 0x3333];
const EDGE_RIGHT: [u32; 4] = [0x0000, 0x1110, 0x2210, 0x3210];

fn long24(a: u32) -> u64 {
    u64::from(u24(a))
}

fn signed24(a: u32) -> i64 {
    i64::from(s24(a).cast_signed())
}

/// `bfind.shiftamt`: the shift that brings the bit found to the top.
fn shift_amount<const BITS: u64>(found: u64) -> u64 {
    if found == u64::MAX {
        found
    } else {
        BITS - 1 - found
    }
}

fn u24(a: u32) -> u32 {
    a & 0xff_ffff
}

fn s24(a: u32) -> u32 {
    ((a << 8).cast_signed() >> 8).cast_unsigned()
}
