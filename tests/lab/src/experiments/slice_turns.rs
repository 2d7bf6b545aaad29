//! Share-a-GPU, figures 5 to 7: slices of programs alone, in pairs, and of seven together.

use turnstile_accounting::Nanos;
use turnstile_policies::model::slice::{effective, shortest};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;
use crate::slices::{PLAN, PROGRAMS, Plan, Program, run};

/// Where the parameters are from.
pub const PARAMETERS: Parameters = Parameters {
    paper: "memory and time of seven programs, launches of BFS, Gaussian and matMul, slices",
    fitted: "",
    chosen: "launches of the others; 10 GB/s; half of a program's memory is copied each way; 0.5 ms for each microkernel of a launch that is cut",
};

/// Figure 5.
///
/// # Errors
/// None, with these programs.
pub fn alone_report(_: &Seeds) -> Result<Report, Failure> {
    let (mut quantities, mut all) = (Vec::new(), Vec::new());
    for slice_ms in [10.0, 100.0, 1_000.0] {
        let plan = Plan {
            slice_s: slice_ms / 1e3,
            ..PLAN
        };
        let mut costs = Vec::new();
        for program in PROGRAMS {
            let (end_s, _) = run(&[program], &plan)?;
            let cost = (end_s - program.gpu_s) / program.native_s * 100.0;
            costs.push(cost);
            let name = format!("{}, {slice_ms} ms: cost", program.name);
            let one = Quantity::of(name, "%", cost).at(program.name, slice_ms);
            let is_cut = program.gpu_s / f64::from(program.launches) > plan.slice_s;
            quantities.push(if is_cut { one } else { one.within(0.0, 1e-6) });
        }
        let mean = costs.iter().sum::<f64>() / costs.len() as f64;
        all.extend(costs);
        let mean = Quantity::of(format!("mean, {slice_ms} ms: cost"), "%", mean);
        quantities.push(match slice_ms {
            10.0 => mean.paper_range(0.0, 6.0).between(0.0, 6.0),
            _ => mean,
        });
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let mean = Quantity::of("mean over all slices: cost", "%", mean);
    quantities.push(mean.paper_range(0.0, 4.0).between(0.0, 4.0));
    let missing = "no checkpoint of a whole process is modelled; the paper cites it";
    quantities.push(
        Quantity::not_modelled("preemption by checkpoints: time over native", "", missing)
            .paper(30.0),
    );
    Ok(Report {
        title: "Time of each program in slices, over its time without".to_owned(),
        parameters: PARAMETERS,
        quantities,
        notes: vec![
            "A launch that is no longer than a slice costs nothing, as in the paper.".to_owned(),
        ],
        axes: ("slice, ms", "cost in percent"),
    })
}

/// Slices of a process for each slice of the other, as long as the copies of the other take.
fn slices(other: &Program, slice: Nanos, bytes_per_s: u64) -> f64 {
    // CAST: sizes of programs are small.
    let half = (other.mib * f64::from(1 << 19)) as u64;
    let least = shortest(half, half, bytes_per_s).unwrap_or(Nanos::ZERO);
    let in_effect = effective(slice, least).unwrap_or(slice);
    in_effect.0 as f64 / slice.0 as f64
}

/// Figure 6.
///
/// # Errors
/// None, with these programs.
pub fn pairs_report(_: &Seeds) -> Result<Report, Failure> {
    let share = |[first, second]: [usize; 2], slice_ms, bytes_per_s| {
        let slice = Nanos::from_ms(slice_ms);
        let own = slices(&PROGRAMS[second], slice, bytes_per_s);
        own / (own + slices(&PROGRAMS[first], slice, bytes_per_s)) * 100.0
    };
    let (dxtc, transpose) = (5, 4);
    let kinds = [
        ("compute beside compute: matMul, dxtc", [3, dxtc]),
        ("memory beside memory: matTrans, StringSort", [transpose, 6]),
        ("memory beside compute: matTrans, Gaussian", [transpose, 1]),
    ];
    let mut quantities = Vec::new();
    for (name, pair) in kinds {
        for slice_ms in [1_000, 500] {
            let name = format!("{name}, {slice_ms} ms: share of the first");
            let one = Quantity::of(name, "%", share(pair, slice_ms, 10_000_000_000)).paper(50.0);
            let one = one.within(50.0, 3.0);
            quantities.push(match slice_ms {
                1_000 => one,
                _ => one.because("at 10 GB/s the copies of matMul and matTrans take 0.57 s, two slices of the other"),
            });
        }
    }
    let pairs = (0..7).flat_map(|first| (0..7).map(move |second| [first, second]));
    let off = pairs.map(|pair| (share(pair, 1_000, 10_000_000_000) - 50.0).abs());
    quantities.push(
        Quantity::of(
            "all pairs, 1000 ms: worst off 50 %",
            "points",
            off.fold(0.0, f64::max),
        )
        .between(0.0, 3.0),
    );
    let of = |name, bytes_per_s| {
        Quantity::of(name, "%", share([dxtc, transpose], 500, bytes_per_s)).paper(88.0)
    };
    quantities.extend([
        of(
            "dxtc beside matTrans, 500 ms, 10 GB/s: share of dxtc",
            10_000_000_000,
        )
        .between(50.0, 67.0)
        .because("88 % needs copies of 3 to 3.5 s, so 1.6 to 1.9 GB/s"),
        Quantity::of(
            "dxtc beside matTrans, 500 ms, 1.75 GB/s: slices of dxtc for one of matTrans",
            "",
            slices(&PROGRAMS[transpose], Nanos::from_ms(500), 1_750_000_000),
        )
        .exactly(7.0),
        Quantity::of("the same: share of dxtc", "%", {
            // A launch of matTrans ends within its slice: it has no second one.
            let own = slices(&PROGRAMS[transpose], Nanos::from_ms(500), 1_750_000_000);
            own / (own + 1.0) * 100.0
        })
        .paper(88.0)
        .exactly(87.5),
        Quantity::of(
            "memory beside memory, 500 ms: slice in effect, matTrans twice",
            "ms",
            slices(&PROGRAMS[transpose], Nanos::from_ms(500), 10_000_000_000) * 500.0,
        )
        .paper(1_000.0)
        .exactly(1_000.0),
    ]);
    Ok(Report {
        title: "Pairs of programs that always have work: slices of each".to_owned(),
        parameters: PARAMETERS,
        quantities,
        notes: vec![
            "While one runs, the other's memory is copied out and in again: it has whole slices until that has ended.".to_owned(),
            "At 1.75 GB/s the launch of matTrans is taken to end its turn, as it is shorter than a slice.".to_owned(),
        ],
        ..Report::default()
    })
}

/// Figure 7.
///
/// # Errors
/// None, with these programs.
pub fn together_report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    let mut turns_of_bfs = Vec::new();
    for (name, deficit) in [("as printed", false), ("repaired by deficit", true)] {
        let plan = Plan {
            deficit,
            until_s: Some(600.0),
            ..PLAN
        };
        let (end_s, all) = run(&PROGRAMS, &plan)?;
        let slowdowns: Vec<f64> = all.iter().map(|ran| end_s / ran.work_s).collect();
        for ((program, ran), slowdown) in PROGRAMS.iter().zip(&all).zip(&slowdowns) {
            let of =
                |what, value| Quantity::of(format!("{}, {name}: {what}", program.name), "", value);
            let turns = ran.turns_of_run(program);
            quantities.push(of("time over native", *slowdown));
            if program.name == "BFS" {
                turns_of_bfs.push(turns);
                let expected = if deficit { 1.0 } else { 28.0 };
                let turns = of("turns of a run", turns);
                let turns = if deficit { turns } else { turns.paper(28.0) };
                quantities.push(turns.within(expected, 0.05));
            }
        }
        let least = slowdowns.iter().copied().fold(f64::MAX, f64::min);
        let at_least = slowdowns[3] <= least;
        let one = Quantity::of(
            format!("{name}: matMul suffers least"),
            "",
            f64::from(at_least),
        );
        quantities.push(if deficit {
            one
        } else {
            one.shape("least", at_least)
        });
        let mean = slowdowns.iter().sum::<f64>() / slowdowns.len() as f64;
        quantities.push(Quantity::of(
            format!("{name}: mean time over native"),
            "",
            mean,
        ));
    }
    let mean_end = |count| {
        let (_, all) = run(&[PROGRAMS[5]; 7][..count], &PLAN)?;
        Ok::<_, Failure>(all.iter().map(|ran| ran.end_s).sum::<f64>() / count as f64)
    };
    let (two, seven) = (mean_end(2)?, mean_end(7)?);
    quantities.push(
        Quantity::of(
            "dxtc, seven times: mean end over that of two",
            "",
            seven / two,
        )
        .paper(3.5)
        .shape(
            "in proportion, to 5 %",
            (seven / two / 3.5 - 1.0).abs() < 0.05,
        ),
    );
    Ok(Report {
        title: "Seven programs that begin again, 1000 ms: 600 s".to_owned(),
        parameters: PARAMETERS,
        quantities,
        notes: vec!["As printed a turn ends with a launch. Repaired, a process keeps the GPU until its slice is used.".to_owned()],
        ..Report::default()
    })
}
