//! Li et al., section 2: the scenario by blocks and number of processes.

use turnstile_policies::model::processes::{Fit, Scenario};

use super::li::{PROCESSES, PROGRAMS, RESIDENT_MAX, SMS};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

/// Blocks, processes, and the scenario at both sides of each border.
const BORDERS: [(&str, u32, u32, Scenario); 6] = [
    ("eq. 1, b N = n", SMS, 1, Scenario::ExclusiveSpace),
    ("eq. 3, b N = n + 1", SMS + 1, 1, Scenario::SharedSpace),
    ("eq. 3, b N = m n", SMS, RESIDENT_MAX, Scenario::SharedSpace),
    (
        "eq. 4, b N > m n",
        SMS + 1,
        RESIDENT_MAX,
        Scenario::SpaceTime,
    ),
    (
        "eq. 5, b = m n - 1",
        SMS * RESIDENT_MAX - 1,
        2,
        Scenario::SpaceTime,
    ),
    ("eq. 6, b = m n", SMS * RESIDENT_MAX, 2, Scenario::Time),
];

/// The experiment.
///
/// # Errors
/// None, with these numbers.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    let [ep, _, _, mg, _] = PROGRAMS;
    for processes in 1..=PROCESSES {
        let is = |of: Fit, scenario| of.scenario(processes) == scenario;
        let exclusive = is(ep.fit, Scenario::ExclusiveSpace);
        quantities.extend([
            Quantity::holds(format!("EP, {processes}: exclusive space"), exclusive),
            // One kernel fills the GPU, so that a second one waits.
            Quantity::holds(format!("MG, {processes}: time"), is(mg.fit, Scenario::Time)),
        ]);
    }
    for (name, blocks, processes, expected) in BORDERS {
        let fit = Fit::new(blocks, SMS, RESIDENT_MAX).map_err(super::adriaens::failed)?;
        let found = fit.scenario(processes);
        quantities.push(Quantity::holds(
            format!("{name}: {expected:?}"),
            found == expected,
        ));
    }
    let single = Fit::new(SMS + 1, SMS, 1).map_err(super::adriaens::failed)?;
    quantities.push(Quantity::holds(
        "one resident block, b > n: time, not shared space",
        single.scenario(1) == Scenario::Time,
    ));
    Ok(Report {
        title: "Scenarios on 14 SMs".to_owned(),
        parameters: Parameters {
            paper: "SMs; EP has 1 block and MG 4096",
            fitted: "",
            chosen: "8 resident blocks; the blocks at the borders",
        },
        quantities,
        ..Report::default()
    })
}
