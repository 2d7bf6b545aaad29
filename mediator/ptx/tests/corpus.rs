//! What compilers and hands write, against results of a reference: the case files of
//! `images/kernels/cases`.
//!
//! `PTX_CORPUS=FOLDER cargo test --release -p turnstile-ptx --test corpus -- --nocapture` runs
//! another folder and prints each case that is not right.

#[path = "common/flat.rs"]
mod flat;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use turnstile_ptx::{
    Control, DeviceMemory, Launch, Limits, MemoryFault, Module, Scratch, Timer, run_block,
};

use flat::{BASE, Flat};

/// Far more than the longest case executes.
const BUDGET: u64 = 50_000_000;

impl Flat {
    /// Places bytes at an address that is a multiple of 256.
    fn place(&self, bytes: &[u8]) -> u64 {
        let mut memory = self.0.borrow_mut();
        let at = memory.len().next_multiple_of(256);
        memory.resize(at, 0);
        memory.extend_from_slice(bytes);
        BASE + at as u64
    }
}

struct Ticks(u64);

impl Timer for Ticks {
    fn now_ns(&mut self) -> u64 {
        self.0
    }
    fn sleep(&mut self, ns: u64) {
        self.0 += ns;
    }
    fn executed(&mut self, warp_instructions: u64) {
        self.0 += warp_instructions;
    }
}

/// What became of a case.
enum Verdict {
    Right,
    Refused(String),
    Wrong(String),
}

fn hex(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let digits = text.as_bytes().chunks_exact(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// A number of a result, as a double; integers are compared as bits before.
fn number(ty: &str, raw: &[u8]) -> f64 {
    match ty {
        "f64" => f64::from_le_bytes(raw.try_into().unwrap()),
        "f32" => f32::from_le_bytes(raw.try_into().unwrap()).into(),
        "bf16" => {
            f32::from_bits(u32::from(u16::from_le_bytes(raw.try_into().unwrap())) << 16).into()
        }
        "f16" => {
            let bits = u16::from_le_bytes(raw.try_into().unwrap());
            let (exponent, fraction) = (i32::from(bits >> 10) & 31, f64::from(bits & 0x3ff));
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                e => (1.0 + fraction / 1024.0) * 2f64.powi(e - 15),
            };
            if bits >> 15 == 1 {
                -magnitude
            } else {
                magnitude
            }
        }
        _ => f64::NAN,
    }
}

/// The first difference between a buffer and what it must hold.
fn difference(ty: &str, tolerance: f64, got: &[u8], want: &[u8]) -> Option<String> {
    let bits: usize = ty
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .unwrap();
    let pairs = got.chunks_exact(bits / 8).zip(want.chunks_exact(bits / 8));
    let mut pairs = pairs.enumerate().filter(|(_, (g, w))| g != w);
    pairs.find_map(|(at, (g, w))| {
        let (x, y) = (number(ty, g), number(ty, w));
        let near = ty.contains('f')
            && ((x.is_nan() && y.is_nan())
                || (x - y).abs() <= tolerance * y.abs().max(1e-3)
                || x == y);
        (!near).then(|| format!("element {at}: {x} {g:02x?}, want {y} {w:02x?}"))
    })
}

fn run(text: &str) -> Verdict {
    let (head, ptx) = text.split_once("---\n").expect("a case has a line ---");
    let refuse = head.lines().any(|line| line == "refuse");
    let module = match Module::load(ptx, &Limits::default()) {
        Ok(module) => module,
        // A refusal is clear if it names what it refuses.
        Err(error) if refuse && error.to_string().contains("not supported") => {
            return Verdict::Right;
        }
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    if refuse {
        return Verdict::Wrong("accepted, and must be refused".to_owned());
    }
    let memory = Flat::new(0);
    let (mut values, mut wanted, mut launch_line) = (Vec::new(), Vec::new(), Vec::new());
    for line in head.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "launch" => launch_line = words[1..].to_vec(),
            "in" => values.push(memory.place(&hex(words[1])).to_le_bytes().to_vec()),
            "zero" => values.push(
                memory
                    .place(&vec![0; words[1].parse().unwrap()])
                    .to_le_bytes()
                    .to_vec(),
            ),
            "val" => values.push(hex(words[1])),
            "out" => {
                let want = hex(words[4]);
                let start = if words[3] == "-" {
                    vec![0; want.len()]
                } else {
                    hex(words[3])
                };
                let at = memory.place(&start);
                values.push(at.to_le_bytes().to_vec());
                wanted.push((words[1], words[2].parse().unwrap(), at, want));
            }
            _ => {}
        }
    }
    let base = memory.place(&module.global_image(0));
    memory.store(base, &module.global_image(base)).unwrap();
    // Loads of a few bytes beyond the last buffer are the reader's own business.
    memory.place(&[0; 256]);
    let Some((index, entry)) = module.entry(launch_line[0]) else {
        return Verdict::Wrong("the module has no such entry".to_owned());
    };
    let mut params = vec![0; entry.param_bytes as usize];
    for (param, value) in entry.params.iter().zip(&values) {
        let at = param.offset as usize;
        params[at..at + value.len()].copy_from_slice(value);
    }
    let size: Vec<u32> = launch_line[1..]
        .iter()
        .map(|word| word.parse().unwrap())
        .collect();
    let mut launch = Launch::new(&module, index, &params);
    launch.grid = [size[0], size[1], size[2]];
    launch.block = [size[3], size[4], size[5]];
    launch.dynamic_shared_bytes = size[6];
    launch.module_base = base;
    let control = Control {
        abort: &AtomicBool::new(false),
        pause: &AtomicBool::new(false),
        budget: BUDGET,
    };
    let mut scratch = Scratch::new();
    for n in 0..size[0] * size[1] * size[2] {
        let block = [n % size[0], n / size[0] % size[1], n / size[0] / size[1]];
        if let Err(error) = run_block(
            &launch,
            block,
            &memory,
            &mut Ticks(0),
            &control,
            &mut scratch,
        ) {
            return Verdict::Wrong(error.to_string());
        }
    }
    for (ty, tolerance, at, want) in wanted {
        let mut got = vec![0; want.len()];
        memory.load(at, &mut got).unwrap();
        if let Some(text) = difference(ty, tolerance, &got, &want) {
            return Verdict::Wrong(text);
        }
    }
    Verdict::Right
}

fn cases(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cases(&path, found);
        } else if path.extension().is_some_and(|e| e == "case") {
            found.push(path);
        }
    }
}

/// Cases of a folder that are right, refused and wrong.
type Counts = BTreeMap<String, [usize; 3]>;

fn survey(root: &Path) -> Counts {
    let mut found = Vec::new();
    cases(root, &mut found);
    found.sort();
    let mut counts = Counts::new();
    for path in found {
        let group = path
            .parent()
            .and_then(Path::file_name)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        // A file can hold several cases.
        let text = std::fs::read_to_string(&path).unwrap();
        for (n, text) in text.split("===\n").filter(|t| !t.is_empty()).enumerate() {
            let verdict = run(text);
            let name = path.file_stem().unwrap().to_string_lossy();
            let row = counts.entry(group.clone()).or_default();
            match verdict {
                Verdict::Right => row[0] += 1,
                Verdict::Refused(why) => {
                    row[1] += 1;
                    println!("refused {group}/{name}#{n}: {why}");
                }
                Verdict::Wrong(why) => {
                    row[2] += 1;
                    println!("WRONG   {group}/{name}#{n}: {why}");
                }
            }
        }
    }
    println!(
        "{:24} {:>6} {:>8} {:>6}",
        "corpus", "right", "refused", "wrong"
    );
    for (group, [right, refused, wrong]) in &counts {
        println!("{group:24} {right:6} {refused:8} {wrong:6}");
    }
    counts
}

/// Right cases by folder; all of a folder's cases are right.
const RIGHT: [(&str, usize); 8] = [
    ("G_sm75", 55),
    ("O3_sm75", 88),
    ("clang_sm75", 40),
    ("math_sm75", 83),
    ("numba_sm75", 6),
    ("triton_sm75", 3),
    ("triton_sm80", 4),
    ("triton_sm90", 4),
];

#[test]
fn what_compilers_write_is_accepted_and_right() {
    if let Ok(folder) = std::env::var("PTX_CORPUS") {
        survey(Path::new(&folder));
        return;
    }
    let counts = survey(&folder());
    for (group, right) in RIGHT {
        assert_eq!(counts.get(group), Some(&[right, 0, 0]), "{group}");
    }
    assert_eq!(counts.len(), RIGHT.len());
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/kernels/cases")
}

/// A form of `forms.txt` in a kernel with a register of each kind.
fn form(instruction: &str) -> String {
    format!(
        ".version 7.8\n.target sm_90\n.address_size 64\n\
         .global .align 16 .u32 gv[4] = {{1, 2, 3, 4}};\n.const .align 4 .u32 cv = 99;\n\
         .visible .entry k(.param .u64 p)\n{{\n.reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>;\n\
         .reg .b64 %d<32>; .reg .f32 %f<16>; .reg .f64 %g<16>;\n\
         .shared .align 16 .b8 sm[1024]; .local .align 16 .b8 lo[256];\n\
         ld.param.u64 %d1, [p]; mov.u32 %r1, 0x12345678; mov.u32 %r2, 5; mov.u32 %r3, 0x00abcdef;\n\
         mov.u32 %r5, sm; mov.u64 %d5, lo; mbarrier.init.shared.b64 [sm], 1;\n\
         {instruction};\nEND: ret;\n}}\n"
    )
}

#[test]
fn each_legal_form_is_accepted_and_runs() {
    let list = std::fs::read_to_string(folder().join("forms.txt")).unwrap();
    let mut wrong = Vec::new();
    for line in list.lines() {
        let (refused, instruction) = (line.starts_with('-'), &line[1..]);
        let head = "launch k 1 1 1 32 1 1 0\nzero 8192\n";
        let refuse = if refused { "refuse\n" } else { "" };
        let text = format!("{head}{refuse}---\n{}", form(instruction));
        match run(&text) {
            Verdict::Right => {}
            Verdict::Refused(why) | Verdict::Wrong(why) => wrong.push(format!("{line}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(list.lines().count() > 3000);
}
