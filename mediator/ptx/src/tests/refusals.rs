//! Which texts are refused, at which line, and with which message.

use super::*;

fn refusal(body: &str) -> LoadError {
    Module::load(&program(body), &Limits::default()).expect_err(body)
}

#[test]
fn unsupported_instructions_are_named_with_their_line() {
    // The body begins at line 9.
    for (body, line, text) in [
        (
            "\n\nwgmma.fence.sync.aligned;",
            11,
            "Line 11: instruction `wgmma.fence.sync.aligned` is not supported",
        ),
        (
            "add.rna.f32 %f1, %f2, %f3;",
            9,
            "Line 9: instruction `add.rna.f32` is not supported",
        ),
        (
            "cvt.f16.f64 %rs1, %fd1;",
            9,
            "Line 9: instruction `cvt.f16.f64` is not supported",
        ),
        (
            "tex.2d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1,%r2}];",
            9,
            "",
        ),
        (
            "call.uni (retval0), vprintf, (param0, param1);",
            9,
            "Line 9: `vprintf` is not declared",
        ),
        (
            "mov.u32 %r1, %nosuch;",
            9,
            "Line 9: `%nosuch` is not declared",
        ),
        (
            "mov.u32 %r1, %rd1;",
            9,
            "Line 9: `%rd1` has 64 bits, the instruction takes 32",
        ),
        (
            "add.s32 %r64, %r1, %r1;",
            9,
            "Line 9: `%r64` is not declared",
        ),
        (
            "add.s32 %r01, %r1, %r1;",
            9,
            "Line 9: `%r01` is not declared",
        ),
        ("bra NOWHERE;", 9, "Line 9: label `NOWHERE` does not exist"),
        ("L:\nL:", 10, "Line 10: label `L` stands twice"),
        (
            "ld.shared.u32 %r1, [out];",
            9,
            "Line 9: `out` is in another state space",
        ),
        (
            "st.param.u64 [out], %rd1;",
            9,
            "Line 9: instruction `st.param.u64` is not supported",
        ),
        ("atom.global.min.f32 %r1, [%rd1], %r2;", 9, ""),
        ("add.s32 %r1, %r2", 10, "Line 10: expected `;`, found `ret`"),
        (
            "add.s32 %r1, %r2;",
            9,
            "Line 9: the instruction takes another number of operands",
        ),
        ("@%r1 bra L;", 9, "Line 9: `%r1` is no predicate"),
        (
            ".reg .b128 %q;",
            9,
            "Line 9: `.b128` in a declaration is not supported",
        ),
        (".reg .b32 %r<5>;", 9, "Line 9: `%r` is declared twice"),
        (".reg .b32 %x<5000>;", 9, "Line 9: more than 4096 registers"),
        (
            ".local .b8 l[70000];",
            9,
            "Line 9: more than 65536 bytes of local memory",
        ),
        (
            ".shared .b8 s[100000];",
            9,
            "Line 9: more than 98304 bytes of shared memory",
        ),
        (
            "mov.f32 %f1, 5;",
            9,
            "Line 9: literal does not fit the type",
        ),
        (
            "mul.s32 %r1, %r2, %r3;",
            9,
            "Line 9: `mul` of 32-bit Signed is not supported",
        ),
    ] {
        let error = refusal(body);
        assert_eq!(error.line(), line, "{body}: {error}");
        if !text.is_empty() {
            assert_eq!(error.to_string(), text);
        }
    }
}

#[test]
fn headers_and_directives() {
    let head = ".version 9.0\n.target sm_75\n.address_size 64\n";
    for (text, line) in [
        (String::new(), 1),
        (".version 10.0".into(), 1),
        (".version 9.0\n.target sm_75\n.address_size 32".into(), 3),
        (format!("{head}.texref t;"), 4),
        (format!("{head}.global .u32 x[];"), 4),
        (format!("{head}.extern .global .u32 x;"), 4),
        (format!("{head}.global .u32 x = {{1, 2}};"), 4),
        (format!("{head}.global .u64 x = y;"), 4),
        (format!("{head}.global .b8 x[1000000000000];"), 4),
        (
            format!("{head}.global .b8 x[4294967295][4294967295][4294967295];"),
            4,
        ),
        (format!("{head}.entry k() {{"), 4),
        (format!("{head}.entry k() {{ret;}}\n.entry k() {{ret;}}"), 5),
        (format!("{head}.entry k(.param .b8 p[9999]) {{ret;}}"), 4),
        (format!("{head}/* no end"), 4),
    ] {
        let error = Module::load(&text, &Limits::default()).expect_err(&text);
        assert_eq!(error.line(), line, "{text}: {error}");
    }
    // Uncalled functions, debugging lines and sections are accepted.
    let fine = format!(
        "{head}.func (.param .b32 r) f(.param .b32 a)\n{{ call x; }}\n.extern .func g();\n.file 1 \"a.cu\"\n\
         .visible .entry k() .maxntid 128, 1, 1 .minnctapersm 2\n{{\n.loc 1 2 3\n.pragma \"nounroll\"; ret;\n}}\n\
         .section .debug_str {{ .b8 1, 2 }}\n"
    );
    let module = load(&fine);
    assert_eq!(module.entry("k").unwrap().1.max_threads, Some(128));
}

#[test]
fn limits_hold() {
    let text = program("add.u32 %r1, %r1, %r1;");
    let tight = |limits: Limits| Module::load(&text, &limits).unwrap_err().to_string();
    let all = Limits::default();
    assert_eq!(
        tight(Limits {
            text_bytes: 10,
            ..all
        }),
        "Line 1: more than 10 bytes of text"
    );
    assert_eq!(
        tight(Limits {
            instructions: 2,
            ..all
        }),
        "Line 10: more than 2 instructions"
    );
    assert_eq!(
        tight(Limits { entries: 0, ..all }),
        "Line 4: more than 0 entries"
    );
    assert_eq!(
        tight(Limits {
            registers: 100,
            ..all
        }),
        "Line 6: more than 100 registers"
    );
    let deep = "{".repeat(100) + &"}".repeat(100);
    assert!(matches!(
        refusal(&deep),
        LoadError::Limit {
            what: "nested blocks",
            ..
        }
    ));
    let long = refusal(&format!("mov.u32 %r1, {};", "x".repeat(10_000)));
    assert!(long.to_string().len() < 300);
}
