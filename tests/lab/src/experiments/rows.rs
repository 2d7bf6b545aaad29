//! The table of experiments, in the order of `list`.

use super::*;
use Kind::{Bound, Exact, Shape};

/// Makes [`EXPERIMENTS`] of rows: name, paper and figure, help, needs; kind, seeds, verdict,
/// function. The function is `run`, or `world` if it runs the daemon's loop.
macro_rules! table {
    (@run run $run:path) => {
        Some($run as RunExperiment)
    };
    (@run world $run:path) => {{
        #[cfg(feature = "world")]
        let run = Some($run as RunExperiment);
        #[cfg(not(feature = "world"))]
        let run = None;
        run
    }};
    ($($id:literal, $source:literal, $about:literal, $needs:literal:
        $kind:ident, $seeds:literal, $verdict:ident, $how:ident($run:path);)*) => {
        /// All experiments.
        pub const EXPERIMENTS: &[Experiment] = &[$(Experiment {
            id: $id,
            source: $source,
            about: $about,
            needs: $needs,
            kind: $kind,
            seeds: $seeds,
            verdict: Some(Verdict::$verdict),
            run: table!(@run $how $run),
        }),*];
    };
}

table! {
    "loga-7a", "LoGA Fig. 7a", "cost of accounting beside light throttles", "W C P":
        Bound, 1, Shape, run(loga_neon::light_report);
    "loga-7b", "LoGA Fig. 7b", "cost of accounting beside heavy throttles", "W C P":
        Bound, 1, Shape, run(loga_neon::heavy_report);
    "loga-8", "LoGA Fig. 8", "cost of accounting by number of throttles", "W C P":
        Bound, 1, Within, run(loga_neon::count_report);
    "loga-length", "none", "kernel length by the polled meter, all the time", "-":
        Bound, 2, Within, world(loga::length_report);
    "loga-load", "none", "load by the polled meter", "-":
        Bound, 2, Within, world(loga::load_report);
    "loga-9", "LoGA Fig. 9", "kernel length by two registers", "D":
        Bound, 10, Fitted, run(loga_skew::length_report);
    "loga-10", "LoGA Fig. 10", "load by two registers", "D":
        Bound, 10, Differs, run(loga_skew::load_report);
    "loga-11", "LoGA Fig. 11", "programs beside four that launch and wait", "W C P":
        Shape, 1, Shape, run(loga_11::report);
    "loga-11-loop", "LoGA Fig. 11", "the same in the daemon's loop", "-":
        Bound, 1, Within, world(loga11::report);
    "loga-cpu", "LoGA 5.6", "processor time of polling, one GPU and six", "C G":
        Exact, 5, Within, run(loga_cpu::report);
    "loga-modes", "LoGA 2.3", "engaged, first come first served, disengaged", "P":
        Bound, 1, Within, run(loga_modes::report);
    "loga-charged", "LoGA 4.3", "charges against what ran", "-":
        Bound, 2, Within, world(charged::report);
    "launch-wait", "none", "pairs of which one or both launch and wait", "-":
        Bound, 1, Within, world(launch_wait::report);
    "corun", "none", "programs together under the rule `owed`, on a model", "-":
        Bound, 1, Within, run(corun::report);
    "share", "none", "share error against the fluid ideal", "-":
        Bound, 20, Within, world(share::report);
    "fleet", "none", "four GPUs of which one is removed", "G":
        Bound, 5, Within, world(fleet::report);
    "unfair", "LoGA 2.2", "long commands against short ones", "-":
        Bound, 2, Within, world(unfair::report);
    "literal", "LoGA 4.2", "the rule as printed against the repaired one", "-":
        Shape, 2, Shape, world(literal::report);
    "swap", "none", "guests that own more memory than the card has", "-":
        Exact, 10, Exact, world(swap::report);
    "case-fig1", "CASE Fig. 1, Alg. 2, 3", "four kernels on two GPUs", "G":
        Exact, 1, Exact, run(case_fig1::report);
    "case-5", "CASE Fig. 5", "throughput of eight mixes", "W G":
        Shape, 20, Shape, run(case_5::report);
    "case-slow", "CASE Table IV", "slowdown of kernels in eight mixes", "W G":
        Bound, 20, Fitted, run(case_5::slowdown_report);
    "case-crash", "CASE Table II", "jobs that crash without memory checks", "W G":
        Shape, 50, Shape, run(case_crash::report);
    "case-turn", "CASE Table III", "turnaround of eight mixes", "W G":
        Shape, 20, Differs, run(case_5::turnaround_report);
    "case-4", "CASE Fig. 4", "throughput of Alg. 3 over Alg. 2", "W G":
        Shape, 20, Shape, run(case_5::rules_report);
    "case-6", "CASE Fig. 6", "equal jobs beside a scheduler of memory alone", "W G":
        Shape, 20, Shape, run(case_6::report);
    "case-task", "CASE Alg. 1", "tasks from traces of allocations and launches", "-":
        Exact, 200, Exact, run(case_task::report);
    "sm-even", "Adriaens Table 5.1", "an even split against taking turns", "M":
        Bound, 1, Within, run(sm_even::report);
    "sm-split", "Adriaens Table 6.2", "eleven ways to split the SMs", "M":
        Bound, 1, Shape, run(sm_split::report);
    "sm-pairs", "Adriaens Tables 6.3, 6.4", "splits and speedups of four pairs", "M":
        Bound, 1, Within, run(sm_pairs::report);
    "sm-qos", "Adriaens Tables 7.1, 7.3", "reserved SMs of one program", "M":
        Bound, 1, Within, run(sm_qos::report);
    "sm-sweep", "Adriaens Figs. 6.3, 6.4", "splits of 10 to 60 SMs", "M":
        Shape, 1, Shape, run(sm_sweep::report);
    "sm-take", "Adriaens 5.6, Fig. 5.8", "wait, terminate or migrate", "-":
        Exact, 1, Exact, run(sm_take::report);
    "sm-bandwidth", "Adriaens Tables 5.3, 7.2", "memory bandwidth of shared SMs", "M":
        Bound, 1, Fitted, run(sm_bandwidth::report);
    "li-scenes", "Li 2, eq. 1 to 6", "scenario by blocks and processes", "-":
        Exact, 1, Exact, run(li_scenes::report);
    "li-model", "Li Table 3", "formulas against recursion and simulation", "M":
        Bound, 1, Within, run(li_model::report);
    "li-speedup", "Li Figs. 8 to 10", "speedup of 1 to 8 processes", "-":
        Shape, 1, Shape, run(li_speedup::report);
    "slice-1", "Share-a-GPU eq. 1", "the shortest slice that hides the copies", "X":
        Exact, 1, Exact, run(slice_1::report);
    "slice-5", "Share-a-GPU Fig. 5", "cost of slices, each program alone", "W K X":
        Bound, 1, Within, run(slice_turns::alone_report);
    "slice-6", "Share-a-GPU Fig. 6", "pairs of programs", "W K X":
        Bound, 1, Differs, run(slice_turns::pairs_report);
    "slice-7", "Share-a-GPU Fig. 7", "seven programs together", "W K X":
        Shape, 1, Shape, run(slice_turns::together_report);
    "slice-9", "Share-a-GPU Fig. 9", "one program on two GPUs", "G K X":
        Bound, 1, Fitted, run(slice_gpus::alone_report);
    "slice-10", "Share-a-GPU Fig. 10", "seven programs on two GPUs", "G K X":
        Bound, 1, Within, run(slice_gpus::together_report);
    "slice-states", "Share-a-GPU Alg. 1, 2", "the state machine", "-":
        Exact, 200, Exact, run(slice_states::report);
    "adversary", "none", "a victim's worst window beside attackers", "-":
        Bound, 200, Within, world(adversary::report);
}
