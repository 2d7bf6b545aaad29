//! The daemon's accounting thread in virtual time: the same calls in the same order, without a
//! thread.

use turnstile_accounting::meter::{ChannelSnapshot, KnownIdle, Pace, Phases, Unobserved};
use turnstile_accounting::{Meter, Metric, Moment, Nanos, PolledMeter, Usage, Window};
use turnstile_gpu::prelude::*;
use turnstile_gpu::{Order, Suspend};
use turnstile_mediation::{COMPUTE, Control, GateOrder, REACTION_MIN};
use turnstile_vmm::gate::GateState;

use super::laws::{BrokenLaw, id};
use super::sampler::Sampler;
use super::setup::MeterSetup;
use super::world::{Event, World, engines, failed};
use rand::Rng;

/// The current period, and what was observed in it.
#[derive(Debug)]
// FIELDS: what is measured of a run, each from a time of its own.
pub(super) struct Watch {
    /// Beginning of the period.
    from: Moment,
    /// Beginning of its observed part.
    begin: Moment,
    /// Service at `from` and at `begin`.
    service_at_from: Vec<Nanos>,
    service_at_begin: Vec<Nanos>,
    poll_ns: Nanos,
    polled: PolledMeter,
    unobserved: Unobserved,
    pace: Pace,
    sampler: Option<Sampler>,
    pub(super) observed_ns: Vec<Nanos>,
    pub(super) observable_ns: Vec<Nanos>,
    pub(super) observed_wall_ns: Nanos,
}

impl Watch {
    pub(super) fn new(tenants: usize, suspend: Suspend) -> Self {
        Self {
            from: Moment(0),
            begin: Moment(0),
            service_at_from: vec![Nanos::ZERO; tenants],
            service_at_begin: vec![Nanos::ZERO; tenants],
            poll_ns: Nanos::ZERO,
            polled: PolledMeter::new(engines()),
            unobserved: Unobserved::new(COMPUTE, suspend == Suspend::MidKernel),
            pace: Pace::default(),
            sampler: None,
            observed_ns: vec![Nanos::ZERO; tenants],
            observable_ns: vec![Nanos::ZERO; tenants],
            observed_wall_ns: Nanos::ZERO,
        }
    }
}

impl World {
    /// Begins a period now.
    pub(super) fn begin_period(&mut self) {
        self.watch.from = self.now;
        let service = self.timeline.service();
        self.watch.service_at_from.copy_from_slice(service);
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
                let poll = self.poll();
                let (stops, mediation) = (self.stops(), &self.mediation);
                let suspended = |tenant| stops && !mediation.admitted(tenant);
                self.watch.unobserved.begin(poll, suspended);
                self.sleep_until(self.now + nonpoll_ns, Event::PollBegin);
            }
        }
    }

    /// Schedules ticks until the event that ends the sleep; the last poll is just before it.
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

    /// Whether the GPU stops pending work of a held tenant.
    fn stops(&self) -> bool {
        self.setup.suspend != Suspend::Drains
    }

    /// The GPU's current state.
    fn poll(&mut self) -> ChannelSnapshot {
        let occupant = |engine| (engine, self.gpu.engine_status(engine).running);
        let occupants = engines().map(occupant).to_vec();
        let mut channels = Vec::new();
        for seat in &self.seats {
            self.channels.clear();
            self.gpu.activity(seat.guest.id, &mut self.channels);
            channels.extend(self.channels.iter().map(|of| of.reading(seat.guest.id)));
        }
        ChannelSnapshot {
            occupants,
            channels,
        }
    }

    fn begin_observing(&mut self) {
        self.watch.begin = self.now;
        let service = self.timeline.service();
        self.watch.service_at_begin.copy_from_slice(service);
    }

    /// Schedules a decision at this moment at the latest.
    pub(super) fn decide_by(&mut self, at: Moment) {
        if self.decides_at.is_none_or(|then| at < then) {
            self.decides_at = Some(at);
            self.schedule(at, Event::Decide);
        }
    }

    /// Decides again, as the daemon does on a notice of the GPU and when the policy requests it.
    pub(super) fn decide(&mut self) {
        self.decides_at = None;
        let orders = self.mediation.decide(self.now);
        for order in orders {
            self.carry_out(Some(order));
        }
        self.carry_out_holds();
    }

    /// Applies the holds to the dispatcher, and schedules the next decision.
    fn carry_out_holds(&mut self) {
        let orders = self.mediation.take_gpu_orders();
        self.gpu.carry_out(&orders);
        for order in orders {
            let (tenant, engine, held) = match order {
                Order::Hold(tenant, engine) => (tenant, engine, true),
                Order::Release(tenant, engine) => (tenant, engine, false),
                _ => continue,
            };
            let note = [
                self.now.0,
                u64::from(tenant.0),
                u64::from(engine.0),
                u64::from(held),
            ];
            self.timeline.note(&note);
            self.hold_changes += 1;
        }
        if let Some(at) = self.mediation.decide_at() {
            self.decide_by(at.max(self.now + REACTION_MIN));
        }
    }

    pub(super) fn tick(&mut self) {
        if self.mediation.control() == Control::Gates && self.mediation.held().next().is_some() {
            self.decide();
        }
    }

    pub(super) fn poll_begin(&mut self) {
        self.begin_observing();
        let end = self.now + self.watch.poll_ns;
        if let MeterSetup::Polled { iteration_ns, .. } = self.setup.meter {
            let pause_ns = self.watch.pace.pause();
            let sampler = Sampler::new(self.now, end, iteration_ns, pause_ns);
            self.watch.sampler = Some(sampler);
            let poll = self.poll();
            self.watch.unobserved.end(poll);
        }
        self.schedule(end, Event::PeriodEnd);
        self.move_held(GateState::Open);
    }

    /// As in LoGA's text: held tenants are admitted in the poll phase, whatever the mediation
    /// decides.
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

    /// Reads the registers until just before `until`; no event is before it.
    pub(super) fn read_registers(&mut self, until: Moment) {
        if let Some(sampler) = &mut self.watch.sampler {
            let meter = &mut self.watch.polled;
            sampler.read(&self.gpu, &engines(), until, meter, &mut self.random);
        }
    }

    pub(super) fn period_end(&mut self) -> Result<(), BrokenLaw> {
        let (from, begin, end) = (self.watch.from, self.watch.begin, self.now);
        let truth = self.truth.close(window(from, end));
        let (estimated, mut observed) = match self.setup.meter {
            MeterSetup::Events { .. } => (None, truth),
            MeterSetup::Polled { adaptive, .. } => {
                let poll = self.poll();
                let watch = &mut self.watch;
                let gap = watch.sampler.take().map_or(Nanos::ZERO, |s| s.gap());
                let finished = watch.unobserved.finished_in_phase(&poll);
                watch.polled.sampled(finished, gap);
                let observed = watch.polled.close(window(begin, end));
                let nonpoll = window(from, begin);
                let estimated =
                    watch
                        .unobserved
                        .charge(nonpoll, &observed, &poll, KnownIdle::default());
                if adaptive {
                    watch.pace = Pace::next(&observed);
                }
                (Some(estimated), observed)
            }
        };
        observed.copied = self.reading.copied.take();
        self.check_bounds(estimated.as_ref(), &observed)?;
        self.compare(&observed, estimated.is_none())?;
        let activity = self.activity();
        let usages = (self.books.is_some()).then(|| (estimated.clone(), observed.clone()));
        let orders = self
            .mediation
            .period_end(estimated, observed, &activity)?
            .to_vec();
        if let (Some(books), Some((estimated, observed))) = (&mut self.books, &usages) {
            let usages: Vec<&Usage> = estimated.iter().chain([observed]).collect();
            let kept = books.period(&usages, &self.mediation, &activity, self.now);
            kept.map_err(failed)?;
        }
        self.periods += 1;
        self.check_ledger()?;
        for order in orders {
            self.carry_out(Some(order));
        }
        self.carry_out_holds();
        self.move_held(GateState::Closed);
        self.begin_period();
        Ok(())
    }

    /// Checks the error bound of each usage of the period against the log.
    fn check_bounds(&self, estimated: Option<&Usage>, observed: &Usage) -> Result<(), BrokenLaw> {
        let watch = &self.watch;
        let (from, begin) = (&watch.service_at_from[..], &watch.service_at_begin[..]);
        let first = estimated.map(|usage| (usage, from, begin));
        let second = (observed, begin, self.timeline.service());
        for (usage, before, after) in first.into_iter().chain([second]) {
            let bound_ns = usage
                .engine(COMPUTE)
                .map_or(Nanos::ZERO, |e| e.error_bound_ns);
            for (place, (before, after)) in before.iter().zip(after).enumerate() {
                let (tenant, logged_ns) = (id(place), *after - *before);
                let charged_ns = usage.tenant_ns(tenant, Metric::Total);
                let error_ns = charged_ns.0.abs_diff(logged_ns.0);
                if error_ns > bound_ns.0 || bound_ns > usage.window.length() {
                    return Err(BrokenLaw::Bound {
                        tenant,
                        charged_ns,
                        logged_ns,
                        bound_ns,
                    });
                }
            }
        }
        Ok(())
    }

    /// Compares the meter with the log.
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

    /// Law 1, of the ledger: each engine's windows add up to all time, to the nanosecond.
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
        if self.mediation.control() == Control::Holds {
            return;
        }
        match state {
            GateState::Closed => self.gpu.carry_out(&[Order::Suspend(tenant)]),
            GateState::Open | GateState::Watched => self.gpu.carry_out(&[Order::Resume(tenant)]),
        }
    }
}

/// A window between two moments in this order.
fn window(from: Moment, to: Moment) -> Window {
    Window::starting(from, to.since(from))
}
