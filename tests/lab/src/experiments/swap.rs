//! Swapped memory: random guests on a card that is too small for them, against the same guests on a
//! large one.
//!
//! The seed determines a script: allocations, frees, fills, uploads, copies across chunks, kernels,
//! reads, gates and time. It is played on a card that holds everything, and on one of a third of
//! the size with the daemon's keeper. The guests read the same bytes on both, during the run and at
//! its end. After each step of time:
//! - every byte of a tenant is in one place, and the card holds no more than it can (conservation);
//! - no channel has faulted, and fences complete in order (law 6: access to an absent page faults);
//! - new memory reads as zero, whichever tenant had it before (law 7).

mod script;
mod world;

use std::hash::Hasher;

use turnstile_accounting::{Moment, Nanos};
use turnstile_daemon::memory::MemoryKeeper;
use turnstile_gpu::prelude::*;

use crate::daemon_loop::laws::{BrokenLaw, Violation};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};
use script::{ACTS, script};
use world::World;

/// Guests of a run.
pub const GUESTS: usize = 3;

fn broken(what: impl std::fmt::Display) -> BrokenLaw {
    BrokenLaw::Memory(what.to_string())
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hashes of everything that guests read, in order, and of all their memory at the end.
    pub read: Vec<u64>,
    /// Bytes copied to the host and back.
    pub swapped_bytes: [u64; 2],
    /// Virtual time of the run.
    pub took: Nanos,
    /// Hash of the engines' log: equal for equal runs.
    pub log: u64,
}

/// Plays a seed's script on the small card, or on one that holds everything.
///
/// # Errors
/// The law that was broken.
pub fn play(seed: u64, small: bool) -> Result<Outcome, Violation> {
    let violation = |at: Moment, law| Violation { seed, at, law };
    let mut world = World::new(seed, small).map_err(|law| violation(Moment(0), law))?;
    let mut played = || {
        for (guest_index, act) in script(seed) {
            world.perform(guest_index, act)?;
        }
        world.finish()
    };
    let result = played();
    result.map_err(|law| violation(world.gpu.now(), law))?;
    let totals = |keeper: &MemoryKeeper| {
        let all = world.guests.iter().map(|g| keeper.manager().totals(g.id));
        all.fold([0; 2], |[out, into], totals| {
            [
                out + totals.swapped_out_bytes,
                into + totals.swapped_in_bytes,
            ]
        })
    };
    Ok(Outcome {
        swapped_bytes: world.keeper.as_ref().map_or([0; 2], totals),
        took: world.gpu.now().since(Moment(0)),
        log: world.log.finish(),
        read: world.read,
    })
}

/// Plays both runs of a seed, and compares what they read.
///
/// # Errors
/// The law that was broken.
pub fn compare(seed: u64) -> Result<[Outcome; 2], Violation> {
    let (large, small) = (play(seed, false)?, play(seed, true)?);
    if large.read != small.read {
        let at = Moment(small.took.0);
        let law = broken("a guest has read something else than without swapping");
        return Err(Violation { seed, at, law });
    }
    Ok([large, small])
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let outcomes = over_seeds(seeds, compare)?;
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(|[_, small]| of(small)).sum::<u64>();
    let different = outcomes
        .iter()
        .filter(|[large, small]| large.read != small.read);
    let slower = |[large, small]: &[Outcome; 2]| small.took.0 as f64 / large.took.0.max(1) as f64;
    let mib = |bytes: u64| (bytes >> 20) as f64;
    Ok(Report {
        title: format!(
            "{GUESTS} guests that may own three times the card, {ACTS} acts: what they read, with and without swapping"
        ),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities: vec![
            Quantity::of("seeds with a read that differs", "", different.count() as f64)
                .exactly(0.0),
            Quantity::of("reads compared", "", sum(|o| o.read.len() as u64) as f64),
            Quantity::of("moved out", "MiB", mib(sum(|o| o.swapped_bytes[0]))),
            Quantity::of("moved in", "MiB", mib(sum(|o| o.swapped_bytes[1]))),
            Quantity::over("time against a large card", "", outcomes.iter().map(slower).collect()),
        ],
        notes: vec!["A read that differs, a fault, a byte in two places or in none ends the experiment with its seed.".to_owned()],
        ..Report::default()
    })
}
