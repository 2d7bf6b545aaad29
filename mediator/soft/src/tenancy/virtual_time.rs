//! The software GPU in virtual time: a discrete-event run of the same core, exact and repeatable.
//!
//! Nothing happens between events, and events of one moment happen in the order of the engines.
//! Kernels are computed when they begin, so that results are right, and end when the cost model
//! determines. The same calls on a GPU of the same configuration leave the same log, record for
//! record.
//!
//! Doorbells and the words that channels wait for are polled at every call and at every event.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_abi::{ErrorCode, Launch};
use turnstile_accounting::{Moment, Nanos};

use super::Driver;
use crate::address_space::swap::Swap;
use crate::config::{ENGINES, Kernels, SoftConfig};
use crate::core::{Core, front_end};
use crate::execute::kernel::run_virtual;
use crate::execute::work::{Kernel, Outcome, Progress, Start, Work};
use crate::execute::{execute_transfer, given_length, transfer_bytes};
use crate::memory::CardMemory;
use crate::rank;
use crate::registers::Registers;
use turnstile_gpu::ring::ChannelFault;
use turnstile_host::ranked::{Ranked, RankedGuard};

/// How long kernels last where they are not computed.
pub trait KernelCost: Send + std::fmt::Debug {
    /// The length of a launch with these parameters.
    fn length(&mut self, launch: &Launch, params: &[u8]) -> Nanos;
}

/// What an engine is at.
#[derive(Debug)]
struct Run {
    /// When it ends unless it is stopped, and how.
    ends_at: Moment,
    outcome: Outcome,
    start: Start,
}

#[derive(Debug)]
struct State {
    core: Core,
    now: Moment,
    runs: [Option<Run>; ENGINES],
    cost: Option<Box<dyn KernelCost>>,
    rng: SmallRng,
}

/// A software GPU on a virtual clock, which begins at zero and moves only by
/// [`VirtualGpu::advance_to`].
///
/// With a meter and a policy, two tenants with commands of 2 ms and 200 us share it evenly:
///
/// ```
/// use std::sync::Arc;
/// use turnstile_abi::{Command, Dim3, Launch};
/// use turnstile_accounting::*;
/// use turnstile_gpu::{plain, Channels, Metering, Order, EngineReading, Suspend, Suspension};
/// use turnstile_soft::*;
/// use turnstile_policies::*;
///
/// let gpu = VirtualGpu::new(SoftConfig {
///     kernels: Kernels::GivenLength,
///     suspend: Suspend::BetweenCommands,
///     ..SoftConfig::default()
/// });
/// let (engine, period) = (EngineId(0), DECISION_PERIOD_NS);
/// let mut policy = policy_by_name("dfq").unwrap().policy(&Tuning::default()).unwrap();
/// let mut guests = Vec::new();
/// for (tenant, ns) in [(TenantId(1), 2_000_000u64), (TenantId(2), 200_000)] {
///     let vm = Arc::new(plain::PlainVm::new(1 << 20));
///     gpu.create_context(tenant, vm.resources(AccountId(tenant.0), 0, 1))?;
///     let membership = Membership { account: AccountId(tenant.0), name: "vm" };
///     policy.add(tenant, membership, TenantParams::default(), gpu.now())?;
///     policy.woke(tenant, gpu.now())?;
///     let (params_gpa, one) = (vm.put(&ns.to_le_bytes()), Dim3::line(1));
///     let launch = Launch {
///         module: 0,
///         function: 0,
///         grid: one,
///         block: one,
///         shared_bytes: 0,
///         param_bytes: 8,
///         params_gpa,
///     };
///     guests.push((vm.open_channel(&gpu, tenant, 8, 0)?, Command::Launch(launch), true));
/// }
/// let mut meter = EventMeter::new((0..3).map(EngineId));
/// let (mut used, mut reading) = ([0; 2], EngineReading::default());
/// for n in 0..200 {
///     let window = Window::starting(Moment(n * period.0), period);
///     while gpu.now() < window.to() {
///         for (channel, launch, _) in &mut guests {
///             while channel.put.wrapping_sub(channel.state().get) < 2 {
///                 channel.push(launch);
///             }
///             channel.ring_watched(&gpu);
///         }
///         gpu.advance_to(gpu.next_event().map_or(window.to(), |at| at.min(window.to())));
///     }
///     gpu.read(&mut reading);
///     for event in reading.switches.drain(..) {
///         meter.observe(Observation::Switch(event));
///         if event.engine == engine {
///             policy.observe(event.at, EngineEvent::State(event.state));
///         }
///     }
///     let usage = meter.close(window);
///     let tenants: Vec<_> = guests.iter().map(|(channel, _, admitted)| {
///         let parts = usage.engine(engine).into_iter().flat_map(|e| &e.tenants);
///         let used_ns = parts.filter(|t| t.tenant == channel.tenant).map(|t| t.used_ns).sum();
///         TenantPeriod {
///             tenant: channel.tenant,
///             used_ns,
///             charged_ns: used_ns,
///             admitted: *admitted,
///             backlogged: true,
///         }
///     }).collect();
///     let (poll_ns, nonpoll_ns) = (window.length(), Nanos::ZERO);
///     let usage = PeriodUsage {
///         end: window.to(),
///         basis: Basis::Measured,
///         poll_ns,
///         nonpoll_ns,
///         tenants: &tenants,
///     };
///     for decided in policy.period_end(&usage) {
///         let held = decided.decision != Decision::Admit;
///         gpu.carry_out(&[Order::holding(decided.tenant, engine, held)]);
///         guests.iter_mut().filter(|g| g.0.tenant == decided.tenant).for_each(|g| g.2 = !held);
///     }
///     used.iter_mut().zip(&tenants).for_each(|(sum, tenant)| *sum += tenant.used_ns.0);
/// }
/// assert!(used[0].abs_diff(used[1]) < 4 * period.0, "{used:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VirtualGpu {
    config: SoftConfig,
    card: CardMemory,
    swap: Option<Swap>,
    registers: Arc<Registers>,
    state: Ranked<State>,
}

impl VirtualGpu {
    /// Makes a GPU.
    ///
    /// # Panics
    /// When the host has no memory for the configured pool.
    pub fn new(config: SoftConfig) -> Self {
        let mut core = Core::new(config, Moment(0));
        // PANIC: this is for tests and the lab, which cannot go on without.
        let (card, swap) = Swap::new(&config).expect("memory for the pool");
        core.memory_log = swap.as_ref().map(|swap| swap.log.clone());
        Self {
            config,
            card,
            swap,
            registers: core.registers.clone(),
            state: Ranked::new(
                rank::CORE,
                State {
                    core,
                    now: Moment(0),
                    runs: Default::default(),
                    cost: None,
                    rng: SmallRng::seed_from_u64(config.seed),
                },
            ),
        }
    }

    /// Makes a GPU that takes the length of kernels from `cost` and computes none.
    pub fn with_cost(config: SoftConfig, cost: Box<dyn KernelCost>) -> Self {
        let kernels = Kernels::GivenLength;
        let gpu = Self::new(SoftConfig { kernels, ..config });
        gpu.lock().cost = Some(cost);
        gpu
    }

    fn lock(&self) -> RankedGuard<'_, State> {
        self.state.lock()
    }

    /// When something will happen by itself, or None if the GPU waits for its guests.
    pub fn next_event(&self) -> Option<Moment> {
        let mut state = self.lock();
        state.drive(&self.config, |core, now| core.poll(|| now));
        state.next_event()
    }

    /// Lets time pass until `to`, and everything happen that happens until then, that moment
    /// included.
    pub fn advance_to(&self, to: Moment) {
        let mut state = self.lock();
        state.drive(&self.config, |core, now| core.poll(|| now));
        while let Some(at) = state.next_event().filter(|at| *at <= to) {
            state.now = state.now.max(at);
            state.happen(&self.config);
        }
        if to > state.now {
            state.now = to;
            state.drive(&self.config, |core, now| core.poll(|| now));
        }
    }

    /// Takes the notice that a decision is due (see [`turnstile_gpu::Metering::wait`]).
    pub fn take_notice(&self) -> bool {
        self.lock().core.demand.take_notice()
    }

    /// Lets time pass until the GPU waits for its guests, but not beyond `limit`.
    #[cfg(test)]
    pub(crate) fn run_until_quiet(&self, limit: Moment) {
        while let Some(at) = self.next_event().filter(|at| *at <= limit) {
            self.advance_to(at);
        }
    }
}

impl State {
    fn next_event(&self) -> Option<Moment> {
        let ends = self.runs.iter().flatten().map(|run| run.ends_at);
        ends.chain(self.core.next_wakeup()).min()
    }

    /// Everything that happens now by itself.
    fn happen(&mut self, config: &SoftConfig) {
        let now = self.now;
        for engine in 0..ENGINES {
            if let Some(run) = self.runs[engine].take_if(|run| run.ends_at <= now) {
                let Run { outcome, start, .. } = run;
                drop(start);
                self.core.finished(now, engine, outcome);
            }
        }
        self.drive(config, |core, now| core.poll(|| now));
    }

    /// Lets `act` change the core, then works off all that follows from it at this moment.
    fn drive<R>(&mut self, config: &SoftConfig, act: impl FnOnce(&mut Core, Moment) -> R) -> R {
        let now = self.now;
        let answer = act(&mut self.core, now);
        let mut starts = Vec::new();
        loop {
            let stopped = self.stop_runs();
            front_end::pass(&mut self.core, now);
            self.core.dispatch(now, &mut starts);
            if !stopped && starts.is_empty() && self.core.line.is_empty() {
                return answer;
            }
            for start in starts.drain(..) {
                let engine = start.engine;
                self.runs[engine] = Some(self.begin(config, start));
            }
        }
    }

    /// Ends the runs that were requested to stop or pause. Returns whether there were any.
    fn stop_runs(&mut self) -> bool {
        let (now, mut any) = (self.now, false);
        for engine in 0..ENGINES {
            let must_stop = |run: &mut Run| run.start.stop.is_ended() || run.start.stop.is_paused();
            let Some(run) = self.runs[engine].take_if(must_stop) else {
                continue;
            };
            let outcome = if run.start.stop.is_ended() {
                run.start.stop.outcome()
            } else {
                Outcome::Preempted(Progress {
                    remaining: Some(run.ends_at.since(now)),
                    fault: match run.outcome {
                        Outcome::Fault { code, info } => Some(ChannelFault { code, info }),
                        _ => None,
                    },
                    ..run.start.progress
                })
            };
            self.core.finished(now, engine, outcome);
            any = true;
        }
        any
    }

    /// Executes work at once; the result holds the virtual time at which it ends.
    fn begin(&mut self, config: &SoftConfig, start: Start) -> Run {
        let (length, outcome) = match (&*start.work, start.progress.remaining) {
            (Work::Kernel(_), Some(left)) => {
                let fault = start.progress.fault;
                let outcome = fault.map_or(Outcome::Done, |ChannelFault { code, info }| {
                    Outcome::Fault { code, info }
                });
                (left, outcome)
            }
            (Work::Kernel(kernel), None) => self.compute(config, &start, kernel),
            (work, _) => {
                let outcome = execute_transfer(&start.context, work);
                let moved = match outcome {
                    Outcome::Done => config.link_time(transfer_bytes(work)),
                    _ => Nanos::ZERO,
                };
                (config.cost.transfer + moved, outcome)
            }
        };
        let limit = config.kernel_limit.saturating_sub(start.progress.ran);
        let (length, outcome) = if matches!(*start.work, Work::Kernel(_)) && length > limit {
            let (code, info) = (ErrorCode::KernelTimeout, 0);
            (limit, Outcome::Fault { code, info })
        } else {
            (length, outcome)
        };
        Run {
            ends_at: Moment(start.starts_at.0.saturating_add(length.0)),
            outcome,
            start,
        }
    }

    /// A kernel from its beginning: length and outcome.
    fn compute(&mut self, config: &SoftConfig, start: &Start, kernel: &Kernel) -> (Nanos, Outcome) {
        let (length, outcome) = match (&mut self.cost, config.kernels) {
            (Some(cost), _) => {
                let length = cost.length(&kernel.launch, &kernel.params);
                (length, Outcome::Done)
            }
            (None, Kernels::GivenLength) => (given_length(kernel), Outcome::Done),
            (None, Kernels::Interpreted) => run_virtual(config, start, kernel),
        };
        let jitter = u64::from(config.jitter_permille.min(1000));
        if jitter == 0 {
            return (length, outcome);
        }
        let permille = 1000 - jitter + self.rng.random_range(0..=2 * jitter);
        let varied = u128::from(length.0) * u128::from(permille) / 1000;
        (Nanos(u64::try_from(varied).unwrap_or(u64::MAX)), outcome)
    }
}

impl Driver for VirtualGpu {
    fn config(&self) -> &SoftConfig {
        &self.config
    }

    fn card(&self) -> &CardMemory {
        &self.card
    }

    fn swap(&self) -> Option<&Swap> {
        self.swap.as_ref()
    }

    fn registers(&self) -> &Registers {
        &self.registers
    }

    fn clock(&self) -> Moment {
        self.lock().now
    }

    fn later(&self, now: Moment) -> Moment {
        now
    }

    fn drive<R>(&self, act: impl FnOnce(&mut Core, Moment) -> R) -> R {
        self.lock().drive(&self.config, act)
    }

    fn with_core<R>(&self, read: impl FnOnce(&mut Core) -> R) -> R {
        read(&mut self.lock().core)
    }

    /// No time passes here: [`VirtualGpu::take_notice`] is for the code that moves the clock.
    fn wait_for_notice(&self, _: Nanos) -> bool {
        self.take_notice()
    }
}
