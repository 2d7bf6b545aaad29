//! The daemon's accounting thread in virtual time: the same calls in the same order, without the thread.

use turnstile_accounting::meter::Phases;
use turnstile_accounting::{Meter, Metric, Moment, Nanos, PolledMeter, Usage, Window};
use turnstile_mediator::gpu::Gpu;
use turnstile_mediator::mediation::{COMPUTE, GateOrder};
use turnstile_vmm::gate::GateState;

use super::laws::{BrokenLaw, id};
use super::sampler::Sampler;
use super::setup::{Dry, MeterSetup};
use super::world::{Event, World, engines, failed};
use rand::Rng;

/// The period under way, and what was seen so far.
#[derive(Debug)]
pub(super) struct Watch {
    /// Beginning of the period.
    from: Moment,
    /// Beginning of its observed part.
    begin: Moment,
    /// Service at `begin`.
    service_at_begin: Vec<Nanos>,
    poll_ns: Nanos,
    polled: PolledMeter,
    sampler: Option<Sampler>,
    last: Option<Usage>,
    pub(super) observed_ns: Vec<Nanos>,
    pub(super) observable_ns: Vec<Nanos>,
    pub(super) observed_wall_ns: Nanos,
}

impl Watch {
    pub(super) fn new(tenants: usize) -> Self {
        Self {
            from: Moment(0),
            begin: Moment(0),
            service_at_begin: vec![Nanos::ZERO; tenants],
            poll_ns: Nanos::ZERO,
            polled: PolledMeter::new(engines()),
            sampler: None,
            last: None,
            observed_ns: vec![Nanos::ZERO; tenants],
            observable_ns: vec![Nanos::ZERO; tenants],
            observed_wall_ns: Nanos::ZERO,
        }
    }
}

impl World {
    /// A period begins now.
    pub(super) fn begin_period(&mut self) {
        self.watch.from = self.now;
        match self.setup.meter {
            MeterSetup::Events { period_ns } => {
                self.begin_observing();
                self.sleep_until(self.now + period_ns, Event::PeriodEnd);
            }
            MeterSetup::Polled {
                phases, randomised, ..
            } => {
                let (used, allocated) = self.channel_counts();
                let Phases {
                    poll_ns,
                    nonpoll_ns,
                } = if randomised {
                    phases.randomised(used, allocated, self.random.random())
                } else {
                    phases.mean(used, allocated)
                };
                self.watch.poll_ns = poll_ns;
                self.sleep_until(self.now + nonpoll_ns, Event::PollBegin);
            }
        }
    }

    /// Ticks until the event that ends the sleep; the last look comes just before it.
    fn sleep_until(&mut self, until: Moment, event: Event) {
        let mut at = self.now;
        while at < until {
            at = (at + self.setup.tick_ns).min(until);
            self.schedule(at, Event::Tick);
        }
        self.schedule(until, event);
    }

    /// Channels in use and open.
    fn channel_counts(&mut self) -> (u32, u32) {
        let activity = self.activity();
        let used = activity
            .iter()
            .filter(|seen| seen.last_active.is_some_and(|at| at.0 > 0));
        // CAST: runs have few tenants.
        (used.count() as u32, activity.len() as u32)
    }

    fn begin_observing(&mut self) {
        self.watch.begin = self.now;
        let service = self.timeline.service();
        self.watch.service_at_begin.copy_from_slice(service);
    }

    pub(super) fn tick(&mut self) {
        let nobody_runs = self.gpu.engine_status(COMPUTE).running.is_none();
        if !nobody_runs || !self.mediation.anyone_waits() {
            return;
        }
        let dry = match self.setup.dry {
            Dry::NobodyRuns => true,
            Dry::NothingPending => {
                let opening = self.seats.iter().any(|seat| seat.gate.is_opening());
                !opening && self.activity().iter().all(|seen| seen.pending == 0)
            }
        };
        if dry {
            let order = self.mediation.ran_dry(self.now);
            if order.is_some() {
                self.dry_admissions += 1;
                self.lag.restart(self.timeline.service());
            }
            self.carry_out(order);
        }
    }

    pub(super) fn poll_begin(&mut self) {
        self.begin_observing();
        let end = self.now + self.watch.poll_ns;
        if let MeterSetup::Polled { iteration_ns, .. } = self.setup.meter {
            self.watch.sampler = Some(Sampler::new(self.now, end, iteration_ns));
        }
        self.schedule(end, Event::PeriodEnd);
        self.move_held(GateState::Open);
    }

    /// LoGA's text: who is held is let in for the poll phase, whatever the mediation wants.
    fn move_held(&mut self, state: GateState) {
        if !self.setup.admit_while_polling {
            return;
        }
        for place in 0..self.seats.len() {
            if self.mediation.gates(id(place)) == Some(GateState::Closed) {
                let request = self.seats[place].gate.want(state);
                self.send(place, request);
            }
        }
    }

    /// Reads the registers until just before `until`, up to which nothing happens.
    pub(super) fn read_registers(&mut self, until: Moment) {
        if let Some(sampler) = &mut self.watch.sampler {
            let meter = &mut self.watch.polled;
            sampler.read(&self.gpu, &engines(), until, meter, &mut self.random);
        }
    }

    pub(super) fn period_end(&mut self) -> Result<(), BrokenLaw> {
        let (from, begin, end) = (self.watch.from, self.watch.begin, self.now);
        let truth = self.truth.close(window(from, end));
        let (extrapolated, observed) = match self.setup.meter {
            MeterSetup::Events { .. } => (None, truth),
            MeterSetup::Polled { .. } => {
                self.watch.sampler = None;
                let observed = self.watch.polled.close(window(begin, end));
                let nonpoll = window(from, begin);
                let mediation = &self.mediation;
                let extrapolated = match &self.watch.last {
                    Some(seen) => {
                        seen.extrapolate(nonpoll, |tenant| mediation.was_admitted(tenant))
                    }
                    None => observed.extrapolate(nonpoll, |_| true),
                };
                self.watch.last = Some(observed.clone());
                (Some(extrapolated), observed)
            }
        };
        self.compare(&observed, extrapolated.is_none())?;
        let activity = self.activity();
        let usages = (self.books.is_some()).then(|| (extrapolated.clone(), observed.clone()));
        let orders = self
            .mediation
            .period_end(extrapolated, observed, &activity)?
            .to_vec();
        if let (Some(books), Some((extrapolated, observed))) = (&mut self.books, &usages) {
            let usages: Vec<&Usage> = extrapolated.iter().chain([observed]).collect();
            let kept = books.period(&usages, &self.mediation, &activity, self.now);
            kept.map_err(failed)?;
        }
        self.periods += 1;
        self.check_ledger()?;
        for order in orders {
            self.carry_out(Some(order));
        }
        self.move_held(GateState::Closed);
        self.begin_period();
        Ok(())
    }

    /// What the meter says against what the log says.
    fn compare(&mut self, observed: &Usage, exact: bool) -> Result<(), BrokenLaw> {
        self.watch.observed_wall_ns += observed.window.length();
        let compute = observed.engine(COMPUTE);
        for (place, now) in self.timeline.service().iter().enumerate() {
            let logged_ns = *now - self.watch.service_at_begin[place];
            let parts = compute.into_iter().flat_map(|engine| &engine.tenants);
            let metered_ns = parts
                .filter(|part| part.tenant == id(place))
                .map(|part| part.metric_ns(Metric::Total))
                .sum();
            if exact && metered_ns != logged_ns {
                return Err(BrokenLaw::Meter {
                    tenant: id(place),
                    metered_ns,
                    logged_ns,
                });
            }
            self.watch.observed_ns[place] += metered_ns;
            self.watch.observable_ns[place] += logged_ns;
        }
        Ok(())
    }

    /// Law 1, of the ledger: every engine's windows add up to all time, to the nanosecond.
    fn check_ledger(&self) -> Result<(), BrokenLaw> {
        let wall_ns = Nanos(self.now.0);
        for engine in self.mediation.ledger().snapshot().engines {
            let accounted_ns = engine.totals.accounted_ns();
            if accounted_ns != wall_ns || engine.totals.gap_ns != Nanos::ZERO {
                return Err(BrokenLaw::Conservation {
                    engine: usize::from(engine.engine.0),
                    accounted_ns,
                    wall_ns,
                });
            }
        }
        Ok(())
    }

    /// Moves a tenant's gate as the daemon does.
    pub(super) fn carry_out(&mut self, order: Option<GateOrder>) {
        let Some(GateOrder { tenant, state }) = order else {
            return;
        };
        let place = tenant.0 as usize - 1;
        self.timeline
            .note(&[self.now.0, u64::from(tenant.0), state as u64]);
        let request = self.seats[place].gate.want(state);
        self.send(place, request);
        match state {
            GateState::Closed => self.gpu.suspend(tenant),
            GateState::Open | GateState::Watched => self.gpu.resume(tenant),
        }
    }
}

/// A window between two moments in this order.
fn window(from: Moment, to: Moment) -> Window {
    Window::starting(from, to.since(from))
}
