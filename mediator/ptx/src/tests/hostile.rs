//! Text from an enemy: neither loading nor running it may panic.

use super::kernels::ALL;
use super::*;
use proptest::prelude::*;

/// Loads, and runs what loads, with a budget.
fn survive(text: &str) {
    let Ok(module) = Module::load(text, &Limits::default()) else {
        return;
    };
    let memory = Flat::new(1 << 12);
    for (index, entry) in module.entries().enumerate() {
        let mut params = vec![0; entry.param_bytes as usize];
        // Plausible pointers, so that some accesses succeed.
        for (i, chunk) in params.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&(BASE + 64 * i as u64).to_le_bytes());
        }
        let mut launch = Launch::new(&module, index, &params);
        launch.block = [40, 2, 1];
        launch.dynamic_shared_bytes = 64;
        launch.module_base = BASE;
        let _ = run_timed(&launch, &memory, &mut Virtual::default(), 20_000);
    }
}

/// Words from which almost-valid bodies are made.
const PIECES: [&str; 96] = [
    "call",
    "(%r1)",
    "f",
    "(%rd1)",
    "proto",
    ".callprototype",
    "brx.idx",
    ".branchtargets",
    "match.any.sync.b32",
    "redux.sync.add.s32",
    "elect.sync",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
    "wmma.load.a.sync.aligned.row.m16n16k16.f16",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16",
    "cp.async.ca.shared.global",
    "mbarrier.arrive.shared.b64",
    "fma.rz",
    ".f16x2",
    ".bf16",
    "vadd4.u32.u32.u32",
    "cvt.rn.satfinite.e4m3x2.f32",
    "{%f1, %f2, %f3, %f4}",
    "[%r1]",
    "(1 << 3)",
    "-(",
    "? 1",
    "alloca.u64",
    "16",
    "set.lt.f16x2",
    "prmt.b32.ecl",
    "lop3.or.b32",
    "%r1|%p1",
    "add",
    "sub",
    "mul",
    "mad",
    ".lo",
    ".hi",
    ".wide",
    ".s32",
    ".u32",
    ".b32",
    ".s64",
    ".u64",
    ".b64",
    ".f32",
    ".f64",
    ".s16",
    ".u8",
    ".pred",
    "ld",
    "st",
    ".global",
    ".shared",
    ".local",
    ".param",
    ".v2",
    ".v4",
    "atom",
    ".cas",
    ".exch",
    "shfl.sync.idx",
    "vote.sync.ballot",
    "bar.sync",
    "bra",
    "L",
    ":",
    "ret",
    ";",
    ",",
    "%r1",
    "%r2",
    "%rd1",
    "%f1",
    "%p1",
    "%rs1",
    "[%rd1]",
    "[%r1+4]",
    "{%r1, %r2}",
    "|",
    "@%p1",
    "@!%p1",
    "0",
    "-1",
    "0f3F800000",
    "0xffffffffffffffff",
    "setp",
    ".lt",
    "cvt",
    ".rn",
    ".rzi",
    "mov",
    "%tid.x",
    "{",
    "}",
    "out",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_bytes(text in prop::collection::vec(any::<u8>(), 0..400)) {
        survive(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn random_pieces(picks in prop::collection::vec((0usize..96, any::<bool>()), 0..120)) {
        let body: String = picks.iter().map(|(i, space)| format!("{}{}", PIECES[*i], if *space { " " } else { "" })).collect();
        survive(&format!("{}.func f(.reg .b32 x) {{ ret; }}\n", program(&body)));
    }

    #[test]
    fn mutated_kernels(
        which in 0usize..8,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<u8>(), any::<prop::sample::Index>()), 1..12),
    ) {
        let mut text = ALL[which].1.as_bytes().to_vec();
        for (at, kind, byte, other) in edits {
            let (at, other) = (at.index(text.len()), other.index(text.len()));
            match kind {
                0 => text[at] = byte & 0x7f,
                1 => text.swap(at, other),
                2 => { text.remove(at); }
                _ => text[at] = b'0' + byte % 10,
            }
        }
        survive(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn other_numbers(which in 0usize..8, edits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..10), 1..20)) {
        // Other registers, immediates, offsets and labels: most of these load, but make wrong
        // accesses.
        let mut roomy = String::new();
        for line in ALL[which].1.lines() {
            // As many registers as numbers of two digits name.
            match line.split_once('<') {
                Some((name, _)) if line.contains(".reg") => roomy += &format!("{name}<800>;\n"),
                _ => roomy += &format!("{line}\n"),
            }
        }
        let start = roomy.find("ld.param").unwrap_or(0);
        let mut text = roomy.into_bytes();
        // Digits of registers, immediates and offsets, not those of types.
        let digits: Vec<usize> = (start..text.len())
            .filter(|i| text[*i].is_ascii_digit())
            .filter(|i| {
                let before = text[..*i].iter().rposition(|b| !b.is_ascii_digit()).unwrap_or(0);
                let name = &text[..=before];
                let ends = |tail: &[u8]| name.ends_with(tail);
                ends(b"%r") || ends(b"%rd") || ends(b"%f") || ends(b"%p") || ends(b" ") || ends(b"+")
            })
            .collect();
        for (at, digit) in edits {
            text[digits[at.index(digits.len())]] = b'0' + digit;
        }
        survive(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn swapped_lines(which in 0usize..8, swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8)) {
        let mut lines: Vec<&str> = ALL[which].1.lines().collect();
        // Below the header and the register declarations programs stay loadable and become strange.
        let body = lines.iter().position(|l| l.contains(".reg .b64")).unwrap_or(0) + 1;
        for (a, b) in swaps {
            let n = lines.len() - body;
            lines.swap(body + a.index(n), body + b.index(n));
        }
        survive(&lines.join("\n"));
    }
}

#[test]
fn great_depths_and_lengths() {
    survive(&"{".repeat(1 << 20));
    survive(&program(&"{".repeat(1 << 16)));
    survive(&format!("{}{}", program(""), ".func f() {".repeat(1 << 16)));
    survive(&program(&format!("mov.u32 %r1, {};", "9".repeat(1 << 16))));
    survive(&program(&format!(
        "mov.u32 %r1, %r{};",
        "1".repeat(1 << 16)
    )));
    survive(&program(&format!(
        "add{} %r1, %r1, %r1;",
        ".s32".repeat(1 << 16)
    )));
    survive(&program(&"L: bra L;".repeat(3)));
    survive(&program(&"add.u32 %r1, %r1, %r1;\n".repeat(100_000)));
    survive(".version 9.0 .target sm_75 .global .b8 x[16777217];");
    survive(".version 9.0 .target sm_75 .global .align 4096 .b8 x[1] = {{{{{1}}}}};");
}
