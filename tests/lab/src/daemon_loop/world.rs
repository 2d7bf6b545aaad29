//! A run: software GPU, gates, guests and the daemon's loop, event by event.

use std::collections::{BTreeMap, VecDeque};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use turnstile_accounting::record::Entry;
use turnstile_accounting::{EngineId, EventMeter, Meter, Moment, Nanos, Observation};
use turnstile_daemon::tenant::gates::GateMove;
use turnstile_gpu::prelude::*;
use turnstile_gpu::{ChannelActivity, DoorbellChange, EngineReading, Order, Suspend};
use turnstile_mediation::{Activity, Mediation};
use turnstile_policies::Tuning;
use turnstile_soft::{ENGINES, SoftConfig, VirtualGpu};
use turnstile_vmm::gate::GateState;

use super::books::{BookKeeping, Books};
use super::gates::SimulatedGate;
use super::guest::{Executed, Execution, Load};
use super::laws::{BrokenLaw, Claimant, Idleness, Lag, Launches, Violation, id};
use super::seats::{self, Seat};
use super::timeline::Timeline;
use super::watch::Watch;

pub use super::setup::{MeterSetup, Outcome, Participant, Setup};

/// An event at a moment that is known in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The daemon is notified of a trapped doorbell.
    Kick(usize),
    /// A gate has moved as requested.
    Moved(usize, GateMove),
    /// A guest has a launch to submit.
    Due(usize),
    /// A tenant joins.
    Join,
    /// The daemon polls for an idle engine.
    Tick,
    /// The daemon decides again.
    Decide,
    /// A poll phase begins.
    PollBegin,
    /// A period ends.
    PeriodEnd,
}

/// A run in progress.
#[derive(Debug)]
// FIELDS: all that a simulated host has; a test reads any of it.
pub struct World {
    pub(super) setup: Setup,
    pub(super) gpu: VirtualGpu,
    pub(super) seats: Vec<Seat>,
    /// Tenants that join later, in the order of their moments.
    pub(super) joining: VecDeque<Participant>,
    /// When the daemon's control thread is free, if several GPUs share it.
    pub(super) control_free_at: Option<Moment>,
    pub(super) mediation: Mediation,
    pub(super) now: Moment,
    pub(super) timeline: Timeline,
    /// Follows the log as the daemon does.
    pub(super) truth: EventMeter,
    pub(super) watch: Watch,
    pub(super) random: SmallRng,
    pub(super) periods: u64,
    pub(super) hold_changes: u64,
    /// The daemon has ended.
    over: bool,
    /// When the next decision is scheduled.
    pub(super) decides_at: Option<Moment>,
    pub(super) reading: EngineReading,
    queue: BTreeMap<(Moment, u64), Event>,
    next_event: u64,
    execution: Execution,
    launches: Launches,
    pub(super) lag: Lag,
    idleness: Idleness,
    steps: u64,
    executed: Vec<Executed>,
    pub(super) channels: Vec<ChannelActivity>,
    /// Its ledger, if one is kept.
    pub(super) books: Option<Books>,
}

/// Runs to the end, and then until all work has ended.
///
/// # Errors
/// The first law that was broken.
pub fn run(setup: Setup, participants: &[Participant]) -> Result<Outcome, Violation> {
    let mut world = World::new(setup, participants).map_err(|law| Violation {
        seed: setup.seed,
        at: Moment(0),
        law,
    })?;
    let outcome = world.run_to_end();
    outcome.map_err(|law| Violation {
        seed: setup.seed,
        at: world.now,
        law,
    })
}

/// As [`run`], with a ledger: also returns its entries, the last of which ends with the run.
///
/// # Errors
/// As [`run`].
pub fn run_with_books(
    setup: Setup,
    participants: &[Participant],
    keeping: BookKeeping,
) -> Result<(Outcome, Vec<Entry>), Violation> {
    let broken = |at, law| Violation {
        seed: setup.seed,
        at,
        law,
    };
    let world = World::new(setup, participants);
    let mut world = world.map_err(|law| broken(Moment(0), law))?;
    let books = Books::new(keeping).map_err(|error| broken(Moment(0), failed(error)))?;
    world.books = Some(books);
    let outcome = world.run_to_end();
    let outcome = outcome.map_err(|law| broken(world.now, law))?;
    let entries = world.books.take().map_or_else(Vec::new, Books::close);
    Ok((outcome, entries))
}

pub(super) fn failed(error: impl std::fmt::Display) -> BrokenLaw {
    BrokenLaw::Setup(error.to_string())
}

/// The engines of the GPU.
pub(super) fn engines() -> [EngineId; ENGINES] {
    std::array::from_fn(|index| EngineId(index as u8))
}

impl World {
    pub(super) fn new(setup: Setup, participants: &[Participant]) -> Result<Self, BrokenLaw> {
        let execution = Execution::default();
        let config = SoftConfig {
            switch: setup.switch_ns,
            suspend: setup.suspend,
            seed: setup.seed,
            ..SoftConfig::default()
        };
        let gpu = VirtualGpu::with_cost(config, Box::new(execution.clone()));
        let tuning = Tuning::default();
        let mediation = Mediation::for_gpu(&setup.policy, &tuning, &gpu.capabilities());
        // A tenant that launches and waits pays for its preemptions in virtual time.
        let pays = |load: &Load| setup.suspend == Suspend::MidKernel && load.depth() == 1;
        let claimant = |participant: &Participant| Claimant {
            weight: participant.weight,
            saturating: participant.load.is_saturating() && !pays(&participant.load),
            start: participant.load.start().max(participant.joins),
            queued_ns_max: participant.load.queued_ns_max(),
        };
        let period_ns = match setup.meter {
            MeterSetup::Events { period_ns } => period_ns.max(tuning.slack_ns),
            MeterSetup::Polled { .. } => Nanos::ZERO,
        };
        let move_ns = Nanos(2 * setup.gate_move_ns.0) + setup.kick_ns;
        let claimants = participants.iter().map(claimant).collect();
        let tenants = participants.len();
        let (first, later): (Vec<_>, Vec<_>) =
            (participants.iter().cloned()).partition(|one| one.joins == Moment(0));
        let mut world = Self {
            setup,
            gpu,
            seats: Vec::new(),
            joining: later.into(),
            control_free_at: None,
            mediation,
            now: Moment(0),
            timeline: Timeline::new(tenants, setup.window_ns),
            truth: EventMeter::new(engines()),
            watch: Watch::new(tenants, setup.suspend),
            random: SmallRng::seed_from_u64(setup.seed),
            periods: 0,
            hold_changes: 0,
            over: false,
            decides_at: None,
            reading: EngineReading::default(),
            queue: BTreeMap::new(),
            next_event: 0,
            execution,
            launches: Launches::new(tenants, setup.suspend == Suspend::MidKernel),
            lag: Lag::new(claimants, period_ns, move_ns),
            idleness: Idleness::new(setup.reaction_ns(tenants)),
            steps: 0,
            executed: Vec::new(),
            channels: Vec::new(),
            books: None,
        };
        seats::begin(&mut world, first)?;
        Ok(world)
    }

    fn run_to_end(&mut self) -> Result<Outcome, BrokenLaw> {
        let end = self.setup.end;
        self.settle()?;
        while let Some(at) = self.next_moment().filter(|at| *at <= end) {
            self.step(at)?;
        }
        self.step(end)?;
        let outcome = self.outcome();
        self.drain()?;
        Ok(outcome)
    }

    /// The daemon leaves, all gates are opened, and all tenants are resumed: all announced work has
    /// to end.
    pub(super) fn drain(&mut self) -> Result<(), BrokenLaw> {
        self.over = true;
        for place in 0..self.seats.len() {
            self.seats[place].guest.stop();
            let request = self.seats[place].gate.want(GateState::Open);
            self.send(place, request);
            for engine in engines() {
                self.gpu.carry_out(&[Order::Release(id(place), engine)]);
            }
        }
        while let Some(at) = self.next_moment() {
            self.step(at)?;
        }
        let lost = self.seats.iter().find(|seat| {
            let guest = &seat.guest;
            guest.completed() != guest.submitted() || seat.gate.counters().dropped > 0
        });
        lost.map_or(Ok(()), |seat| {
            Err(BrokenLaw::Lost {
                tenant: seat.guest.id,
                submitted: seat.guest.submitted(),
                completed: seat.guest.completed(),
            })
        })
    }

    pub(super) fn next_moment(&self) -> Option<Moment> {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        queued.into_iter().chain(self.gpu.next_event()).min()
    }

    /// Advances to `at` and handles its events.
    pub(super) fn step(&mut self, at: Moment) -> Result<(), BrokenLaw> {
        self.read_registers(at);
        self.idleness
            .check(at, self.setup.enforce_work_conserving && !self.over)?;
        self.gpu.advance_to(at);
        self.now = at;
        self.settle()?;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= at) {
            let event = entry.remove();
            self.happen(event)?;
            self.settle()?;
        }
        self.check()
    }

    /// The guests read what the GPU has done, and the GPU reads what they submit.
    pub(super) fn settle(&mut self) -> Result<(), BrokenLaw> {
        for place in 0..self.seats.len() {
            let seat = &mut self.seats[place];
            seat.guest.poll(self.now)?;
            let put = seat.guest.submit(self.now);
            let due = seat.guest.next_due().filter(|due| seat.due != Some(*due));
            if let Some(at) = due {
                seat.due = due;
                self.schedule(at.max(self.now), Event::Due(place));
            }
            if let Some(put) = put {
                self.ring(place, put);
            }
        }
        // Reads the doorbells behind open gates.
        self.gpu.next_event();
        self.read_log()
    }

    fn ring(&mut self, place: usize, put: u32) {
        let seat = &self.seats[place];
        seat.gate.ring(put);
        let kicked = seat.gate.take_kick();
        if kicked {
            self.kick(place);
        }
    }

    fn kick(&mut self, place: usize) {
        if !std::mem::replace(&mut self.seats[place].kick_pending, true) {
            let at = seats::kicks_at(self);
            self.schedule(at, Event::Kick(place));
        }
    }

    pub(super) fn schedule(&mut self, at: Moment, event: Event) {
        self.queue.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    /// Sends a request to a gate.
    pub(super) fn send(&mut self, place: usize, request: Option<GateMove>) {
        if let Some(request) = request {
            let at = self.now + self.setup.gate_move_ns;
            self.schedule(at, Event::Moved(place, request));
        }
        let open = self.seats[place].gate.any_open();
        self.gpu
            .doorbells_changed(id(place), DoorbellChange::AnyOpen(open));
    }

    fn happen(&mut self, event: Event) -> Result<(), BrokenLaw> {
        match event {
            Event::Kick(place) => {
                self.seats[place].kick_pending = false;
                self.gpu
                    .doorbells_changed(id(place), DoorbellChange::Written);
                if !self.over {
                    let order = self.mediation.woke(id(place), self.now);
                    self.carry_out(order);
                }
            }
            Event::Moved(place, request) => {
                let next = self.seats[place].gate.carry_out(request).map_err(failed)?;
                if self.seats[place].gate.take_kick() {
                    self.kick(place);
                }
                self.send(place, next);
                self.gpu
                    .doorbells_changed(id(place), DoorbellChange::Written);
            }
            Event::Due(place) => self.seats[place].due = None,
            Event::Join => seats::join_due(self)?,
            Event::Tick | Event::Decide | Event::PollBegin | Event::PeriodEnd if self.over => {}
            Event::Tick => self.tick(),
            Event::Decide => {
                // The decision was rescheduled to an earlier moment.
                if self.decides_at == Some(self.now) {
                    self.decide();
                }
            }
            Event::PollBegin => self.poll_begin(),
            Event::PeriodEnd => self.period_end()?,
        }
        Ok(())
    }

    pub(super) fn read_log(&mut self) -> Result<(), BrokenLaw> {
        self.gpu.read(&mut self.reading);
        let EngineReading {
            switches, demand, ..
        } = &mut self.reading;
        if !self.over {
            let polls = matches!(self.setup.meter, MeterSetup::Polled { .. });
            let observed: &[_] = if polls { &[] } else { switches };
            self.mediation.observe(observed, demand);
        }
        demand.clear();
        if self.gpu.take_notice() {
            self.decide_by(self.now + self.setup.kick_ns);
        }
        for event in self.reading.switches.drain(..) {
            self.timeline.take(event)?;
            self.truth.observe(Observation::Switch(event));
        }
        self.timeline.advance(self.now)?;
        self.execution.drain(&mut self.executed);
        for executed in self.executed.drain(..) {
            let place = (executed.tenant.0 as usize).wrapping_sub(1);
            let submitted = self.seats.get(place).map_or(0, |s| s.guest.submitted());
            self.launches.take(executed, submitted)?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), BrokenLaw> {
        self.steps += 1;
        self.timeline.check()?;
        let service = self.timeline.service();
        self.launches.check(service, self.timeline.runs())?;
        if self.setup.enforce_lag && !self.over {
            self.lag.check(service, self.now)?;
        }
        let held = |seat: &&Seat| {
            let pending = seat.guest.submitted() > seat.guest.completed();
            pending && !self.mediation.admitted(seat.guest.id)
        };
        let waits = self
            .seats
            .iter()
            .find(|seat| seat.gate.keeps() || held(seat));
        let waits = waits.map(|seat| seat.guest.id);
        self.idleness
            .update(self.now, self.timeline.is_idle(), waits);
        Ok(())
    }

    /// The pending work of each tenant, as the daemon reads it.
    pub(super) fn activity(&mut self) -> Vec<Activity> {
        let mut list = Vec::new();
        for seat in &self.seats {
            self.channels.clear();
            self.gpu.activity(seat.guest.id, &mut self.channels);
            list.push(Activity {
                tenant: seat.guest.id,
                pending: self.channels.iter().map(|c| u64::from(c.pending)).sum(),
                last_active: self.channels.iter().map(|c| c.last_active).max(),
            });
        }
        list
    }

    pub(super) fn outcome(&self) -> Outcome {
        let places = 0..self.seats.len();
        let gates = || self.seats.iter().map(|seat| &seat.gate);
        let ledger = self.mediation.ledger();
        let held = |place| ledger.tenant(id(place)).held_ns;
        Outcome {
            windows: self.timeline.windows().to_vec(),
            service_ns: self.timeline.service().to_vec(),
            charged_ns: places
                .clone()
                .map(|place| ledger.tenant(id(place)).totals.used_ns)
                .collect(),
            observed_ns: self.watch.observed_ns.clone(),
            observable_ns: self.watch.observable_ns.clone(),
            observed_wall_ns: self.watch.observed_wall_ns,
            ledger_wall_ns: ledger
                .snapshot()
                .window
                .map_or(Nanos::ZERO, |window| window.length()),
            held_ns: places
                .map(|place| held(place) + self.mediation.held_now(id(place), self.now))
                .collect(),
            launches: self.seats.iter().map(|s| s.guest.completed()).collect(),
            idle_ns: self.timeline.idle_ns(),
            switching_ns: self.timeline.switching_ns(),
            idle_behind_gate_max_ns: self.idleness.longest_ns(),
            lag_permille: self.lag.worst_permille(),
            gate_moves: gates().map(SimulatedGate::moves).sum(),
            traps: gates().map(|gate| gate.counters().trapped).collect(),
            periods: self.periods,
            steps: self.steps,
            hash: self.timeline.hash(),
        }
    }
}
