//! Scalars at their edges and against wider arithmetic.

use super::float::*;
use super::int::*;
use proptest::prelude::*;

const EDGES32: [u32; 9] = [
    0,
    1,
    2,
    31,
    32,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    u32::MAX,
];
const EDGES64: [u64; 8] = [
    0,
    1,
    63,
    64,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Singles that are special, tiny, huge or next to a rounding boundary.
const SINGLES: [u32; 20] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x3f80_0000,
    0x3f80_0001,
    0xbf80_0000,
    0x3f7f_ffff,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x3300_0000,
    0x3380_0000,
    0x4b80_0001,
    0x0040_0000,
];

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn fma_is_exact_at_the_edges() {
    for a in SINGLES {
        for b in SINGLES {
            for c in SINGLES {
                let [x, y, z] = [a, b, c].map(f32::from_bits);
                assert!(same(fma32(x, y, z), x.mul_add(y, z)), "{a:x} {b:x} {c:x}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn fma_is_exact(a: u32, b: u32, c: u32, near in 0u32..3) {
        // Random exponents rarely meet; two of three cases bring the addend near the product.
        let [x, y, mut z] = [a, b, c].map(f32::from_bits);
        if near > 0 {
            let shift = if near == 1 { 1.0 } else { 2f32.powi(24) };
            z = -(x * y) * shift * (1.0 + (c % 7) as f32 * f32::EPSILON);
        }
        prop_assert!(same(fma32(x, y, z), x.mul_add(y, z)));
    }

    #[test]
    fn fields_are_those_of_a_bit_by_bit_reading(a: u64, b: u64, pos in 0u64..300, len in 0u64..300) {
        let (p, l) = (pos & 0xff, len & 0xff);
        for (bits, signed, got) in [
            (32u64, false, bfe::<32, false>(a & 0xffff_ffff, pos, len)),
            (32, true, bfe::<32, true>(a & 0xffff_ffff, pos, len) & 0xffff_ffff),
            (64, false, bfe::<64, false>(a, pos, len)),
            (64, true, bfe::<64, true>(a, pos, len)),
        ] {
            // The pseudo-code of PTX ISA, `bfe`.
            let msb = bits - 1;
            let sign = if !signed || l == 0 { 0 } else { (a >> (p + l - 1).min(msb)) & 1 };
            let want = (0..bits).fold(0u64, |d, i| {
                let bit = if i < l && p + i <= msb { (a >> (p + i)) & 1 } else { sign };
                d | (bit << i)
            });
            prop_assert_eq!(got, want, "{} {}", bits, signed);
        }
        for (bits, got) in [(32u64, bfi::<32>(a, b & 0xffff_ffff, pos, len)), (64, bfi::<64>(a, b, pos, len))] {
            let mut want = if bits == 32 { b & 0xffff_ffff } else { b };
            for i in (0..l).take_while(|i| p + i < bits) {
                want = want & !(1 << (p + i)) | (((a >> i) & 1) << (p + i));
            }
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn products_and_shifts_agree_with_128_bits(a: u64, b: u64, n in 0u32..70) {
        prop_assert_eq!(mul_hi_u64(a, b), ((u128::from(a) * u128::from(b)) >> 64) as u64);
        let signed = i128::from(a as i64) * i128::from(b as i64);
        prop_assert_eq!(mul_hi_s64(a, b), (signed >> 64) as u64);
        let wide = |n: u32| if n > 63 { 0 } else { (u128::from(a) << n) as u64 };
        prop_assert_eq!(shl::<64>(a, n.into()), wide(n));
        prop_assert_eq!(shr_s(a, n.into()), (i128::from(a as i64) >> n.min(127)) as u64);
        prop_assert_eq!(shl32(a as u32, n), if n > 31 { 0 } else { (a as u32) << n });
        prop_assert_eq!(shr32(a as u32, n), if n > 31 { 0 } else { (a as u32) >> n });
        prop_assert_eq!(sar32(a as u32, n), (i64::from(a as u32 as i32) >> n.min(63)) as u32);
        let both = (u128::from(b as u32) << 32) | u128::from(a as u32);
        prop_assert_eq!(shf_l(a as u32, b as u32, n & 31), ((both << (n & 31)) >> 32) as u32);
        prop_assert_eq!(shf_r(a as u32, b as u32, n & 31), (both >> (n & 31)) as u32);
        prop_assert_eq!(extend::<16, true>(a), a as u16 as i16 as u64);
        prop_assert_eq!(extend::<8, false>(a), a & 0xff);
    }

    #[test]
    fn bytes_are_permuted_one_by_one(a: u32, b: u32, s: u32) {
        let pool: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
        let want: [u8; 4] = std::array::from_fn(|i| {
            let c = (s >> (4 * i)) & 15;
            let byte = pool[(c & 7) as usize];
            if c & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
        });
        prop_assert_eq!(prmt(a, b, s), u32::from_le_bytes(want));
        prop_assert_eq!(lop3(a, b, s, 0xe8), (a & b) | (a & s) | (b & s));
        prop_assert_eq!(lop3(a, b, s, 0x96), a ^ b ^ s);
    }

    #[test]
    fn halves_survive_and_singles_round_to_the_nearest(bits in 0u32..0x1_0000, a: u32) {
        let single = from_half(bits);
        if !single.is_nan() {
            prop_assert_eq!(to_half(single), bits);
        }
        let a = f32::from_bits(a);
        if a.is_finite() && a.abs() < 65504.0 {
            let half = to_half(a);
            let error = (f64::from(from_half(half)) - f64::from(a)).abs();
            for other in [half.wrapping_sub(1), half + 1] {
                let other = from_half(other & 0xffff);
                if other.is_finite() {
                    prop_assert!(error <= (f64::from(other) - f64::from(a)).abs());
                }
            }
        }
    }
}

#[test]
fn division_has_a_value_for_every_pair() {
    for a in EDGES32 {
        for b in EDGES32 {
            let (q, r) = (div_u32(a, b), rem_u32(a, b));
            if b == 0 {
                assert_eq!((q, r), (u32::MAX, a));
                assert_eq!((div_s32(a, b), rem_s32(a, b)), (u32::MAX, a));
            } else {
                assert_eq!(q.wrapping_mul(b).wrapping_add(r), a);
                let (q, r) = (div_s32(a, b), rem_s32(a, b));
                assert_eq!(q.wrapping_mul(b).wrapping_add(r), a);
            }
        }
    }
    for a in EDGES64 {
        for b in EDGES64 {
            if b == 0 {
                assert_eq!((div_u64(a, b), rem_u64(a, b)), (u64::MAX, a));
                assert_eq!((div_s64(a, b), rem_s64(a, b)), (u64::MAX, a));
            } else {
                assert_eq!(div_u64(a, b).wrapping_mul(b).wrapping_add(rem_u64(a, b)), a);
                assert_eq!(div_s64(a, b).wrapping_mul(b).wrapping_add(rem_s64(a, b)), a);
            }
        }
    }
}

#[test]
fn bfind_finds_the_highest_bit_that_is_not_the_sign() {
    assert_eq!(bfind::<32, false>(0), u64::MAX);
    assert_eq!(bfind::<32, false>(1), 0);
    assert_eq!(bfind::<32, false>(0x8000_0000), 31);
    assert_eq!(bfind::<32, true>(0xffff_ffff), u64::MAX);
    assert_eq!(bfind::<32, true>(0xffff_fffe), 0);
    assert_eq!(bfind::<64, true>(1 << 62), 62);
}

#[test]
fn minimum_prefers_numbers_and_orders_zeros() {
    assert_eq!(min32(f32::NAN, 1.0), 1.0);
    assert_eq!(max32(1.0, f32::NAN), 1.0);
    assert_eq!(min32(f32::NAN, f32::NAN).to_bits(), 0x7fff_ffff);
    assert!(min_nan32(f32::NAN, 1.0).is_nan() && max_nan32(1.0, f32::NAN).is_nan());
    assert_eq!(min32(0.0, -0.0).to_bits(), 0x8000_0000);
    assert_eq!(max32(-0.0, 0.0).to_bits(), 0);
    assert_eq!(min64(-0.0, 0.0).to_bits(), 1 << 63);
    assert_eq!(max64(2.0, f64::NAN), 2.0);
}

#[test]
fn saturation_and_flushing() {
    for (a, want) in [
        (f32::NAN, 0u32),
        (-0.0, 0),
        (-1.0, 0),
        (0.5, 0x3f00_0000),
        (2.0, 0x3f80_0000),
    ] {
        assert_eq!(saturate(a).to_bits(), want);
        assert_eq!(
            saturate64(a.into()).to_bits(),
            f64::from(f32::from_bits(want)).to_bits()
        );
    }
    assert_eq!(flush(f32::from_bits(0x807f_ffff)).to_bits(), 0x8000_0000);
    assert_eq!(flush(f32::MIN_POSITIVE), f32::MIN_POSITIVE);
    assert!(flush(f32::NAN).is_nan());
    assert_eq!(rsqrt32(4.0), 0.5);
    assert_eq!(rsqrt32(-0.0), f32::NEG_INFINITY);
}

#[test]
fn dot_products_of_bytes() {
    assert_eq!(
        dp4a::<false, false>(0xff01_0203, 0x0201_0101, 10),
        10 + 510 + 1 + 2 + 3
    );
    assert_eq!(
        dp4a::<true, true>(0xff00_0000, 0x0200_0000, 0),
        (-2i32).cast_unsigned()
    );
    assert_eq!(
        dp4a::<true, false>(0xff00_0000, 0xff00_0000, 0),
        (-255i32).cast_unsigned()
    );
}

mod exact {
    use super::super::exact::*;
    use super::*;

    fn nearest(format: Format) -> u64 {
        Control::new(format).to_bits()
    }

    fn directed(format: Format, mode: Mode) -> u64 {
        Control {
            mode,
            ..Control::new(format)
        }
        .to_bits()
    }

    fn same64(a: u64, b: f64) -> bool {
        a == b.to_bits() || (f64::from_bits(a).is_nan() && b.is_nan())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn nearest_is_what_the_host_computes(a: u64, b: u64, c: u64, near: bool) {
            let [x, y] = [a, b].map(f64::from_bits);
            let z = if near { -(x * y) } else { f64::from_bits(c) };
            let n = nearest(F64);
            prop_assert!(same64(add(a, b, n), x + y));
            prop_assert!(same64(sub(a, b, n), x - y));
            prop_assert!(same64(mul(a, b, n), x * y));
            prop_assert!(same64(div(a, b, n), x / y));
            prop_assert!(same64(sqrt(a, n), x.sqrt()));
            prop_assert!(same64(fma(a, b, z.to_bits(), n), x.mul_add(y, z)));
            let [p, q, r] = [a as u32, b as u32, c as u32].map(f32::from_bits);
            let got = fma(a & 0xffff_ffff, b & 0xffff_ffff, c & 0xffff_ffff, nearest(F32));
            prop_assert!(same(f32::from_bits(got as u32), p.mul_add(q, r)));
            let got = div(a & 0xffff_ffff, b & 0xffff_ffff, nearest(F32));
            prop_assert!(same(f32::from_bits(got as u32), p / q));
            let to_single = Control { from: F64, ..Control::new(F32) }.to_bits();
            prop_assert!(same(f32::from_bits(convert(a, to_single) as u32), x as f32));
            prop_assert!(same64(from_signed(a, n), a.cast_signed() as f64));
            prop_assert!(same(f32::from_bits(from_unsigned(a, nearest(F32)) as u32), a as f32));
            let to_half = Control { from: F32, ..Control::new(F16) }.to_bits();
            prop_assert_eq!(convert(a & 0xffff_ffff, to_half) as u32, super::to_half(p));
        }

        #[test]
        fn directed_roundings_enclose_the_nearest(a: u64, b: u64, c: u64) {
            let modes = [Mode::Down, Mode::Nearest, Mode::Up, Mode::Zero];
            let [x, y] = [a, b].map(f64::from_bits);
            for which in 0..4 {
                let run = |mode| f64::from_bits(match which {
                    0 => add(a, b, directed(F64, mode)),
                    1 => div(a, b, directed(F64, mode)),
                    2 => fma(a, b, c, directed(F64, mode)),
                    _ => mul(a, b, directed(F64, mode)),
                });
                let [down, near, up, zero] = modes.map(run);
                if near.is_nan() || x.is_infinite() || y.is_infinite() {
                    continue;
                }
                prop_assert!(down <= near && near <= up && (down == up || near == down || near == up));
                prop_assert!(down.next_up() >= up);
                prop_assert_eq!(zero, if near < 0.0 || (near == 0.0 && down < 0.0) { up } else { down });
            }
        }
    }

    #[test]
    fn small_formats_have_their_own_ends() {
        let to = |format, clamp: bool, x: f32| {
            let control = Control {
                from: F32,
                ..Control::new(format)
            }
            .to_bits();
            let convert = if clamp { convert_clamped } else { convert };
            convert(u64::from(x.to_bits()), control)
        };
        assert_eq!(to(E4M3, true, 448.0), 0x7e);
        assert_eq!(to(E4M3, true, 1e9), 0x7e);
        assert_eq!(to(E4M3, true, f32::NAN), 0x7f);
        assert_eq!(to(E4M3, true, -0.001_953_125), 0x81);
        assert_eq!(to(E5M2, true, 1e9), 0x7b);
        assert_eq!(to(E5M2, true, 1.0), 0x3c);
        assert_eq!(to(BF16, false, 1.003_906_3), 0x3f80);
        assert_eq!(to(TF32, false, 1.000_001), 0x3f80_0000);
    }
}
