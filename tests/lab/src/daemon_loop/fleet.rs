//! Several GPUs under one daemon, in virtual time: a [`World`] each, stepped in the order of their
//! moments.
//!
//! The GPUs share the daemon's control thread. It handles one kick at a time, and none while it
//! ends the tenants of a GPU that is removed.

use turnstile_accounting::{Moment, Nanos};

use super::laws::{BrokenLaw, Violation};
use super::seats;
use super::setup::{Outcome, Participant, Setup};
use super::world::World;

/// One GPU of a run. The run of a GPU that is removed ends at that moment.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its loop.
    pub setup: Setup,
    /// Its tenants.
    pub participants: Vec<Participant>,
    /// Whether it is removed at the end of its run: work that is queued then is lost with it.
    pub removed: bool,
}

/// What one GPU did.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its result.
    pub outcome: Outcome,
    /// For each tenant, when each of its launches ended, and its time from the submission on.
    pub waits: Vec<Vec<(Moment, Nanos)>>,
}

/// Runs all GPUs to their ends. `leave_ns` is how long the control thread takes to end a tenant of
/// a GPU that is removed.
///
/// # Errors
/// The first law that was broken.
pub fn run_fleet(members: &[Member], leave_ns: Nanos) -> Result<Vec<Ran>, Violation> {
    let mut worlds = Vec::new();
    for member in members {
        let broken = |at, law| Violation {
            seed: member.setup.seed,
            at,
            law,
        };
        let world = World::new(member.setup, &member.participants);
        let mut world = world.map_err(|law| broken(Moment(0), law))?;
        world.settle().map_err(|law| broken(Moment(0), law))?;
        worlds.push(world);
    }
    let mut ran: Vec<Option<Ran>> = members.iter().map(|_| None).collect();
    let mut control_free_at = Moment(0);
    loop {
        let due = |(place, world): (usize, &World)| {
            let next = world.next_moment().unwrap_or(world.setup.end);
            let at = next.min(world.setup.end);
            ran[place].is_none().then_some((at, place))
        };
        let Some((at, place)) = worlds.iter().enumerate().filter_map(due).min() else {
            return Ok(ran.into_iter().flatten().collect());
        };
        let (world, member) = (&mut worlds[place], &members[place]);
        world.control_free_at = Some(control_free_at);
        let stepped = world.step(at).and_then(|()| {
            control_free_at = world.control_free_at.unwrap_or(control_free_at);
            if at < member.setup.end || world.next_moment() == Some(at) {
                return Ok(());
            }
            if member.removed {
                let tenants = member.participants.len() as u64;
                control_free_at = control_free_at.max(at) + Nanos(tenants * leave_ns.0);
            }
            ran[place] = Some(end(world, member)?);
            Ok(())
        });
        stepped.map_err(|law| Violation {
            seed: member.setup.seed,
            at,
            law,
        })?;
    }
}

fn end(world: &mut World, member: &Member) -> Result<Ran, BrokenLaw> {
    let (outcome, waits) = (world.outcome(), seats::waits(world));
    if !member.removed {
        world.drain()?;
    }
    Ok(Ran { outcome, waits })
}
