//! The page of results has each figure that the papers print: ours beside it, or why not.

use std::fs;
use std::path::Path;

use turnstile_lab::experiments::EXPERIMENTS;
use turnstile_lab::mistakes::MISTAKES;
use turnstile_lab::page::rows;
use turnstile_lab::result::Verdict;

/// A printed table or figure: where it is, the experiment, what the names of its quantities have in
/// common, and how many there are.
type Printed = (&'static str, &'static str, &'static str, usize);

const LOGA: &[Printed] = &[
    (
        "5.3: 9.9 % load",
        "loga-7a",
        "10 throttles (10, 1000): load",
        1,
    ),
    ("Fig. 7a, mean", "loga-7a", "NEON, mean", 1),
    ("Fig. 7a, worst", "loga-7a", "NEON, worst", 1),
    ("Fig. 7a, LoGA", "loga-7a", "LoGA, 500 us", 1),
    (
        "5.3: 90.9 % load",
        "loga-7b",
        "10 throttles (100, 1000): load",
        1,
    ),
    ("Fig. 7b, mean", "loga-7b", "NEON, mean", 1),
    ("Fig. 7b, LoGA", "loga-7b", "LoGA, 500 us", 1),
    ("5.3: saturating throttles", "loga-7b", "without pauses", 1),
    ("Fig. 8, NEON", "loga-8", "heartwall and most", 1),
    ("Fig. 8, LoGA", "loga-8", "LoGA, ", 5),
    ("Fig. 8, lavaMD", "loga-8", "lavaMD", 1),
    (
        "Fig. 8, dwt2d and others",
        "loga-8",
        "dwt2d, bfs, gaussian, huffman",
        1,
    ),
    ("Fig. 8, mummergpu", "loga-8", "mummergpu", 1),
    ("Fig. 8, myocyte, nn", "loga-8", "myocyte, nn", 1),
    ("Fig. 9", "loga-9", "registers that disagree", 10),
    ("Fig. 10", "loga-10", "skew of figure 9", 10),
    (
        "5.5: 80 % load",
        "loga-11",
        "4 throttles (200, 800): load",
        1,
    ),
    (
        "Fig. 11, wrong side",
        "loga-11",
        "programs moved to the wrong side",
        4,
    ),
    (
        "Fig. 11, too little",
        "loga-11",
        "NEON: programs moved by less",
        1,
    ),
    ("5.6: phases", "loga-cpu", "poll phase", 6),
    ("5.6: predicted", "loga-cpu", "programs: part of a core", 3),
    ("5.6: measured", "loga-cpu", "measured part of a core", 1),
    ("5.6: scheduling", "loga-cpu", "scheduling alone", 1),
    ("5.6: NEON", "loga-cpu", "NEON, part of a core", 1),
];

const SHARE: &[Printed] = &[
    ("eq. 1", "slice-1", "shortest slice", 1),
    ("Fig. 5, 10 ms", "slice-5", "mean, 10 ms", 1),
    ("Fig. 5, mean", "slice-5", "mean over all slices", 1),
    ("checkpoints", "slice-5", "checkpoints", 1),
    (
        "Fig. 6, 1000 and 500 ms",
        "slice-6",
        "ms: share of the first",
        6,
    ),
    ("Fig. 6, dxtc", "slice-6", "share of dxtc", 2),
    ("Fig. 6, slice in effect", "slice-6", "slice in effect", 1),
    ("Fig. 7, BFS", "slice-7", "BFS, as printed: turns", 1),
    ("Fig. 7, matMul", "slice-7", "matMul suffers least", 2),
    (
        "Fig. 7, in proportion",
        "slice-7",
        "mean end over that of two",
        1,
    ),
    ("Fig. 9", "slice-9", "mean: speedup", 1),
    ("Fig. 10", "slice-10", "end of all", 1),
    ("introduction", "slice-10", "mean end", 1),
];

const ADRIAENS: &[Printed] = &[
    ("Table 5.1, mean", "sm-even", "programs: mean", 3),
    ("Table 5.1, maximum", "sm-even", "programs: maximum", 3),
    ("Table 5.1, minimum", "sm-even", "programs: minimum", 3),
    ("Table 5.1, parts", "sm-even", "% exceed", 9),
    ("Table 5.2", "sm-pairs", "15 and 15 SMs", 4),
    ("Table 5.3", "sm-bandwidth", "use of memory, ", 12),
    (
        "Table 5.4",
        "sm-bandwidth",
        "latency of the interconnect",
        12,
    ),
    ("Table 7.2", "sm-bandwidth", "largest loss", 12),
    ("Table 6.2, mean", "sm-split", ": mean", 32),
    ("Table 6.2, minimum", "sm-split", "minimum", 11),
    ("Table 6.2, maximum", "sm-split", "maximum", 11),
    ("Table 6.3", "sm-pairs", "SMs of the first", 24),
    ("Table 6.4", "sm-pairs", ": throughput", 28),
    ("Table 7.1", "sm-qos", "SAD on ", 25),
    ("Table 7.3, most", "sm-qos", ": SMs for 75 %", 24),
    ("Table 7.3, fewest", "sm-qos", "beside the best partner", 12),
    ("Table 7.3, dynamic", "sm-qos", "dynamic over static", 12),
    ("7.3: gain of others", "sm-qos", "gain of others", 1),
    (
        "5.6: thresholds",
        "sm-take",
        "S = 0.6: T_T / T_M as printed",
        1,
    ),
    ("5.6: lengths of blocks", "sm-take", "length of a block", 2),
    ("Fig. 5.8", "sm-take", "best in turn over T_W", 1),
];

const LI: &[Printed] = &[
    ("Table 3", "li-model", "linear stretch", 5),
    ("Fig. 7", "li-model", "Fig. 7", 1),
    ("Figs. 8, 9", "li-speedup", "processes", 80),
    ("Fig. 10", "li-speedup", ", 8 processes", 10),
];

const CASE: &[Printed] = &[
    ("Fig. 4", "case-4", "mean: Alg. 3 over Alg. 2", 1),
    ("Fig. 4, waits", "case-4", "time until a job is placed", 1),
    ("Fig. 5", "case-5", "MGB over SA", 18),
    ("Fig. 5, CG", "case-5", "MGB over CG", 2),
    ("Fig. 5, CG and SA", "case-5", "CG at most at SA", 2),
    ("Fig. 5, CG and MGB", "case-5", "CG above MGB", 2),
    ("workers", "case-5", "workers over 6", 2),
    ("Table II", "case-crash", "workers: crash", 32),
    ("Table III", "case-turn", "turnaround over MGB's", 18),
    ("Fig. 6", "case-6", "MGB over schedGPU", 4),
    ("128 jobs", "case-6", "128 jobs", 1),
    ("Table IV", "case-slow", "kernel slowdown", 18),
];

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/RESULTS.md");
    fs::read_to_string(path).unwrap()
}

#[test]
fn each_printed_figure_has_ours_beside_it_or_a_reason() {
    let rows = rows(&page());
    let mut wrong = Vec::new();
    for (what, id, part, count) in [LOGA, SHARE, ADRIAENS, LI, CASE].concat() {
        let found = rows
            .iter()
            .filter(|((row, name), _)| row == id && name.contains(part));
        let cells: Vec<_> = found.map(|(_, cells)| cells).collect();
        if cells.len() != count {
            wrong.push(format!("{what}: {} rows of {count} in {id}", cells.len()));
        }
        // Ours, a verdict, or a reason why there is none.
        let silent = |cells: &&Vec<String>| cells[3] == "-" && cells[8].is_empty();
        if cells.iter().any(silent) {
            wrong.push(format!("{what}: neither a value nor a reason in {id}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Of what is modelled, these at least agree with the paper or with its arithmetic.
#[test]
fn experiments_of_value_agree() {
    let agree = [Verdict::Exact, Verdict::Within, Verdict::Shape];
    for row in EXPERIMENTS {
        let of = |names: &[&str]| names.contains(&row.id);
        let demanded = row.id.starts_with("loga-") && !of(&["loga-9", "loga-10"])
            || of(&[
                "launch-wait",
                "case-fig1",
                "case-5",
                "case-crash",
                "sm-even",
                "sm-split",
            ])
            || of(&[
                "sm-pairs",
                "sm-qos",
                "sm-take",
                "li-scenes",
                "li-model",
                "slice-1",
            ])
            || row.id == "slice-states";
        let verdict = row.verdict.unwrap();
        assert!(
            !demanded || agree.contains(&verdict),
            "{}: {verdict:?}",
            row.id
        );
    }
}

#[test]
fn each_printed_mistake_stands_beside_its_repair() {
    let page = page();
    for mistake in MISTAKES {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {} |", mistake.printed)));
        let row = row.unwrap_or_else(|| panic!("{} is missing", mistake.printed));
        assert!(
            row.contains(mistake.repair) && row.contains(mistake.id),
            "{row}"
        );
    }
}
