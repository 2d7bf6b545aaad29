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

impl World {
    /// Seats the first tenants, makes their gates, and starts the daemon's loop.
    pub(super) fn begin(&mut self, first: Vec<Participant>) -> Result<(), BrokenLaw> {
        for participant in first {
            self.seat(&participant)?;
        }
        for place in 0..self.seats.len() {
            self.make_gate(place)?;
        }
        let moments: Vec<Moment> = self.joining.iter().map(|one| one.joins).collect();
        for at in moments {
            self.schedule(at, Event::Join);
        }
        self.begin_period();
        Ok(())
    }

    /// The next tenant joins, as a VM that is admitted.
    pub(super) fn join_due(&mut self) -> Result<(), BrokenLaw> {
        let Some(participant) = self.joining.pop_front() else {
            return Ok(());
        };
        self.seat(&participant)?;
        self.make_gate(self.seats.len() - 1)
    }

    fn seat(&mut self, participant: &Participant) -> Result<(), BrokenLaw> {
        let place = self.seats.len();
        let weight = Weight::new(participant.weight).map_err(failed)?;
        let params = TenantParams { weight, cap: None };
        let account = participant.account.unwrap_or(OWN_ACCOUNTS + place as u32);
        let account = AccountId(account);
        let membership = Membership {
            account,
            name: &format!("tenant{place}"),
        };
        if participant.account.is_none() {
            self.mediation.set_account(account, params);
        }
        let added = self.mediation.add(id(place), membership, params, self.now);
        added.map_err(failed)?;
        participant.load.check().map_err(failed)?;
        let load = participant.load.clone();
        let guest = Guest::start(&self.gpu, id(place), account, load, self.setup.seed);
        let guest = guest.map_err(failed)?;
        let doorbells = guest.vm.doorbells.clone();
        let gate = SimulatedGate::new(doorbells, guest.channel()).map_err(failed)?;
        self.seats.push(Seat {
            guest,
            gate,
            kick_pending: false,
            due: None,
        });
        Ok(())
    }

    /// Makes a tenant's gate: a VM is notified of a channel only after that.
    fn make_gate(&mut self, place: usize) -> Result<(), BrokenLaw> {
        let stands = self.mediation.gates(id(place));
        let seat = &mut self.seats[place];
        if let Some(request) = stands.and_then(|stands| seat.gate.add(stands)) {
            let next = seat.gate.carry_out(request).map_err(failed)?;
            self.send(place, next);
        }
        Ok(())
    }

    /// When the daemon has handled a kick of now. Several GPUs share its control thread, which
    /// handles one at a time.
    pub(super) fn kicks_at(&mut self) -> Moment {
        let free = self.control_free_at.unwrap_or(self.now);
        let at = free.max(self.now) + self.setup.kick_ns;
        self.control_free_at = self.control_free_at.map(|_| at);
        at
    }

    /// For each tenant, when each of its launches ended, and how long that took from its
    /// submission.
    pub(super) fn waits(&self) -> Vec<Vec<(Moment, Nanos)>> {
        let seats = self.seats.iter();
        seats.map(|seat| seat.guest.waits().to_vec()).collect()
    }
}
