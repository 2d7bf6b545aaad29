//! Memory that a module takes while it is loaded and afterwards, for each byte of its text. The
//! daemon charges a module by this factor (`MODULE_EXPANSION` of its limits).

use std::fs;
use std::process::Command;

use turnstile_ptx::{Limits, Module};

/// The factor of the daemon's limits.
const EXPANSION: u64 = 24;
const TEXT_BYTES: usize = 4 << 20;
const HEAD: &str = ".version 9.0\n.target sm_75\n.address_size 64\n";

/// A text of at most [`TEXT_BYTES`] with as many of `part` as fit.
fn dense(begin: &str, part: impl Fn(usize) -> String, end: &str) -> String {
    let mut text = format!("{HEAD}{begin}");
    for number in 0.. {
        let part = part(number);
        if text.len() + part.len() + end.len() > TEXT_BYTES {
            break;
        }
        text.push_str(&part);
    }
    text + end
}

/// Most pages that this process has had since [`reset_peak`], in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

/// SOURCE: proc_pid_clear_refs(5): 5 resets the peak resident set size.
fn reset_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

#[test]
fn no_text_takes_more_memory_than_it_is_charged() {
    const BODY: &str =
        ".visible .entry f()\n{\n.reg .pred %p<8>;.reg .b32 %r<8>;.reg .b64 %d<8>;\n";
    const END: &str = "\nret;\n}\n";
    let fixed = |part: &'static str| move |_| part.to_owned();
    let texts = [
        ("ret", dense(BODY, fixed("ret;"), END)),
        ("add", dense(BODY, fixed("add.s32 %r1,%r2,%r3;"), END)),
        ("mov", dense(BODY, fixed("mov.b32 %r1,1;"), END)),
        ("predicate", dense(BODY, fixed("@%p1 ret;"), END)),
        ("bar", dense(BODY, fixed("bar.sync 0;"), END)),
        (
            "vector",
            dense(
                BODY,
                fixed("ld.global.v4.u32 {%r1,%r2,%r3,%r4},[%d1];"),
                END,
            ),
        ),
        ("labels", dense(BODY, |n| format!("L{n:x}:"), END)),
        (
            "branches",
            dense(BODY, |n| format!("L{n:x}:bra L{n:x};"), END),
        ),
        (
            "entries",
            dense("", |n| format!(".entry f{n:x}(){{ret;}}"), ""),
        ),
        ("globals", dense("", |n| format!(".global .b8 g{n:x};"), "")),
        (
            "shared",
            dense(BODY, |n| format!(".shared .b8 s{n:x}[1];"), END),
        ),
    ];
    let limits = Limits::default();
    let Some(only) = std::env::var_os("MEMORY_TEXT") else {
        // A process each: memory that one text has freed would hide what the next one takes.
        for (name, _) in texts {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let ended = child.arg("--nocapture").env("MEMORY_TEXT", name).status();
            assert!(ended.unwrap().success(), "{name}");
        }
        return;
    };
    for (name, text) in texts.into_iter().filter(|(name, _)| *name == only) {
        reset_peak();
        let before = peak_bytes();
        let loaded = Module::load(&text, &limits);
        let taken = peak_bytes().saturating_sub(before) + text.len() as u64;
        let factor = taken as f64 / text.len() as f64;
        println!(
            "{name}: {factor:.1} bytes for each of {}, {:?}",
            text.len(),
            loaded.err()
        );
        assert!(factor <= EXPANSION as f64, "{name}: {factor:.1}");
    }
}
