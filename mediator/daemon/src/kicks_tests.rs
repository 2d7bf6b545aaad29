//! Kicks in a loop of their own, on a clock of the test.

use event_manager::{EventManager, MutEventSubscriber, SubscriberId, SubscriberOps};
use rustix::event::{EventfdFlags, eventfd};

use super::*;

/// The event data of the tick; a kick has its place in [`Counts::kicks`].
const TICK: u32 = u32::MAX;

struct Counts {
    budgets: KickBudgets,
    kicks: Vec<Kick>,
    tick: File,
    kicked: Vec<u32>,
    now: Instant,
}

impl MutEventSubscriber for Counts {
    fn init(&mut self, ops: &mut EventOps) {
        for kick in &self.kicks {
            kick.watch(ops).unwrap();
        }
        let edge = EventSet::IN | EventSet::EDGE_TRIGGERED;
        ops.add(Events::with_data(&self.tick, TICK, edge)).unwrap();
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        if events.data() == TICK {
            for kick in &mut self.kicks {
                kick.tick(self.now, ops);
            }
            return;
        }
        let place = events.data() as usize;
        self.kicked[place] += 1;
        self.kicks[place].kicked(&mut self.budgets, self.now, ops);
    }
}

struct Bench {
    manager: EventManager<Counts>,
    id: SubscriberId,
    kicks: Vec<File>,
    tick: File,
}

impl Bench {
    /// A VM of each of these accounts.
    fn new(accounts: &[u32]) -> Self {
        // As its VMM may have it: reading and writing block.
        let event = || File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (kicks, tick): (Vec<File>, _) = (accounts.iter().map(|_| event()).collect(), event());
        let kick = |(place, account): (usize, &u32)| {
            let file = kicks[place].try_clone().unwrap();
            Kick::new(file, place as u32, (0, AccountId(*account)))
        };
        let mut manager = EventManager::new().unwrap();
        let id = manager.add_subscriber(Counts {
            budgets: KickBudgets::default(),
            kicks: accounts.iter().enumerate().map(kick).collect(),
            tick: tick.try_clone().unwrap(),
            kicked: vec![0; accounts.len()],
            now: Instant::now(),
        });
        Self {
            manager,
            id,
            kicks,
            tick,
        }
    }

    fn counts(&mut self) -> &mut Counts {
        self.manager.subscriber_mut(self.id).unwrap()
    }

    /// Events of each VM so far, with all that are there now.
    fn each(&mut self) -> Vec<u32> {
        while self.manager.run_with_timeout(0).unwrap() > 0 {}
        self.counts().kicked.clone()
    }

    /// Those of the first VM.
    fn kicked(&mut self) -> u32 {
        self.each()[0]
    }

    fn kick_of(&mut self, place: usize) {
        rustix::io::write(&self.kicks[place], &1u64.to_ne_bytes()).unwrap();
    }

    fn kick(&mut self) -> u32 {
        self.kick_of(0);
        self.kicked()
    }

    fn due(&mut self) -> Option<Instant> {
        self.counts().kicks[0].due()
    }

    /// Lets time pass.
    fn pass(&mut self, length: Duration) -> u32 {
        self.counts().now += length;
        rustix::io::write(&self.tick, &1u64.to_ne_bytes()).unwrap();
        self.kicked()
    }
}

#[test]
fn each_kick_is_taken_once_and_none_is_read() {
    let mut bench = Bench::new(&[1]);
    for number in 0..5 {
        assert_eq!(bench.kicked(), number);
        assert_eq!(bench.kick(), number + 1);
    }
    // The VMM takes them back itself: the next one is taken all the same.
    rustix::io::read(&bench.kicks[0], &mut [0; 8]).unwrap();
    assert_eq!(bench.kicked(), 5);
    assert_eq!(bench.kick(), 6);
}

#[test]
fn kicks_that_are_more_than_50_us_apart_are_taken_at_once() {
    let mut bench = Bench::new(&[1]);
    for number in 1..=1_000 {
        assert_eq!(bench.kick(), number);
        assert_eq!(bench.due(), None);
        bench.pass(Duration::from_micros(53));
    }
}

#[test]
fn storm_of_kicks_is_muted_and_its_last_kick_is_taken() {
    let mut bench = Bench::new(&[1]);
    for _ in 0..100 {
        bench.kick();
    }
    assert_eq!(bench.kicked(), KICKS_MAX);
    assert!(bench.due().is_some());
    assert_eq!(bench.pass(WINDOW / 2), KICKS_MAX);
    assert_eq!(bench.pass(WINDOW / 2), KICKS_MAX + 1, "the last one");
    assert_eq!(bench.due(), None);
    assert_eq!(bench.pass(WINDOW), KICKS_MAX + 1);
    assert_eq!(bench.kick(), KICKS_MAX + 2);
    let before = bench.kicked();
    for _ in 0..100_000 {
        bench.kick();
        bench.pass(Duration::from_micros(1));
    }
    let taken = bench.kicked() - before;
    assert!((1_900..=2_040).contains(&taken), "{taken} in 100 ms");
}

#[test]
fn vms_of_one_account_share_what_one_may_kick_and_leave_others_alone() {
    const FLOODERS: usize = 40;
    let mut accounts = [1; FLOODERS + 1];
    accounts[FLOODERS] = 2;
    let mut bench = Bench::new(&accounts);
    let mut victim = 0;
    for step in 0..10_000 {
        for place in 0..FLOODERS {
            bench.kick_of(place);
        }
        if step % 6 == 0 {
            bench.kick_of(FLOODERS);
            victim += 1;
        }
        bench.pass(Duration::from_micros(10));
        assert_eq!(bench.each()[FLOODERS], victim, "taken at once");
    }
    let flood = bench.each();
    let all: u32 = flood[..FLOODERS].iter().sum();
    // 20 in each of 100 ms, a full budget, and a debt of one for each VM.
    let most = 2_000 + KICKS_MAX + FLOODERS as u32;
    assert!((1_000..=most).contains(&all), "{all} of {most}");
    let least = flood[..FLOODERS].iter().min().unwrap();
    assert!(*least >= 20, "each is taken again and again: {flood:?}");
}

#[test]
fn budgets_that_are_full_are_not_kept() {
    let mut budgets = KickBudgets::default();
    let begin = Instant::now();
    for number in 0..1_000 {
        budgets.take((0, AccountId(number)), begin + COST * 2 * number);
        assert!(budgets.0.len() <= 2);
    }
}
