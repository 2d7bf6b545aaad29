//! Tenants of a run: each has a seat, from its beginning or from the moment at which it joins.

use turnstile_accounting::{AccountId, Moment, Nanos};
use turnstile_policies::{Membership, TenantParams, Weight};

use super::gates::SimulatedGate;
use super::guest::Guest;
use super::laws::{BrokenLaw, id};
use super::setup::Participant;
use super::world::{Event, World, failed};

/// Ids of accounts with a single tenant begin here.
const OWN_ACCOUNTS: u32 = 1_000;

/// State of a tenant.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) guest: Guest,
    pub(super) gate: SimulatedGate,
    pub(super) kick_pending: bool,
    pub(super) due: Option<Moment>,
}

/// Seats the first tenants, makes their gates, and starts the daemon's loop.
pub(super) fn begin(world: &mut World, first: Vec<Participant>) -> Result<(), BrokenLaw> {
    for participant in first {
        seat(world, &participant)?;
    }
    for place in 0..world.seats.len() {
        make_gate(world, place)?;
    }
    let moments: Vec<Moment> = world.joining.iter().map(|one| one.joins).collect();
    for at in moments {
        world.schedule(at, Event::Join);
    }
    world.begin_period();
    Ok(())
}

/// The next tenant joins, as a VM that is admitted.
pub(super) fn join_due(world: &mut World) -> Result<(), BrokenLaw> {
    let Some(participant) = world.joining.pop_front() else {
        return Ok(());
    };
    seat(world, &participant)?;
    make_gate(world, world.seats.len() - 1)
}

fn seat(world: &mut World, participant: &Participant) -> Result<(), BrokenLaw> {
    let place = world.seats.len();
    let weight = Weight::new(participant.weight).map_err(failed)?;
    let params = TenantParams { weight, cap: None };
    let account = participant.account.unwrap_or(OWN_ACCOUNTS + place as u32);
    let account = AccountId(account);
    let membership = Membership {
        account,
        name: &format!("tenant{place}"),
    };
    if participant.account.is_none() {
        world.mediation.set_account(account, params);
    }
    let added = world
        .mediation
        .add(id(place), membership, params, world.now);
    added.map_err(failed)?;
    participant.load.check().map_err(failed)?;
    let load = participant.load.clone();
    let guest = Guest::start(&world.gpu, id(place), account, load, world.setup.seed);
    let guest = guest.map_err(failed)?;
    let doorbells = guest.vm.doorbells.clone();
    let gate = SimulatedGate::new(doorbells, guest.channel()).map_err(failed)?;
    world.seats.push(Seat {
        guest,
        gate,
        kick_pending: false,
        due: None,
    });
    Ok(())
}

/// Makes a tenant's gate: a VM is notified of a channel only after that.
fn make_gate(world: &mut World, place: usize) -> Result<(), BrokenLaw> {
    let stands = world.mediation.gates(id(place));
    let seat = &mut world.seats[place];
    if let Some(request) = stands.and_then(|stands| seat.gate.add(stands)) {
        let next = seat.gate.carry_out(request).map_err(failed)?;
        world.send(place, next);
    }
    Ok(())
}

/// When the daemon has handled a kick of now. Several GPUs share its control thread, which
/// handles one at a time.
pub(super) fn kicks_at(world: &mut World) -> Moment {
    let free = world.control_free_at.unwrap_or(world.now);
    let at = free.max(world.now) + world.setup.kick_ns;
    world.control_free_at = world.control_free_at.map(|_| at);
    at
}

/// For each tenant, when each of its launches ended, and how long that took from its
/// submission.
pub(super) fn waits(world: &World) -> Vec<Vec<(Moment, Nanos)>> {
    let seats = world.seats.iter();
    seats.map(|seat| seat.guest.waits().to_vec()).collect()
}
