//! The table of experiments, in the order of `list`.

use super::*;
use Kind::{Bound, Exact, Shape};

/// The function of an experiment that runs the daemon's loop.
macro_rules! world {
    ($run:path) => {{
        #[cfg(feature = "world")]
        let run = Some($run as RunExperiment);
        #[cfg(not(feature = "world"))]
        let run = None;
        run
    }};
}

/// An experiment of a paper.
const fn row(
    id: &'static str,
    (source, about, needs): (&'static str, &'static str, &'static str),
    kind: Kind,
    seeds: u64,
    verdict: Option<Verdict>,
    run: Option<RunExperiment>,
) -> Experiment {
    Experiment {
        id,
        source,
        about,
        needs,
        kind,
        seeds,
        verdict,
        run,
    }
}

/// An experiment that is not built.
const fn unbuilt(
    id: &'static str,
    texts: (&'static str, &'static str, &'static str),
    kind: Kind,
) -> Experiment {
    row(id, texts, kind, 1, None, None)
}

const WITHIN: Option<Verdict> = Some(Verdict::Within);
const EXACT: Option<Verdict> = Some(Verdict::Exact);
const FITTED: Option<Verdict> = Some(Verdict::Fitted);
const DIFFERS: Option<Verdict> = Some(Verdict::Differs);
const SHAPE: Option<Verdict> = Some(Verdict::Shape);

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    row(
        "loga-7a",
        (
            "LoGA Fig. 7a",
            "cost of accounting beside light throttles",
            "W C P",
        ),
        Bound,
        1,
        SHAPE,
        Some(loga_neon::light_report),
    ),
    row(
        "loga-7b",
        (
            "LoGA Fig. 7b",
            "cost of accounting beside heavy throttles",
            "W C P",
        ),
        Bound,
        1,
        SHAPE,
        Some(loga_neon::heavy_report),
    ),
    row(
        "loga-8",
        (
            "LoGA Fig. 8",
            "cost of accounting by number of throttles",
            "W C P",
        ),
        Bound,
        1,
        WITHIN,
        Some(loga_neon::count_report),
    ),
    row(
        "loga-length",
        (
            "none",
            "kernel length by the polled meter, all the time",
            "-",
        ),
        Bound,
        2,
        WITHIN,
        world!(loga::length_report),
    ),
    row(
        "loga-load",
        ("none", "load by the polled meter", "-"),
        Bound,
        2,
        WITHIN,
        world!(loga::load_report),
    ),
    row(
        "loga-9",
        ("LoGA Fig. 9", "kernel length by two registers", "D"),
        Bound,
        10,
        FITTED,
        Some(loga_skew::length_report),
    ),
    row(
        "loga-10",
        ("LoGA Fig. 10", "load by two registers", "D"),
        Bound,
        10,
        DIFFERS,
        Some(loga_skew::load_report),
    ),
    row(
        "loga-11",
        (
            "LoGA Fig. 11",
            "programs beside four that launch and wait",
            "W C P",
        ),
        Shape,
        1,
        SHAPE,
        Some(loga_11::report),
    ),
    row(
        "loga-11-loop",
        ("LoGA Fig. 11", "the same in the daemon's loop", "-"),
        Bound,
        1,
        WITHIN,
        world!(loga11::report),
    ),
    row(
        "loga-cpu",
        (
            "LoGA 5.6",
            "processor time of polling, one GPU and six",
            "C G",
        ),
        Exact,
        5,
        WITHIN,
        Some(loga_cpu::report),
    ),
    row(
        "loga-modes",
        (
            "LoGA 2.3",
            "engaged, first come first served, disengaged",
            "P",
        ),
        Bound,
        1,
        WITHIN,
        Some(loga_modes::report),
    ),
    row(
        "loga-charged",
        ("LoGA 4.3", "charges against what ran", "-"),
        Bound,
        2,
        WITHIN,
        world!(charged::report),
    ),
    row(
        "launch-wait",
        ("none", "pairs of which one or both launch and wait", "-"),
        Bound,
        1,
        WITHIN,
        world!(launch_wait::report),
    ),
    row(
        "share",
        ("none", "share error against the fluid ideal", "-"),
        Bound,
        20,
        WITHIN,
        world!(share::report),
    ),
    row(
        "unfair",
        ("LoGA 2.2", "long commands against short ones", "-"),
        Bound,
        2,
        WITHIN,
        world!(unfair::report),
    ),
    row(
        "literal",
        (
            "LoGA 4.2",
            "the rule as printed against the repaired one",
            "-",
        ),
        Shape,
        2,
        SHAPE,
        world!(literal::report),
    ),
    row(
        "swap",
        ("none", "guests that own more memory than the card has", "-"),
        Exact,
        10,
        EXACT,
        world!(swap::report),
    ),
    row(
        "case-fig1",
        ("CASE Fig. 1, Alg. 2, 3", "four kernels on two GPUs", "G"),
        Exact,
        1,
        EXACT,
        Some(case_fig1::report),
    ),
    row(
        "case-5",
        ("CASE Fig. 5, Table IV", "throughput of eight mixes", "W G"),
        Shape,
        20,
        FITTED,
        Some(case_5::report),
    ),
    row(
        "case-crash",
        (
            "CASE Table II",
            "jobs that crash without memory checks",
            "W G",
        ),
        Shape,
        50,
        SHAPE,
        Some(case_crash::report),
    ),
    row(
        "case-turn",
        ("CASE Table III", "turnaround of eight mixes", "W G"),
        Shape,
        20,
        DIFFERS,
        Some(case_5::turnaround_report),
    ),
    row(
        "case-4",
        ("CASE Fig. 4", "throughput of Alg. 3 over Alg. 2", "W G"),
        Shape,
        20,
        SHAPE,
        Some(case_5::rules_report),
    ),
    row(
        "case-6",
        (
            "CASE Fig. 6",
            "equal jobs beside a scheduler of memory alone",
            "W G",
        ),
        Shape,
        20,
        SHAPE,
        Some(case_6::report),
    ),
    row(
        "case-task",
        (
            "CASE Alg. 1",
            "tasks from traces of allocations and launches",
            "-",
        ),
        Exact,
        200,
        EXACT,
        Some(case_task::report),
    ),
    row(
        "sm-even",
        (
            "Adriaens Table 5.1",
            "an even split against taking turns",
            "M",
        ),
        Bound,
        1,
        WITHIN,
        Some(sm_even::report),
    ),
    row(
        "sm-split",
        ("Adriaens Table 6.2", "eleven ways to split the SMs", "M"),
        Bound,
        1,
        SHAPE,
        Some(sm_split::report),
    ),
    row(
        "sm-pairs",
        (
            "Adriaens Tables 6.3, 6.4",
            "splits and speedups of four pairs",
            "M",
        ),
        Bound,
        1,
        WITHIN,
        Some(sm_pairs::report),
    ),
    row(
        "sm-qos",
        (
            "Adriaens Tables 7.1, 7.3",
            "reserved SMs of one program",
            "M",
        ),
        Bound,
        1,
        WITHIN,
        Some(sm_qos::report),
    ),
    row(
        "sm-sweep",
        ("Adriaens Figs. 6.3, 6.4", "splits of 10 to 60 SMs", "M"),
        Shape,
        1,
        SHAPE,
        Some(sm_sweep::report),
    ),
    row(
        "sm-take",
        ("Adriaens 5.6, Fig. 5.8", "wait, terminate or migrate", "-"),
        Exact,
        1,
        EXACT,
        Some(sm_take::report),
    ),
    unbuilt(
        "sm-bandwidth",
        (
            "Adriaens Tables 5.3, 7.2",
            "memory bandwidth of shared SMs",
            "M",
        ),
        Bound,
    ),
    row(
        "li-scenes",
        ("Li 2, eq. 1 to 6", "scenario by blocks and processes", "-"),
        Exact,
        1,
        EXACT,
        Some(li_scenes::report),
    ),
    row(
        "li-model",
        (
            "Li Table 3",
            "formulas against recursion and simulation",
            "M",
        ),
        Bound,
        1,
        WITHIN,
        Some(li_model::report),
    ),
    row(
        "li-speedup",
        ("Li Figs. 8 to 10", "speedup of 1 to 8 processes", "-"),
        Shape,
        1,
        SHAPE,
        Some(li_speedup::report),
    ),
    row(
        "slice-1",
        (
            "Share-a-GPU eq. 1",
            "the shortest slice that hides the copies",
            "X",
        ),
        Exact,
        1,
        EXACT,
        Some(slice_1::report),
    ),
    unbuilt(
        "slice-5",
        (
            "Share-a-GPU Fig. 5",
            "cost of slices, each program alone",
            "W K X",
        ),
        Bound,
    ),
    unbuilt(
        "slice-6",
        ("Share-a-GPU Fig. 6", "pairs of programs", "W K X"),
        Bound,
    ),
    unbuilt(
        "slice-7",
        ("Share-a-GPU Fig. 7", "seven programs together", "W K X"),
        Shape,
    ),
    unbuilt(
        "slice-9",
        ("Share-a-GPU Fig. 9", "one program on two GPUs", "G K X"),
        Bound,
    ),
    unbuilt(
        "slice-10",
        ("Share-a-GPU Fig. 10", "seven programs on two GPUs", "G K X"),
        Bound,
    ),
    row(
        "slice-states",
        ("Share-a-GPU Alg. 1, 2", "the state machine", "-"),
        Exact,
        200,
        EXACT,
        Some(slice_states::report),
    ),
    row(
        "adversary",
        ("none", "a victim's worst window beside attackers", "-"),
        Bound,
        200,
        WITHIN,
        world!(adversary::report),
    ),
];
