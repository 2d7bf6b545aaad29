//! Holds, demand and notices: through the registers they behave as with the software GPU as a
//! library.

use proptest::prelude::*;
use turnstile_accounting::{Demand, DemandEvent};
use turnstile_soft::SoftGpu;

use super::*;

const COMPUTE: EngineId = EngineId(0);

/// The last demand of a tenant for an engine in `events`.
fn last(events: &[DemandEvent], tenant: TenantId, engine: EngineId) -> Demand {
    let of = |event: &&DemandEvent| (event.tenant, event.engine) == (tenant, engine);
    events
        .iter()
        .rev()
        .find(of)
        .map_or_else(Demand::default, |event| event.demand)
}

#[test]
fn demand_begins_starts_and_ends_with_a_kernel() {
    on_each_bus(|gpu| {
        let mut channel = channel(gpu, A);
        let begin = gpu.now();
        channel.push(&kernel(&channel.vm, Nanos::from_us(100)));
        channel.push_fence(false);
        channel.ring();
        let mut demand = Vec::new();
        wait("two changes", || {
            demand.extend(EngineReading::of(gpu).demand);
            demand.len() >= 2
        });
        assert!(
            demand
                .iter()
                .all(|event| event.at >= begin && event.tenant == A)
        );
        assert!(demand[1].at.since(demand[0].at) >= Nanos::from_us(100));
        let seen: Vec<Demand> = demand.iter().map(|event| event.demand).collect();
        assert_eq!(seen, [Demand::Executes, Demand::Nothing]);
    });
}

/// A thread waits for a notice; what `act` does gives one.
fn notice_of(gpu: &VfioGpu, act: impl FnOnce()) {
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let begin = Instant::now();
            let noticed = gpu.wait(Nanos::from_ms(10_000));
            (noticed, begin.elapsed())
        });
        act();
        let (noticed, waited) = waiter.join().unwrap();
        assert!(noticed && waited < Duration::from_secs(10), "{waited:?}");
    });
}

/// Takes the pending notices.
fn drain(gpu: &VfioGpu) {
    while gpu.wait(Nanos::from_us(500)) {}
}

#[test]
fn an_engine_with_work_of_held_tenants_alone_gives_a_notice_each_time() {
    on_each_bus(|gpu| {
        let mut channel = channel(gpu, A);
        assert!(!gpu.wait(Nanos::from_us(500)), "there is no work");
        for round in 1..=3 {
            gpu.carry_out(&[Order::Hold(A, COMPUTE)]);
            drain(gpu);
            channel.push(&kernel(&channel.vm, Nanos::from_us(10)));
            channel.push_fence(false);
            notice_of(gpu, || channel.ring());
            drain(gpu);
            gpu.carry_out(&[Order::Release(A, COMPUTE)]);
            wait("fence", || channel.fence().value == round);
        }
        gpu.wake();
        assert!(gpu.wait(Nanos::from_ms(10_000)), "it was woken");
    });
}

#[test]
fn where_kernels_can_be_stopped_a_hold_stops_one_and_an_arrival_gives_a_notice() {
    let config = SoftConfig {
        suspend: Suspend::MidKernel,
        ..config()
    };
    let bus = Arc::new(FakeBus::new(PciGpu::new(config).unwrap()));
    let gpu = VfioGpu::new(bus).unwrap();
    let (mut long, mut short) = (channel(&gpu, A), channel(&gpu, B));
    // TIMEOUT: longer than all that follows, within the limit of a kernel.
    long.push(&kernel(&long.vm, Nanos::from_ms(9_000)));
    long.ring();
    wait("start", || gpu.engine_status(COMPUTE).running == Some(A));
    drain(&gpu);
    short.push(&kernel(&short.vm, Nanos::from_us(10)));
    short.push_fence(false);
    notice_of(&gpu, || short.ring());
    assert_eq!(short.fence().value, 0, "the engine is occupied");
    gpu.carry_out(&[Order::Hold(A, COMPUTE)]);
    wait("fence", || short.fence().value == 1);
    gpu.carry_out(&[Order::Release(A, COMPUTE)]);
    wait("go on", || gpu.engine_status(COMPUTE).running == Some(A));
}

#[test]
fn a_device_of_version_1_0_is_used_without_holds() {
    let bus = Arc::new(FakeBus::version_1_0(PciGpu::new(config()).unwrap()));
    let old = Arc::new(Altered::new(bus, |_, _, _| {}));
    let gpu = VfioGpu::new(old.clone()).unwrap();
    let can = gpu.capabilities();
    assert_eq!((can.engine_holds, can.demand), (false, false));
    assert_eq!(can.suspend, Suspend::BetweenCommands);
    let mut channel = channel(&gpu, A);
    gpu.carry_out(&[Order::Hold(A, COMPUTE)]);
    channel.push(&kernel(&channel.vm, Nanos::from_us(10)));
    channel.push_fence(true);
    channel.ring();
    wait("interrupt", || channel.vm.interrupts.count(3) == 1);
    let demand = EngineReading::of(&gpu).demand;
    assert!(demand.is_empty());
    assert!(!gpu.wait(Nanos::from_us(10)));
    drop(gpu);
    let written = old.written.lock().unwrap();
    let exists = |offset: &u64| {
        let new = [regs::NOTICE, regs::DEMAND_AREA];
        !new.contains(offset) && *offset < regs::HOLD
    };
    assert!(
        !written.is_empty() && written.iter().all(exists),
        "{written:x?}"
    );
}

#[test]
fn a_device_that_contradicts_itself_is_refused() {
    let bus = Arc::new(FakeBus::new(PciGpu::new(config()).unwrap()));
    let engines = Altered::new(bus.clone(), |region, offset, data| {
        if region == Region::Bar(BAR_REGS) && offset == regs::ENGINES {
            data[..2].fill(0xff);
        }
    });
    let refused = VfioGpu::new(Arc::new(engines));
    assert!(matches!(refused, Err(StartError::Engines { .. })));
    let unreachable = Altered::new(bus.clone(), |region, offset, data| {
        if region == Region::Bar(BAR_REGS) && offset == regs::DEMAND_AREA {
            data.fill(0);
        }
    });
    let refused = VfioGpu::new(Arc::new(unreachable));
    assert!(matches!(refused, Err(StartError::NoDma)));
    assert!(VfioGpu::new(bus).unwrap().capabilities().engine_holds);
}

/// A command of the property below.
#[derive(Clone, Copy, Debug)]
enum Step {
    Kernel(u64),
    Fill,
    Nop,
    Fence,
}

/// Holds of each tenant per engine.
type Holds = [[bool; 3]; 2];

/// Finished commands of each channel, and demand of each tenant per engine.
type Present = ([[u32; 2]; 2], [[Demand; 3]; 2]);

/// Holds, then commands (tenant, channel, what). Then one tenant may leave and return.
#[derive(Clone, Debug)]
struct Round {
    holds: Holds,
    commands: Vec<(usize, usize, Step)>,
    leaves: Option<usize>,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let step = prop_oneof![
        (1u64..100).prop_map(Step::Kernel),
        Just(Step::Fill),
        Just(Step::Nop),
        Just(Step::Fence),
    ];
    let commands = proptest::collection::vec((0..2usize, 0..2usize, step), 0..10);
    let leaves = proptest::option::weighted(0.2, 0..2usize);
    let round = (any::<Holds>(), commands, leaves);
    let round = round.prop_map(|(holds, commands, leaves)| Round {
        holds,
        commands,
        leaves,
    });
    proptest::collection::vec(round, 1..6)
}

/// Two tenants with two channels each on a GPU.
struct Player<'a> {
    gpu: &'a dyn Gpu,
    va: [u64; 2],
    channels: [Vec<PlainChannel>; 2],
    /// Steps that were pushed to each channel.
    pushed: [[Vec<Step>; 2]; 2],
    /// How much of that had finished when the round began.
    finished: [[usize; 2]; 2],
    /// All changes of demand that were read.
    log: Vec<DemandEvent>,
    /// Where in the log those of each tenant begin.
    from: [usize; 2],
}

const TENANTS: [TenantId; 2] = [A, B];

impl<'a> Player<'a> {
    fn new(gpu: &'a dyn Gpu) -> Self {
        let mut player = Self {
            gpu,
            va: [0; 2],
            channels: Default::default(),
            pushed: Default::default(),
            finished: [[0; 2]; 2],
            log: Vec::new(),
            from: [0; 2],
        };
        (0..2).for_each(|tenant| player.enter(tenant));
        player
    }

    fn enter(&mut self, tenant: usize) {
        let id = TENANTS[tenant];
        let vm = PlainVm::enter(self.gpu, id, 1 << 20, 4 << 20, 8).unwrap();
        self.va[tenant] = self.gpu.allocate(id, 2 << 20).unwrap().va;
        let open = |_| vm.open_channel(self.gpu, id, 64, 3).unwrap();
        self.channels[tenant] = (0..2).map(open).collect();
        self.pushed[tenant] = Default::default();
        self.finished[tenant] = [0; 2];
        self.from[tenant] = self.log.len();
    }

    fn leave(&mut self, tenant: usize) {
        self.gpu.destroy_context(TENANTS[tenant]);
        self.log.extend(EngineReading::of(self.gpu).demand);
        self.enter(tenant);
    }

    fn hold(&self, holds: &Holds) {
        for (tenant, holds) in holds.iter().enumerate() {
            for (engine, held) in (0..).zip(holds) {
                self.gpu
                    .carry_out(&[Order::holding(TENANTS[tenant], EngineId(engine), *held)]);
            }
        }
    }

    fn push(&mut self, commands: &[(usize, usize, Step)]) {
        for (tenant, channel, step) in commands {
            let (va, bytes, pattern) = (self.va[*tenant], 64, 1);
            let open = &mut self.channels[*tenant][*channel];
            match step {
                Step::Kernel(us) => open.push(&kernel(&open.vm, Nanos::from_us(*us))),
                Step::Fill => open.push(&Command::Fill { va, bytes, pattern }),
                Step::Nop => open.push(&Command::Nop),
                Step::Fence => drop(open.push_fence(false)),
            }
            self.pushed[*tenant][*channel].push(*step);
        }
        let channels = self.channels.iter().flatten();
        channels.for_each(|channel| channel.ring_watched(self.gpu));
    }

    /// Finished commands of each channel and the demand of each tenant, once all that may run has.
    fn expected(&self, holds: &Holds) -> Present {
        let (mut finished, mut demand) = ([[0; 2]; 2], [[Demand::Nothing; 3]; 2]);
        for (tenant, held) in holds.iter().enumerate() {
            for (channel, finished) in finished[tenant].iter_mut().enumerate() {
                let is_stuck = |step: &Step| match step {
                    Step::Kernel(_) => held[0],
                    Step::Fill => held[1] && held[2],
                    Step::Nop | Step::Fence => false,
                };
                let pushed = &self.pushed[tenant][channel];
                let before = self.finished[tenant][channel];
                let stuck = pushed[before..].iter().position(is_stuck);
                let stuck = stuck.map(|at| before + at);
                *finished = stuck.unwrap_or(pushed.len()) as u32;
                match stuck.map(|at| pushed[at]) {
                    Some(Step::Kernel(_)) => demand[tenant][0] = Demand::Queued,
                    Some(_) => demand[tenant][1..].fill(Demand::Queued),
                    None => {}
                }
            }
        }
        (finished, demand)
    }

    /// The current state of that.
    fn present(&mut self) -> Present {
        self.log.extend(EngineReading::of(self.gpu).demand);
        let finished = [0, 1].map(|tenant: usize| {
            let mut shown = Vec::new();
            self.gpu.activity(TENANTS[tenant], &mut shown);
            [0, 1].map(|channel: usize| shown[channel].finished.unwrap_or(0))
        });
        let demand = [0, 1].map(|tenant: usize| {
            let log = &self.log[self.from[tenant]..];
            [0, 1, 2].map(|engine| last(log, TENANTS[tenant], EngineId(engine)))
        });
        (finished, demand)
    }

    fn settle(&mut self, holds: &Holds) {
        let (expected, begin) = (self.expected(holds), Instant::now());
        loop {
            let present = self.present();
            if present == expected {
                return;
            }
            let late = begin.elapsed() > Duration::from_secs(10);
            assert!(!late, "{present:?} instead of {expected:?}");
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn play(&mut self, round: &Round) {
        self.hold(&round.holds);
        self.push(&round.commands);
        self.settle(&round.holds);
        round
            .leaves
            .into_iter()
            .for_each(|tenant| self.leave(tenant));
        self.hold(&Holds::default());
        self.settle(&Holds::default());
        let all = |channels: &[Vec<Step>; 2]| channels.each_ref().map(Vec::len);
        self.finished = self.pushed.each_ref().map(all);
    }
}

proptest! {
    // Each step of shrinking waits for 10 s.
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 12, ..Default::default() })]

    /// Commands that are held start on neither, all others finish on both, and the changes of
    /// demand are those that the library logs.
    #[test]
    fn registers_and_library_agree_over_random_sequences(rounds in rounds(), mid_kernel: bool) {
        let suspend = match mid_kernel {
            true => Suspend::MidKernel,
            false => Suspend::BetweenCommands,
        };
        let config = SoftConfig { suspend, ..config() };
        let bus = Arc::new(FakeBus::new(PciGpu::new(config).unwrap()));
        let (library, gpu) = (SoftGpu::new(config).unwrap(), VfioGpu::new(bus.clone()).unwrap());
        let mut players = [Player::new(&library), Player::new(&gpu)];
        for round in &rounds {
            players.iter_mut().for_each(|player| player.play(round));
        }
        let mut logged = Vec::new();
        logged.extend(EngineReading::of(bus.device().software()).demand);
        prop_assert_eq!(&players[1].log, &logged);
        prop_assert_eq!(gpu.report().figures["demand_losses"], 0);
    }
}
