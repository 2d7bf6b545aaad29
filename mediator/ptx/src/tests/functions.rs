//! Functions: calls, frames, recursion, addresses.

use super::*;
use proptest::prelude::*;

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

/// Functions before the entry of [`program`].
fn with_functions(functions: &str, body: &str) -> String {
    program(body).replacen(
        ".visible .entry",
        &format!("{functions}\n.visible .entry"),
        1,
    )
}

fn run_text(text: &str, threads: u32) -> Result<Vec<u32>, ExecError> {
    let module = load(text);
    let memory = Flat::new(1 << 16);
    let params = Params::default().u64(BASE).0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [threads, 1, 1];
    run_grid(&launch, &memory)?;
    Ok(memory.words(0, threads as usize))
}

/// `depth(n)` is `n`, by `n` calls of itself; each keeps a register over the call.
const DEPTH: &str = ".func (.param .b32 rv) depth(.param .b32 n)\n{\n\
     .reg .b32 %r<8>; .reg .pred %p<2>;\n\
     ld.param.u32 %r1, [n]; setp.eq.u32 %p1, %r1, 0; mov.u32 %r4, 0; @%p1 bra DONE;\n\
     sub.u32 %r2, %r1, 1; mul.lo.u32 %r5, %r1, 3;\n\
     { .param .b32 a; st.param.b32 [a], %r2; .param .b32 r;\n\
     call.uni (r), depth, (a); ld.param.b32 %r3, [r]; }\n\
     add.u32 %r4, %r3, 1; mul.lo.u32 %r6, %r1, 3; sub.u32 %r6, %r6, %r5; add.u32 %r4, %r4, %r6;\n\
     DONE: st.param.b32 [rv], %r4; ret;\n}\n";

const CALL_DEPTH: &str = "{ .param .b32 a; st.param.b32 [a], %r8; .param .b32 r;\n\
     call (r), depth, (a); ld.param.b32 %r9, [r]; }\n";

#[test]
fn recursion_keeps_the_registers_of_each_lane() {
    let body = format!("mov.u32 %r8, %tid.x;\n{CALL_DEPTH}{STORE}");
    let text = with_functions(DEPTH, &body);
    let want: Vec<u32> = (0..70).collect();
    assert_eq!(run_text(&text, 70).unwrap(), want);
}

#[test]
fn recursion_without_an_end_is_a_fault() {
    let body = format!("mov.u32 %r8, -1;\n{CALL_DEPTH}{STORE}");
    let error = run_text(&with_functions(DEPTH, &body), 40).unwrap_err();
    assert!(matches!(error, ExecError::StackOverflow { .. }), "{error}");
}

#[test]
fn a_call_by_an_address_of_no_function_is_a_fault() {
    let body = "mov.u64 %rd2, 64;\nproto: .callprototype _ ();\ncall %rd2, (), proto;\n";
    let error = run_text(&with_functions("", body), 1).unwrap_err();
    assert!(matches!(error, ExecError::NoFunction { .. }), "{error}");
}

#[test]
fn each_lane_calls_the_function_of_its_own_address() {
    let function = |name: &str, add: u32| {
        format!(".func (.reg .b32 %o) {name}(.reg .b32 %i)\n{{\nadd.u32 %o, %i, {add};\nret;\n}}\n")
    };
    let functions = function("f", 100) + &function("g", 200) + ".global .u64 t[2] = {f, g};\n";
    let body = format!(
        "mov.u32 %r8, %tid.x; and.b32 %r1, %r8, 1; mul.wide.u32 %rd2, %r1, 8;\n\
         mov.u64 %rd3, t; add.u64 %rd3, %rd3, %rd2; ld.global.u64 %rd4, [%rd3];\n\
         proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);\n\
         call (%r9), %rd4, (%r8), proto;\n{STORE}"
    );
    let text = with_functions(&functions, &body);
    let module = load(&text);
    let memory = Flat::new(1 << 16);
    memory.write(1 << 12, &module.global_image(BASE + (1 << 12)));
    let params = Params::default().u64(BASE).0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [40, 1, 1];
    launch.module_base = BASE + (1 << 12);
    run_grid(&launch, &memory).unwrap();
    let want: Vec<u32> = (0..40)
        .map(|t| t + if t % 2 == 0 { 100 } else { 200 })
        .collect();
    assert_eq!(memory.words(0, 40), want);
}

#[test]
fn refusals_name_what_is_called() {
    let extern_call = format!(
        "{HEAD}.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n\
         .visible .entry k() {{\n.param .b64 a; .param .b32 r;\ncall (r), vprintf, (a, a);\n}}\n"
    );
    let error = Module::load(&extern_call, &Limits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Line 7: `call` of `vprintf`, which has no body, is not supported"
    );
    let text = with_functions(DEPTH, "call depth;");
    let error = Module::load(&text, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("number of arguments"), "{error}");
}

#[test]
fn functions_are_bounded() {
    let many: String = (0..5000)
        .map(|n| format!(".func f{n}() {{ ret; }}\n"))
        .collect();
    let error = Module::load(&format!("{HEAD}{many}"), &Limits::default()).unwrap_err();
    assert!(matches!(
        error,
        LoadError::Limit {
            what: "functions",
            ..
        }
    ));
    // One long function that each entry calls.
    let long = format!(".func f()\n{{\nret;\n{}}}\n", "// x\n".repeat(20_000));
    let entries: String = (0..1000)
        .map(|n| format!(".entry k{n}() {{ call f; }}\n"))
        .collect();
    let loaded = Module::load(&format!("{HEAD}{long}{entries}"), &Limits::default());
    let Err(LoadError::Limit { what, .. }) = loaded else {
        panic!("not bounded");
    };
    assert_eq!(what, "bytes of functions, counted once per entry");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Calls in any graph, direct and by address, end in a result or in a fault.
    #[test]
    fn any_graph_of_calls_ends(edges in prop::collection::vec((0usize..6, 0usize..6, 0u8..4), 0..20)) {
        let name = |n: usize| if n == 0 { "k".to_owned() } else { format!("f{n}") };
        let mut text = HEAD.to_owned();
        for n in 1..6 {
            text += &format!(".func {}();\n", name(n));
        }
        for n in (0..6).rev() {
            text += &if n == 0 { ".entry k()".to_owned() } else { format!(".func {}()", name(n)) };
            text += "\n{\n.reg .b64 %d<4>; .reg .b32 %r<9>; .reg .pred %p<3>; .local .b8 x[24];\n\
                     p: .callprototype _ ();\nmov.u32 %r1, %tid.x; mov.u32 %r2, %clock;\n\
                     and.b32 %r2, %r2, 3; setp.eq.u32 %p1, %r1, %r2;\n";
            for (_, to, kind) in edges.iter().filter(|(from, to, _)| *from == n && *to > 0) {
                text += &match kind {
                    0 => format!("call {};\n", name(*to)),
                    1 => format!("@%p1 call {};\n", name(*to)),
                    2 => format!("mov.u64 %d1, {}; @%p1 call %d1, (), p;\n", name(*to)),
                    _ => "@%p1 ret;\n".to_owned(),
                };
            }
            text += "}\n";
        }
        let module = load(&text);
        let mut launch = Launch::new(&module, 0, &[]);
        launch.block = [37, 1, 1];
        let result = run_timed(&launch, &Flat::new(64), &mut Virtual::default(), 200_000);
        let ended = matches!(result, Ok(_) | Err(ExecError::StackOverflow { .. } | ExecError::Budget));
        prop_assert!(ended, "{result:?}");
    }
}
