//! CASE, figure 1: four kernels on two GPUs.

use turnstile_policies::place::{Fleet, GpuSize, Job, Rule};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

const GB: u64 = 1 << 30;
/// 56 SMs and 16 GB, as the paper's P100.
pub const P100: GpuSize = GpuSize {
    sms: 56,
    blocks: 32,
    warps: 64,
    memory_bytes: 16 * GB,
};
/// Part of the SMs' warps, in tenths, and memory in GB of each kernel.
const KERNELS: [(u32, u64); 4] = [(6, 4), (3, 10), (6, 4), (3, 10)];

fn job((tenths, gb): (u32, u64)) -> Job {
    // Blocks of 64 threads: 2 warps.
    Job {
        memory_bytes: gb * GB,
        blocks: P100.sms * P100.warps / 2 * tenths / 10,
        threads: 64,
    }
}

/// The GPU of each kernel in turn; none for one that waits.
fn placed(fleet: &mut Fleet, rule: Rule) -> Result<Vec<Option<usize>>, Failure> {
    let place = |kernel| {
        let placed = fleet.place(rule, job(kernel));
        let placed = placed.map_err(|error| Failure(error.to_string()))?;
        Ok(placed.map(|placed| placed.gpu))
    };
    KERNELS.into_iter().map(place).collect()
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let idle = || Fleet::new(&[P100, P100]);
    let on = |gpus: [usize; 4]| gpus.map(Some).to_vec();
    let capacity = u64::from(P100.sms * P100.warps);
    let breaks = |fleet: &Fleet| {
        let beyond = (0..2).any(|gpu| fleet.memory(gpu).1);
        (fleet.warps().iter().any(|warps| *warps > capacity), beyond)
    };
    let (mut printed, mut repaired, mut exact, mut robin) = (idle(), idle(), idle(), idle());
    let as_printed = placed(&mut printed, Rule::FewestPrinted)?;
    // With work on the first GPU, the printed rule adds to it.
    let busy = idle()
        .place(Rule::Fewest, job(KERNELS[1]))
        .map_err(|e| Failure(e.to_string()))?;
    let mut loaded = idle();
    let _ = loaded.place(Rule::Fewest, job(KERNELS[1]));
    let onto = loaded.place(Rule::FewestPrinted, job(KERNELS[0]));
    let onto = onto
        .map_err(|error| Failure(error.to_string()))?
        .map(|placed| placed.gpu);
    let alg_3 = placed(&mut repaired, Rule::Fewest)?;
    let alg_2 = placed(&mut exact, Rule::Exact)?;
    let before = (exact.warps(), exact.fullest_sm(0), exact.fullest_sm(1));
    let small = Job {
        memory_bytes: GB,
        ..job(KERNELS[0])
    };
    let refused = exact
        .place(Rule::Exact, small)
        .map_err(|error| Failure(error.to_string()))?;
    let after = (exact.warps(), exact.fullest_sm(0), exact.fullest_sm(1));
    let in_turn = placed(&mut robin, Rule::RoundRobin(2))?;
    let beyond = job((3, 17));
    let refuses = idle().place(Rule::Fewest, beyond).is_err();
    Ok(Report {
        title: "Kernels with 0.6, 0.3, 0.6, 0.3 of the SMs and 4, 10, 4, 10 GB, in this order".to_owned(),
        parameters: Parameters {
            paper: "two GPUs of 56 SMs and 16 GB; k1 + k3 exceed the SMs, k2 + k4 the memory",
            fitted: "",
            chosen: "the kernels' sizes and order",
        },
        quantities: vec![
            Quantity::holds("Alg. 3 as printed: no GPU while all are idle", as_printed == [None; 4]),
            Quantity::holds(
                "Alg. 3 as printed: the most loaded GPU",
                onto == busy.map(|placed| placed.gpu),
            ),
            Quantity::holds("Alg. 3 repaired: {k1, k4}, {k2, k3}", alg_3 == on([0, 1, 1, 0])),
            Quantity::holds("Alg. 3 repaired: within both limits", breaks(&repaired) == (false, false)),
            Quantity::holds("Alg. 2: {k1, k2}, {k3, k4}", alg_2 == on([0, 0, 1, 1])),
            Quantity::holds("Alg. 2: within both limits", breaks(&exact) == (false, false)),
            Quantity::holds(
                "Alg. 2: a job that waits leaves nothing behind",
                refused.is_none() && before == after,
            ),
            Quantity::holds("round robin: {k1, k3}, {k2, k4}", in_turn == on([0, 1, 0, 1])),
            Quantity::holds("round robin: breaks both limits", breaks(&robin) == (true, true)),
            Quantity::holds("17 GB: refused, not queued", refuses),
        ],
        notes: vec!["As printed, the least warps begin at 0 and a GPU is taken if they are below its own: the comparison is the wrong way round.".to_owned()],
        ..Report::default()
    })
}
