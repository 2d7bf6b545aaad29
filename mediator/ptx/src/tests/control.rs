//! Divergence, shuffles, barriers, and how a block ends.

use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

/// What each of `threads` threads leaves in `%r9`; `%r1` is its thread index.
fn per_thread(body: &str, threads: u32) -> Vec<u32> {
    run_body(
        &format!("mov.u32 %r1, %tid.x;\n{body}\n{STORE}"),
        threads,
        threads as usize,
    )
}

#[test]
fn nested_branches_rejoin() {
    let out = per_thread(
        "mov.u32 %r9, 0; setp.lt.u32 %p1, %r1, 16; @%p1 bra THEN;\n\
         and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra EVEN;\n\
         add.u32 %r9, %r9, 1; bra JOIN2;\nEVEN: add.u32 %r9, %r9, 2;\nJOIN2: add.u32 %r9, %r9, 10; bra JOIN;\n\
         THEN: and.b32 %r2, %r1, 3; setp.ne.u32 %p2, %r2, 0; @%p2 bra SKIP; add.u32 %r9, %r9, 4;\n\
         SKIP: add.u32 %r9, %r9, 20;\n\
         JOIN: activemask.b32 %r3; popc.b32 %r3, %r3; mad.lo.u32 %r9, %r3, 1000, %r9;",
        32,
    );
    for (i, v) in out.iter().enumerate() {
        let path = if i < 16 {
            20 + if i % 4 == 0 { 4 } else { 0 }
        } else {
            10 + 1 + u32::from(i % 2 == 0)
        };
        assert_eq!(*v, 32_000 + path, "thread {i}: all lanes meet again");
    }
}

#[test]
fn loops_with_a_trip_count_per_lane() {
    let out = per_thread(
        "mov.u32 %r9, 0; mov.u32 %r2, 0;\n\
         OUTER: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE; mov.u32 %r3, 0;\n\
         INNER: add.u32 %r9, %r9, 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r2; @%p2 bra INNER;\n\
         add.u32 %r2, %r2, 1; setp.eq.u32 %p3, %r2, 40; @%p3 ret; bra OUTER;\n\
         DONE: activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.u32 %r9, %r4, 100000, %r9;",
        45,
    );
    for (i, v) in out.iter().enumerate() {
        let (first, alive) = (i / 32 * 32, if i < 32 { 32 } else { 8 });
        let work: usize = (0..i).map(|j| j.max(1)).sum();
        // Those that reached 40 turns left without storing.
        let want = if i >= 40 { 0 } else { work + alive * 100_000 };
        assert_eq!(*v as usize, want, "thread {i} of the warp at {first}");
    }
}

#[test]
fn shuffles_wait_for_lanes_that_took_another_path() {
    // The upper half runs a block after the join.
    let out = per_thread(
        "mov.u32 %r9, %r1; mov.u32 %r2, 0; setp.ge.u32 %p1, %r1, 16; @%p1 bra FAR;\n\
         JOIN: shfl.sync.bfly.b32 %r3, %r9, 16, 31, -1; shfl.sync.idx.b32 %r4|%p2, %r9, 40, 31, -1;\n\
         mad.lo.u32 %r9, %r4, 1000, %r3; add.u32 %r2, %r2, 1; setp.eq.u32 %p3, %r2, 1; bra END;\n\
         FAR: add.u32 %r9, %r9, 100; bra JOIN;\nEND:",
        32,
    );
    for (i, v) in out.iter().enumerate() {
        let other = if i < 16 { i + 16 + 100 } else { i - 16 };
        assert_eq!(*v as usize, 8 * 1000 + other, "thread {i}");
    }
}

#[test]
fn shuffle_modes_and_segments() {
    for (op, f) in [
        (
            "up.b32 %r9|%p1, %r1, 3, 0",
            (|l: u32| if l >= 3 { l - 3 } else { l }) as fn(u32) -> u32,
        ),
        ("down.b32 %r9|%p1, %r1, 3, 31", |l| {
            if l + 3 <= 31 { l + 3 } else { l }
        }),
        ("down.b32 %r9|%p1, %r1, 3, 0x181f", |l| {
            if l % 8 + 3 <= 7 { l + 3 } else { l }
        }),
        ("bfly.b32 %r9|%p1, %r1, 5, 31", |l| l ^ 5),
        ("idx.b32 %r9|%p1, %r1, 2, 0x181f", |l| l / 8 * 8 + 2),
    ] {
        let out = per_thread(&format!("shfl.sync.{op}, -1;"), 32);
        let want: Vec<u32> = (0..32).map(f).collect();
        assert_eq!(out, want, "{op}");
    }
    let absent = per_thread("shfl.sync.down.b32 %r9, %r1, 1, 31, -1;", 3);
    assert_eq!(absent, [1, 2, 0], "a lane that is not there reads as 0");
}

#[test]
fn votes() {
    let setup = "setp.lt.u32 %p1, %r1, 5; mov.u32 %r9, 0;";
    let ballot = per_thread(&format!("{setup} vote.sync.ballot.b32 %r9, %p1, -1;"), 40);
    assert_eq!((ballot[0], ballot[31], ballot[32]), (31, 31, 0));
    for (mode, want) in [("any", [1, 0]), ("all", [0, 0]), ("uni", [0, 1])] {
        let body = format!("{setup} vote.sync.{mode}.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;");
        let out = per_thread(&body, 64);
        assert_eq!([out[0], out[33]], want, "{mode}");
    }
    // Halves of the warp vote apart in one instruction.
    let halves = "setp.lt.u32 %p3, %r1, 16; selp.b32 %r2, 0xffff, 0xffff0000, %p3;";
    let out = per_thread(
        &format!("{setup}{halves} vote.sync.any.pred %p2, %p1, %r2; selp.u32 %r9, 1, 0, %p2;"),
        32,
    );
    assert_eq!([out[3], out[20]], [1, 0]);
}

#[test]
fn barriers_order_warps() {
    // Each warp reads what the next one wrote; an early exit counts as arrived.
    let out = per_thread(
        ".shared .align 4 .b8 cell[512];\n\
         setp.ge.u32 %p1, %r1, 96; @%p1 exit; mov.u32 %r2, cell; shl.b32 %r3, %r1, 2; add.u32 %r3, %r2, %r3;\n\
         mul.lo.u32 %r4, %r1, 3; st.shared.u32 [%r3], %r4; bar.sync 0; add.u32 %r5, %r1, 33;\n\
         rem.u32 %r5, %r5, 96; shl.b32 %r5, %r5, 2; add.u32 %r5, %r2, %r5; ld.shared.u32 %r9, [%r5]; barrier.sync 1;",
        128,
    );
    for (i, v) in out.iter().enumerate() {
        let want = if i < 96 { (i + 33) % 96 * 3 } else { 0 };
        assert_eq!(*v as usize, want);
    }
}

#[test]
fn barriers_in_both_arms_meet() {
    let out = per_thread(
        "mov.u32 %r9, 0; setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW; bar.sync 0; mov.u32 %r9, 1; bra END;\n\
         LOW: bar.sync 0; mov.u32 %r9, 2;\nEND: bar.sync 0;",
        64,
    );
    assert_eq!([out[0], out[16], out[40]], [2, 1, 1]);
}

#[test]
fn barriers_with_a_count_and_reductions() {
    // The second warp announces, the first waits for both.
    let out = per_thread(
        ".shared .b32 word; setp.lt.u32 %p1, %r1, 32; mov.u32 %r9, 0; @%p1 bra WAIT;\n\
         st.shared.u32 [word], 55; bar.arrive 3, 64; bra END;\n\
         WAIT: bar.sync 3, 64; ld.shared.u32 %r9, [word];\nEND:",
        64,
    );
    assert_eq!([out[0], out[32]], [55, 0]);
    let out = per_thread(
        "setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r9, 0, %p1;",
        96,
    );
    assert!(out.iter().all(|v| *v == 40));
    let body = "setp.lt.u32 %p1, %r1, 40; bar.red.or.pred %p2, 0, !%p1; bar.red.and.pred %p3, 0, %p1;\
                selp.u32 %r9, 1, 0, %p2; @%p3 add.u32 %r9, %r9, 2;";
    assert!(per_thread(body, 96).iter().all(|v| *v == 1));
}

#[test]
fn lanes_and_warps_that_wait_for_each_other_make_progress() {
    // Lane 31 of the second warp writes `door`, for which all others spin; the write is after the
    // loop.
    let out = per_thread(
        ".shared .b32 door; mov.u32 %r9, 3; setp.eq.u32 %p1, %r1, 63; @%p1 bra OPEN;\n\
         SPIN: ld.volatile.shared.u32 %r2, [door]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; bra END;\n\
         OPEN: st.volatile.shared.u32 [door], 1;\nEND:",
        64,
    );
    assert!(out.iter().all(|v| *v == 3));
    // A lock taken lane by lane.
    let out = per_thread(
        ".shared .b32 lock; .shared .b32 count;\n\
         AGAIN: atom.shared.cas.b32 %r2, [lock], 0, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra AGAIN;\n\
         ld.shared.u32 %r9, [count]; add.u32 %r3, %r9, 1; st.shared.u32 [count], %r3; atom.shared.exch.b32 %r4, [lock], 0;",
        64,
    );
    let mut sorted = out;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..64).collect::<Vec<_>>());
}

fn fails(body: &str, threads: u32) -> ExecError {
    let text = program(body);
    let module = load(&text);
    let memory = Flat::new(4096);
    let params = Params::default().u64(BASE).0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [threads, 1, 1];
    run_timed(&launch, &memory, &mut Virtual::default(), 100_000).unwrap_err()
}

#[test]
fn faults_name_address_thread_and_line() {
    let fault = fails(
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 512;\nadd.s64 %rd3, %rd1, %rd2;\n\nst.global.u32 [%rd3], 1;",
        32,
    );
    assert_eq!(
        fault,
        ExecError::Fault {
            fault: MemoryFault::Unmapped,
            va: BASE + 4096,
            block: [0; 3],
            thread: [8, 0, 0],
            line: 13,
        }
    );
    assert_eq!(
        fault.to_string(),
        "Address is not mapped at 0x100001000: block [0, 0, 0], thread [8, 0, 0], line 13"
    );
    for (body, want) in [
        ("ld.global.u32 %r1, [%rd1+2];", MemoryFault::Misaligned),
        (
            "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+8];",
            MemoryFault::Misaligned,
        ),
        ("ld.global.u32 %r1, [0];", MemoryFault::Unmapped),
        ("ld.shared.u32 %r1, [0];", MemoryFault::Unmapped),
        (
            ".shared .b32 s; atom.shared.add.u32 %r1, [s+16], 1;",
            MemoryFault::Unmapped,
        ),
        (
            ".local .b32 s; st.local.u32 [s+16], 1;",
            MemoryFault::Unmapped,
        ),
        ("ld.param.u32 %r1, [out+8];", MemoryFault::Unmapped),
        (
            "mov.b64 %rd2, out; cvta.param.u64 %rd2, %rd2; st.u32 [%rd2], 1;",
            MemoryFault::ReadOnly,
        ),
        (
            "mov.u64 %rd2, -8; ld.u64 %rd3, [%rd2];",
            MemoryFault::Unmapped,
        ),
    ] {
        match fails(body, 1) {
            ExecError::Fault { fault, .. } => assert_eq!(fault, want, "{body}"),
            other => panic!("{body}: {other}"),
        }
    }
}

#[test]
fn endless_and_stuck_blocks_end() {
    assert_eq!(fails("L: bra L;", 32), ExecError::Budget);
    assert_eq!(fails("L: nanosleep.u32 5; bra L;", 32), ExecError::Budget);
    assert!(matches!(fails("trap;", 1), ExecError::Trap { line: 9, .. }));
    assert!(matches!(
        fails("bar.sync 16;", 1),
        ExecError::BarrierId { id: 16, .. }
    ));
    assert!(matches!(
        fails("bar.sync 1, 64;", 32),
        ExecError::Deadlock { .. }
    ));
    let module = load(&program("L: bra L;"));
    let params = Params::default().u64(BASE).0;
    let launch = Launch::new(&module, 0, &params);
    let abort = AtomicBool::new(true);
    let control = Control {
        abort: &abort,
        pause: &AtomicBool::new(false),
        budget: u64::MAX,
    };
    let (memory, mut timer) = (Flat::new(0), Virtual::default());
    let end = run_block(
        &launch,
        [0; 3],
        &memory,
        &mut timer,
        &control,
        &mut Scratch::new(),
    );
    assert_eq!(end, Err(ExecError::Aborted));
}

#[test]
fn launches_are_checked() {
    let module = load(&program(".shared .b8 big[90000];"));
    let params = Params::default().u64(BASE).0;
    let good = Launch::new(&module, 0, &params);
    assert!(good.check().is_ok());
    for bad in [
        Launch { entry: 1, ..good },
        Launch {
            block: [0, 1, 1],
            ..good
        },
        Launch {
            block: [1025, 1, 1],
            ..good
        },
        Launch {
            block: [1 << 16, 1 << 16, 1],
            ..good
        },
        Launch {
            grid: [1, 0, 1],
            ..good
        },
        Launch {
            params: &params[..7],
            ..good
        },
        Launch {
            dynamic_shared_bytes: 9000,
            ..good
        },
        Launch {
            dynamic_shared_bytes: u32::MAX,
            ..good
        },
    ] {
        assert!(matches!(bad.check(), Err(ExecError::Launch { .. })));
    }
}

#[test]
fn nothing_is_left_for_the_next_block() {
    let dirty = load(&program(
        ".shared .b8 s[256]; .local .b8 l[64]; mov.u32 %r9, 0xdead; st.shared.u32 [s+16], %r9; st.local.u32 [l+16], %r9;",
    ));
    let reader = load(&program(
        ".shared .b8 s[256]; .local .b8 l[64]; ld.shared.u32 %r2, [s+16]; ld.local.u32 %r3, [l+16];\
         or.b32 %r9, %r9, %r2; or.b32 %r9, %r9, %r3; st.global.u32 [%rd1], %r9;",
    ));
    let params = Params::default().u64(BASE).0;
    let memory = Flat::new(64);
    memory.write_words(0, [1]);
    let (mut scratch, mut timer) = (Scratch::new(), Virtual::default());
    let abort = AtomicBool::new(false);
    let control = Control {
        abort: &abort,
        pause: &AtomicBool::new(false),
        budget: 1 << 20,
    };
    for module in [&dirty, &reader] {
        let launch = Launch::new(module, 0, &params);
        run_block(&launch, [0; 3], &memory, &mut timer, &control, &mut scratch).unwrap();
    }
    assert_eq!(memory.words(0, 1), [0]);
}

/// A random structured program, as PTX and as a function of the thread index.
#[derive(Debug, Clone)]
enum Tree {
    Add(u32),
    If(u32, Vec<Tree>, Vec<Tree>),
    Loop(u32, Vec<Tree>),
    Leave(u32),
    Shuffle,
}

fn trees() -> impl Strategy<Value = Vec<Tree>> {
    let leaf = prop_oneof![
        4 => (0u32..1000).prop_map(Tree::Add),
        1 => (0u32..8).prop_map(Tree::Leave),
        1 => Just(Tree::Shuffle),
    ];
    let tree = leaf.prop_recursive(4, 24, 4, |inner| {
        let list = prop::collection::vec(inner, 0..4);
        prop_oneof![
            (0u32..5, list.clone(), list.clone()).prop_map(|(b, x, y)| Tree::If(b, x, y)),
            (1u32..4, list).prop_map(|(m, x)| Tree::Loop(m, x)),
        ]
    });
    prop::collection::vec(tree, 1..5)
}

/// Emits PTX; `%r9` is the value, `%r1` the thread, loop counters are `%r10` and up by depth.
fn emit(trees: &[Tree], depth: u32, label: &mut u32, out: &mut String) {
    for tree in trees {
        *label += 1;
        let id = *label;
        match tree {
            Tree::Add(n) => *out += &format!("mad.lo.u32 %r9, %r9, 3, {n};\n"),
            Tree::Leave(n) => {
                *out += &format!("rem.u32 %r2, %r9, 29; setp.eq.u32 %p1, %r2, {n}; @%p1 bra END;\n")
            }
            // Each lane reads its own value, whichever lanes are active.
            Tree::Shuffle => {
                *out += "mov.u32 %r3, %laneid; mov.u32 %r4, %lanemask_eq; shfl.sync.idx.b32 %r9, %r9, %r3, 31, %r4;\n";
            }
            Tree::If(bit, yes, no) => {
                *out += &format!(
                    "shr.u32 %r2, %r9, {bit}; and.b32 %r2, %r2, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra E{id};\n"
                );
                emit(yes, depth, label, out);
                *out += &format!("bra J{id};\nE{id}:\n");
                emit(no, depth, label, out);
                *out += &format!("J{id}:\n");
            }
            Tree::Loop(mask, body) => {
                let c = 10 + depth;
                *out += &format!(
                    "and.b32 %r{c}, %r9, {mask};\nH{id}: setp.eq.u32 %p1, %r{c}, 0; @%p1 bra X{id};\n"
                );
                emit(body, depth + 1, label, out);
                *out += &format!("sub.u32 %r{c}, %r{c}, 1; bra H{id};\nX{id}:\n");
            }
        }
    }
}

/// `false` when the thread left.
fn evaluate(trees: &[Tree], value: &mut u32) -> bool {
    trees.iter().all(|tree| match tree {
        Tree::Add(n) => {
            *value = value.wrapping_mul(3).wrapping_add(*n);
            true
        }
        Tree::Leave(n) => *value % 29 != *n,
        Tree::Shuffle => true,
        Tree::If(bit, yes, no) => {
            let arm = if (*value >> bit) & 1 == 1 { yes } else { no };
            evaluate(arm, value)
        }
        Tree::Loop(mask, body) => (0..*value & mask).all(|_| evaluate(body, value)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn structured_programs_match_the_evaluator_on_each_lane(program in trees(), threads in 1u32..70) {
        let mut text = String::from("mul.lo.u32 %r9, %r1, 2654435761; shr.u32 %r9, %r9, 7;\n");
        emit(&program, 0, &mut 0, &mut text);
        text += "END: bar.warp.sync -1;\nactivemask.b32 %r5; popc.b32 %r5, %r5;\n";
        let out = per_thread(&text, threads);
        for (i, got) in out.iter().enumerate() {
            let mut want = (i as u32).wrapping_mul(2_654_435_761) >> 7;
            evaluate(&program, &mut want);
            prop_assert_eq!(*got, want, "thread {}", i);
        }
    }
}
