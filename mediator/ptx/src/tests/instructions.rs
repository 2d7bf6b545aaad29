//! One instruction at a time, through the whole machine.

use super::*;

/// Runs `body` in one thread; what it leaves in `%r9` (and `%rd9` as two words after it).
fn value(body: &str) -> u32 {
    run_body(&format!("{body}\nst.global.u32 [%rd1], %r9;"), 1, 1)[0]
}

fn value64(body: &str) -> u64 {
    let words = run_body(&format!("{body}\nst.global.u64 [%rd1], %rd9;"), 1, 2);
    u64::from(words[0]) | (u64::from(words[1]) << 32)
}

#[test]
fn integer_arithmetic() {
    for (body, want) in [
        ("add.u32 %r9, 0xffffffff, 2;", 1u32),
        ("mov.u32 %r1, 7; sub.s32 %r9, %r1, 9;", -2i32 as u32),
        (
            "mov.u32 %r1, 0x7fffffff; add.sat.s32 %r9, %r1, 5;",
            0x7fff_ffff,
        ),
        (
            "mov.u32 %r1, 0x10001; mul.lo.u32 %r9, %r1, %r1;",
            0x0002_0001,
        ),
        ("mov.u32 %r1, -3; mul.hi.s32 %r9, %r1, 5;", u32::MAX),
        ("mov.u32 %r1, -3; mul.hi.u32 %r9, %r1, 5;", 4),
        ("mov.u32 %r1, 3; mad.lo.s32 %r9, %r1, -4, 2;", -10i32 as u32),
        ("mov.u32 %r1, -7; div.s32 %r9, %r1, 2;", -3i32 as u32),
        ("mov.u32 %r1, -7; rem.s32 %r9, %r1, 2;", -1i32 as u32),
        ("mov.u32 %r1, 7; div.u32 %r9, %r1, 0;", u32::MAX),
        ("mov.u32 %r1, -7; abs.s32 %r9, %r1;", 7),
        ("mov.u32 %r1, -7; min.u32 %r9, %r1, 3;", 3),
        ("mov.u32 %r1, -7; min.s32 %r9, %r1, 3;", -7i32 as u32),
        ("mov.u32 %r1, -7; neg.s32 %r9, %r1;", 7),
        ("mov.u32 %r1, 0xf0; popc.b32 %r9, %r1;", 4),
        ("mov.u64 %rd2, 0xf00000000f; popc.b64 %r9, %rd2;", 8),
        ("mov.u32 %r1, 0xf0; clz.b32 %r9, %r1;", 24),
        ("mov.u64 %rd2, 1; clz.b64 %r9, %rd2;", 63),
        ("mov.u32 %r1, 1; brev.b32 %r9, %r1;", 1 << 31),
        ("mov.u32 %r1, 0xabcd; bfe.u32 %r9, %r1, 4, 8;", 0xbc),
        ("mov.u32 %r1, 0xabcd; bfe.s32 %r9, %r1, 4, 8;", 0xffff_ffbc),
        (
            "mov.u32 %r1, 0xff; mov.u32 %r2, 0; bfi.b32 %r9, %r1, %r2, 4, 4;",
            0xf0,
        ),
        ("mov.u32 %r1, 1; shl.b32 %r9, %r1, 32;", 0),
        ("mov.u32 %r1, -8; shr.s32 %r9, %r1, 40;", u32::MAX),
        ("mov.u32 %r1, -8; shr.u32 %r9, %r1, 28;", 15),
        (
            "mov.u32 %r1, 0x12345678; prmt.b32 %r9, %r1, 0, 0x0123;",
            0x7856_3412,
        ),
        (
            "mov.u32 %r1, 0x12345678; shf.l.wrap.b32 %r9, %r1, %r1, 36;",
            0x2345_6781,
        ),
        ("mov.u32 %r1, 5; cnot.b32 %r9, %r1;", 0),
        ("mov.u32 %r1, 6; not.b32 %r9, %r1;", !6),
        (
            "mov.u32 %r1, 3; mov.u32 %r2, 9; sad.s32 %r9, %r1, %r2, 1;",
            7,
        ),
        (
            "mov.u16 %rs1, 0xffff; mul.wide.s16 %r9, %rs1, 2;",
            -2i32 as u32,
        ),
        ("mov.u16 %rs1, 0xffff; mul.wide.u16 %r9, %rs1, 2;", 0x1fffe),
        (
            "mov.u16 %rs1, 0x8000; shr.s16 %rs2, %rs1, 3; cvt.u32.u16 %r9, %rs2;",
            0xf000,
        ),
        (
            "mov.u16 %rs1, 0xffff; add.s16 %rs2, %rs1, 3; cvt.u32.u16 %r9, %rs2;",
            2,
        ),
        (
            "mov.u16 %rs1, -9; div.s16 %rs2, %rs1, 2; cvt.s32.s16 %r9, %rs2;",
            -4i32 as u32,
        ),
        (
            "mov.u16 %rs1, -9; min.s16 %rs2, %rs1, 2; cvt.s32.s16 %r9, %rs2;",
            -9i32 as u32,
        ),
    ] {
        assert_eq!(value(body), want, "{body}");
    }
    for (body, want) in [
        ("mov.u32 %r1, -2; mul.wide.s32 %rd9, %r1, 3;", -6i64 as u64),
        (
            "mov.u32 %r1, -2; mul.wide.u32 %rd9, %r1, 3;",
            0xffff_fffe * 3,
        ),
        (
            "mov.u32 %r1, -2; mov.u64 %rd2, 10; mad.wide.s32 %rd9, %r1, 3, %rd2;",
            4,
        ),
        (
            "mov.u64 %rd2, -1; mul.hi.u64 %rd9, %rd2, %rd2;",
            u64::MAX - 1,
        ),
        ("mov.u64 %rd2, -9; rem.s64 %rd9, %rd2, 4;", -1i64 as u64),
        ("mov.u64 %rd2, 1; shl.b64 %rd9, %rd2, 63;", 1 << 63),
        ("mov.u64 %rd2, -16; shr.s64 %rd9, %rd2, 2;", -4i64 as u64),
        (
            "mov.u32 %r1, 1; mov.u32 %r2, 2; mov.b64 %rd9, {%r1, %r2};",
            0x2_0000_0001,
        ),
    ] {
        assert_eq!(value64(body), want, "{body}");
    }
}

#[test]
fn conversions_round_clamp_and_extend() {
    for (body, want) in [
        ("mov.u32 %r1, 0x180; cvt.u8.u32 %r9, %r1;", 0x80u32),
        ("mov.u32 %r1, 0x180; cvt.s8.u32 %r9, %r1;", 0xffff_ff80),
        ("mov.u32 %r1, 0x18000; cvt.s32.s16 %r9, %r1;", 0xffff_8000),
        ("mov.u32 %r1, 0xff; cvt.u16.s8 %r9, %r1;", 0xffff),
        ("mov.u64 %rd2, 0x500000007; cvt.u32.u64 %r9, %rd2;", 7),
        ("mov.f32 %f1, 0f40200000; cvt.rni.s32.f32 %r9, %f1;", 2), // 2.5
        (
            "mov.f32 %f1, 0fC0200000; cvt.rzi.s32.f32 %r9, %f1;",
            -2i32 as u32,
        ),
        (
            "mov.f32 %f1, 0fC0200000; cvt.rmi.s32.f32 %r9, %f1;",
            -3i32 as u32,
        ),
        (
            "mov.f32 %f1, 0fC0200000; cvt.rpi.s32.f32 %r9, %f1;",
            -2i32 as u32,
        ),
        ("mov.f32 %f1, 0fC0200000; cvt.rzi.u32.f32 %r9, %f1;", 0),
        ("mov.f32 %f1, 0f7FC00000; cvt.rzi.s32.f32 %r9, %f1;", 0),
        (
            "mov.f32 %f1, 0f4F800000; cvt.rzi.s32.f32 %r9, %f1;",
            i32::MAX as u32,
        ),
        ("mov.f32 %f1, 0f43960000; cvt.rzi.u8.f32 %r9, %f1;", 255), // 300
        ("mov.f32 %f1, 0f00000001; cvt.rpi.s32.f32 %r9, %f1;", 1),
        ("mov.f32 %f1, 0f00000001; cvt.rpi.ftz.s32.f32 %r9, %f1;", 0),
        (
            "mov.u32 %r1, 0x1000001; cvt.rn.f32.u32 %f1, %r1; mov.b32 %r9, %f1;",
            0x4b80_0000,
        ),
        (
            "mov.u32 %r1, -1; cvt.rn.f32.s32 %f1, %r1; mov.b32 %r9, %f1;",
            0xbf80_0000,
        ),
        (
            "mov.u32 %r1, -1; cvt.rn.f32.u32 %f1, %r1; mov.b32 %r9, %f1;",
            0x4f80_0000,
        ),
        (
            "mov.u16 %rs1, -2; cvt.rn.f32.s16 %f1, %rs1; mov.b32 %r9, %f1;",
            0xc000_0000,
        ),
        (
            "mov.u64 %rd2, -1; cvt.rn.f32.u64 %f1, %rd2; mov.b32 %r9, %f1;",
            0x5f80_0000,
        ),
        (
            "mov.f64 %fd1, 0d3FF0000000000001; cvt.rn.f32.f64 %f1, %fd1; mov.b32 %r9, %f1;",
            0x3f80_0000,
        ),
        (
            "mov.f64 %fd1, 0dC1F0000000000000; cvt.rzi.s32.f64 %r9, %fd1;",
            1 << 31,
        ),
        (
            "mov.f32 %f1, 0f40200000; cvt.rni.f32.f32 %f2, %f1; mov.b32 %r9, %f2;",
            0x4000_0000,
        ),
        (
            "mov.f32 %f1, 0f40200000; cvt.sat.f32.f32 %f2, %f1; mov.b32 %r9, %f2;",
            0x3f80_0000,
        ),
        (
            "mov.f32 %f1, 0f3F800000; cvt.rn.f16.f32 %rs1, %f1; cvt.u32.u16 %r9, %rs1;",
            0x3c00,
        ),
        (
            "mov.u16 %rs1, 0xbc00; cvt.f32.f16 %f1, %rs1; mov.b32 %r9, %f1;",
            0xbf80_0000,
        ),
    ] {
        assert_eq!(value(body), want, "{body}");
    }
    assert_eq!(value64("mov.u32 %r1, -1; cvt.s64.s32 %rd9, %r1;"), u64::MAX);
    assert_eq!(
        value64("mov.u32 %r1, -1; cvt.u64.u32 %rd9, %r1;"),
        0xffff_ffff
    );
    let half = "mov.u32 %r1, -1; cvt.rn.f64.s32 %fd1, %r1; mov.b64 %rd9, %fd1;";
    assert_eq!(value64(half), (-1f64).to_bits());
    let widen = "mov.f32 %f1, 0f3FC00000; cvt.f64.f32 %fd1, %f1; mov.b64 %rd9, %fd1;";
    assert_eq!(value64(widen), 1.5f64.to_bits());
}

#[test]
fn floats() {
    let f = |v: f32| v.to_bits();
    for (op, want) in [
        ("add.f32 %f3, %f1, %f2", f(1.25)),
        ("sub.ftz.f32 %f3, %f1, %f2", f(1.75)),
        ("mul.rn.f32 %f3, %f1, %f2", f(-0.375)),
        ("add.sat.f32 %f3, %f1, %f2", f(1.0)),
        ("fma.rn.f32 %f3, %f1, %f1, %f2", f(2.0)),
        ("mad.f32 %f3, %f1, %f1, %f2", f(2.0)),
        ("div.rn.f32 %f3, %f1, %f2", f(-6.0)),
        ("div.full.f32 %f3, %f1, %f2", f(-6.0)),
        ("min.f32 %f3, %f1, %f2", f(-0.25)),
        ("max.f32 %f3, %f1, %f2", f(1.5)),
        ("abs.f32 %f3, %f2", f(0.25)),
        ("neg.f32 %f3, %f2", f(0.25)),
        ("rcp.rn.f32 %f3, %f2", f(-4.0)),
        ("ex2.approx.f32 %f3, %f2", f((-0.25f32).exp2())),
        ("lg2.approx.f32 %f3, %f1", f(1.5f32.log2())),
        ("sin.approx.f32 %f3, %f1", f(1.5f32.sin())),
        ("cos.approx.ftz.f32 %f3, %f1", f(1.5f32.cos())),
        ("sqrt.rn.f32 %f3, %f1", f(1.5f32.sqrt())),
        ("copysign.f32 %f3, %f2, %f1", f(-1.5)),
    ] {
        let body =
            format!("mov.f32 %f1, 0f3FC00000; mov.f32 %f2, 0fBE800000; {op}; mov.b32 %r9, %f3;");
        assert_eq!(value(&body), want, "{op}");
    }
    for (op, want) in [
        ("add.f64 %fd3, %fd1, %fd2", 1.25),
        ("fma.rn.f64 %fd3, %fd1, %fd1, %fd2", 2.0),
        ("div.rn.f64 %fd3, %fd1, %fd2", -6.0),
        ("sqrt.rn.f64 %fd3, %fd1", 1.5f64.sqrt()),
        ("max.f64 %fd3, %fd1, %fd2", 1.5),
        ("neg.f64 %fd3, %fd1", -1.5),
    ] {
        let body = format!("mov.f64 %fd1, 1.5; mov.f64 %fd2, -0.25; {op}; mov.b64 %rd9, %fd3;");
        assert_eq!(value64(&body), f64::to_bits(want), "{op}");
    }
}

#[test]
fn comparisons_including_nan() {
    let truth = |op: &str, a: &str, b: &str| {
        value(&format!(
            "mov.f32 %f1, {a}; mov.f32 %f2, {b}; setp.{op}.f32 %p1, %f1, %f2; selp.u32 %r9, 1, 0, %p1;"
        )) == 1
    };
    let (one, two, nan) = ("0f3F800000", "0f40000000", "0f7FC00000");
    for (op, less, equal, greater, unordered) in [
        ("eq", false, true, false, false),
        ("ne", true, false, true, false),
        ("lt", true, false, false, false),
        ("le", true, true, false, false),
        ("gt", false, false, true, false),
        ("ge", false, true, true, false),
        ("equ", false, true, false, true),
        ("neu", true, false, true, true),
        ("ltu", true, false, false, true),
        ("leu", true, true, false, true),
        ("gtu", false, false, true, true),
        ("geu", false, true, true, true),
        ("num", true, true, true, false),
        ("nan", false, false, false, true),
    ] {
        assert_eq!(truth(op, one, two), less, "{op}");
        assert_eq!(truth(op, one, one), equal, "{op}");
        assert_eq!(truth(op, two, one), greater, "{op}");
        assert_eq!(truth(op, nan, one), unordered, "{op}");
    }
    for (body, want) in [
        ("setp.lt.s32 %p1, %r1, 1; selp.b32 %r9, 5, 6, %p1;", 5),
        ("setp.lo.u32 %p1, %r1, 1; selp.b32 %r9, 5, 6, %p1;", 6),
        ("setp.lt.s32 %p1|%p2, %r1, 1; selp.b32 %r9, 5, 6, %p2;", 6),
        (
            "mov.pred %p3, 0; setp.lt.and.s32 %p1, %r1, 1, %p3; selp.b32 %r9, 5, 6, %p1;",
            6,
        ),
        (
            "mov.pred %p3, 0; setp.lt.and.s32 %p1, %r1, 1, !%p3; selp.b32 %r9, 5, 6, %p1;",
            5,
        ),
        (
            "setp.eq.s32 %p1, %r1, %r1; not.pred %p2, %p1; xor.pred %p3, %p1, %p2; selp.b32 %r9, 5, 6, %p3;",
            5,
        ),
        ("set.lt.u32.s32 %r9, %r1, 1;", u32::MAX),
        (
            "mov.f32 %f1, 0f00000001; testp.subnormal.f32 %p1, %f1; selp.b32 %r9, 5, 6, %p1;",
            5,
        ),
        (
            "mov.u32 %r9, 1; setp.eq.s32 %p1, %r1, 0; @%p1 mov.u32 %r9, 2; @!%p1 add.s32 %r9, %r9, 7;",
            8,
        ),
    ] {
        assert_eq!(value(&format!("mov.u32 %r1, -1;\n{body}")), want, "{body}");
    }
}

#[test]
fn memory_of_every_width_and_space() {
    for (body, want) in [
        (
            "mov.u32 %r1, 0x8182; st.global.u32 [%rd1+16], %r1; ld.global.s8 %r9, [%rd1+17];",
            0xffff_ff81u32,
        ),
        (
            "mov.u32 %r1, 0x8182; st.global.u32 [%rd1+16], %r1; ld.global.u8 %r9, [%rd1+17];",
            0x81,
        ),
        (
            "mov.u32 %r1, 0x8182; st.global.u16 [%rd1+16], %r1; ld.global.s16 %r9, [%rd1+16];",
            0xffff_8182,
        ),
        (
            "mov.u32 %r1, 0x8182; st.u8 [%rd1+16], %r1; ld.volatile.u32 %r9, [%rd1+16];",
            0x82,
        ),
        (
            ".local .align 8 .b8 buf[64]; mov.u64 %rd2, buf; cvta.local.u64 %rd3, %rd2; mov.u32 %r1, 77;\
          st.local.u32 [%rd2+60], %r1; ld.u32 %r9, [%rd3+60];",
            77,
        ),
        (
            ".shared .align 8 .b8 sh[64]; mov.u32 %r1, sh; add.s32 %r1, %r1, -64; mov.u32 %r2, 78;\
          st.shared.u32 [%r1+72], %r2; mov.u64 %rd2, sh; cvta.shared.u64 %rd3, %rd2; ld.u32 %r9, [%rd3+8];",
            78,
        ),
        (
            ".shared .b32 sv; mov.u32 %r2, 79; st.shared.u32 [sv], %r2; ld.shared.u32 %r9, [sv];",
            79,
        ),
        ("ld.param.u32 %r9, [out+4];", (BASE >> 32) as u32),
        (
            "mov.b64 %rd2, out; cvta.param.u64 %rd3, %rd2; ld.u32 %r9, [%rd3+4];",
            (BASE >> 32) as u32,
        ),
        (
            "mov.u32 %r1, 1; mov.u32 %r2, 2; st.global.v2.u32 [%rd1+16], {%r1, %r2};\
          ld.global.nc.L1::no_allocate.v2.u32 {%r3, %r9}, [%rd1+16];",
            2,
        ),
        (
            "mov.u32 %r1, 5; st.global.u32 [%rd1+16], %r1; atom.global.add.u32 %r2, [%rd1+16], 3;\
          atom.cas.b32 %r3, [%rd1+16], 8, 100; red.global.max.s32 [%rd1+16], -1; ld.global.u32 %r9, [%rd1+16];",
            100,
        ),
        (
            ".shared .b32 sa; atom.shared.inc.u32 %r2, [sa], 1; atom.shared.inc.u32 %r2, [sa], 1;\
          atom.shared.dec.u32 %r2, [sa], 7; atom.shared.exch.b32 %r9, [sa], 1;",
            7,
        ),
        (
            ".shared .align 8 .b64 sb; atom.shared.add.u64 %rd2, [sb], -1; atom.shared.min.s64 %rd3, [sb], 5;\
          cvt.u32.u64 %r9, %rd3;",
            u32::MAX,
        ),
        (
            "mov.f32 %f1, 0f3F800000; red.global.add.f32 [%rd1+16], %f1; red.global.add.f32 [%rd1+16], %f1;\
          ld.global.u32 %r9, [%rd1+16];",
            2f32.to_bits(),
        ),
        (
            "{ .reg .u64 t; cvta.to.global.u64 t, %rd1; st.global.b32 [t], 9; ld.b32 %r9, [t]; }",
            9,
        ),
        ("isspacep.global %p1, %rd1; selp.u32 %r9, 1, 0, %p1;", 1),
    ] {
        assert_eq!(value(body), want, "{body}");
    }
}

#[test]
fn module_variables_move_with_the_module() {
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n\
        .global .align 4 .u32 a[3] = {1, 2};\n.global .f32 f = 0f40000000;\n.const .align 8 .u64 c[2][1] = {{7}, {-1}};\n\
        .visible .entry k() { .reg .b64 %rd<4>; .reg .b32 %r<4>;\n\
        ld.global.u32 %r1, [a+4]; mov.u64 %rd1, a; add.u32 %r1, %r1, 40; st.global.u32 [%rd1], %r1;\n\
        ld.const.u64 %rd2, [c+8]; cvta.const.u64 %rd3, c; ld.u32 %r2, [%rd3]; st.global.u32 [a+8], %r2; }";
    let module = load(text);
    assert_eq!(module.global_bytes(), 32);
    let memory = Flat::new(256);
    memory.write(128, &module.global_image(0));
    let mut launch = Launch::new(&module, 0, &[]);
    launch.module_base = BASE + 128;
    run_grid(&launch, &memory).unwrap();
    assert_eq!(
        memory.words(128, 8),
        [42, 2, 7, 0x4000_0000, 7, 0, u32::MAX, u32::MAX]
    );
}

#[test]
fn special_registers() {
    let body = format!(
        "mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mov.u32 %r3, %lanemask_lt; popc.b32 %r3, %r3;\
         mov.u32 %r4, %lanemask_ge; popc.b32 %r4, %r4; mov.u32 %r5, %nwarpid; mad.lo.u32 %r9, %r2, 1000, %r1;\
         sub.u32 %r6, %r3, %r1; add.u32 %r7, %r4, %r1; sub.u32 %r7, %r7, 32; sub.u32 %r8, %r5, 3;\
         add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7; add.u32 %r9, %r9, %r8; mov.u64 %rd3, %clock64; {STORE}"
    );
    let out = run_body(&body, 70, 70);
    for (i, v) in out.iter().enumerate() {
        assert_eq!(*v as usize, i / 32 * 1000 + i % 32);
    }
}

#[test]
fn carries_make_wide_sums() {
    // (2^64 - 1) * 3 + 2^32 by 32-bit pieces, then minus 1 by 64-bit ones.
    let words = run_body(
        "mov.u32 %r1, -1; mov.u32 %r2, 3; mul.lo.u32 %r3, %r1, %r2; mul.hi.u32 %r4, %r1, %r2;\
         mad.lo.cc.u32 %r4, %r1, %r2, %r4; madc.hi.u32 %r5, %r1, %r2, 0;\
         add.cc.u32 %r3, %r3, 0; addc.cc.u32 %r4, %r4, 1; addc.u32 %r5, %r5, 0;\
         mov.b64 %rd2, {%r3, %r4}; mov.u64 %rd3, 5; sub.cc.s64 %rd4, %rd3, %rd2; subc.s64 %rd5, 0, 0;\
         st.global.v2.u32 [%rd1], {%r3, %r4}; st.global.u32 [%rd1+8], %r5; st.global.u64 [%rd1+16], %rd4;\
         st.global.u64 [%rd1+24], %rd5;",
        1,
        8,
    );
    let want = u128::from(u64::MAX) * 3 + (1 << 32);
    let low = want as u64;
    assert_eq!(
        words[..3],
        [want as u32, (want >> 32) as u32, (want >> 64) as u32]
    );
    let difference = 5u64.wrapping_sub(low);
    assert_eq!(
        words[4..],
        [
            difference as u32,
            (difference >> 32) as u32,
            u32::MAX,
            u32::MAX
        ]
    );
}
