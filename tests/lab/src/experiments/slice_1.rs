//! Share-a-GPU, eq. 1: the shortest slice that hides the copies.

use turnstile_accounting::Nanos;
use turnstile_policies::model::slice::{effective, shortest};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::Seeds;

const GB: u64 = 1_000_000_000;

/// The experiment.
///
/// # Errors
/// None.
pub fn report(_: &Seeds) -> Result<Report, Failure> {
    let ms = |ns: Option<Nanos>| ns.map_or(f64::NAN, |ns| ns.0 as f64 / 1e6);
    let least = shortest(5 * GB, 5 * GB, 10 * GB);
    let in_effect = |slice_ms| {
        let slice = Nanos::from_ms(slice_ms);
        ms(least.and_then(|least| effective(slice, least)))
    };
    let mut quantities = vec![
        Quantity::of(
            "5 GB out, 5 GB in, 10 GB/s: shortest slice",
            "ms",
            ms(least),
        )
        .paper(1_000.0)
        .exactly(1_000.0),
    ];
    for (slice_ms, expected) in [
        (500, 1_000.0),
        (1_000, 1_000.0),
        (400, 1_200.0),
        (2_000, 2_000.0),
    ] {
        let one = Quantity::of(
            format!("slice {slice_ms} ms: in effect"),
            "ms",
            in_effect(slice_ms),
        );
        let one = one.exactly(expected);
        quantities.push(if slice_ms == 500 {
            one.paper(1_000.0)
        } else {
            one
        });
    }
    quantities.extend([
        Quantity::holds(
            "a link of 0 bytes/s has no slice",
            shortest(GB, GB, 0).is_none(),
        ),
        Quantity::holds(
            "a slice of 0 is refused",
            effective(Nanos::ZERO, Nanos(1)).is_none(),
        ),
        Quantity::holds(
            "nothing to copy: any slice",
            shortest(0, 0, 1) == Some(Nanos::ZERO),
        ),
    ]);
    Ok(Report {
        title: "The slice of eq. 1, and the slice in effect".to_owned(),
        parameters: Parameters {
            paper: "5 GB each, 10 GB/s, slices of 500 and 1000 ms",
            fitted: "",
            chosen: "the other slices",
        },
        quantities,
        ..Report::default()
    })
}
