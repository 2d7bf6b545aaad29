//! Kicks in a loop of their own, on a clock of the test.

use event_manager::{EventManager, MutEventSubscriber, SubscriberId, SubscriberOps};
use rustix::event::{EventfdFlags, eventfd};

use super::*;

const KICK: u32 = 7;
const TICK: u32 = 8;

struct Counts {
    kick: Kick,
    tick: File,
    kicked: u32,
    now: Instant,
}

impl MutEventSubscriber for Counts {
    fn init(&mut self, ops: &mut EventOps) {
        self.kick.watch(ops).unwrap();
        let edge = EventSet::IN | EventSet::EDGE_TRIGGERED;
        ops.add(Events::with_data(&self.tick, TICK, edge)).unwrap();
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        if events.data() == TICK {
            return self.kick.tick(self.now, ops);
        }
        self.kicked += 1;
        self.kick.kicked(self.now, ops);
    }
}

struct Bench {
    manager: EventManager<Counts>,
    id: SubscriberId,
    kick: File,
    tick: File,
}

impl Bench {
    fn new() -> Self {
        // As its VMM may have it: reading and writing block.
        let event = || File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (kick, tick) = (event(), event());
        let now = Instant::now();
        let mut manager = EventManager::new().unwrap();
        let id = manager.add_subscriber(Counts {
            kick: Kick::new(kick.try_clone().unwrap(), KICK, now),
            tick: tick.try_clone().unwrap(),
            kicked: 0,
            now,
        });
        Self {
            manager,
            id,
            kick,
            tick,
        }
    }

    fn counts(&mut self) -> &mut Counts {
        self.manager.subscriber_mut(self.id).unwrap()
    }

    /// Events so far, with all that are there now.
    fn kicked(&mut self) -> u32 {
        while self.manager.run_with_timeout(0).unwrap() > 0 {}
        self.counts().kicked
    }

    fn kick(&mut self) -> u32 {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        self.kicked()
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
    let mut bench = Bench::new();
    for number in 0..5 {
        assert_eq!(bench.kicked(), number);
        assert_eq!(bench.kick(), number + 1);
    }
    // The VMM takes them back itself: the next one is taken all the same.
    rustix::io::read(&bench.kick, &mut [0; 8]).unwrap();
    assert_eq!(bench.kicked(), 5);
    assert_eq!(bench.kick(), 6);
}

#[test]
fn kicks_that_are_more_than_50_us_apart_are_taken_at_once() {
    let mut bench = Bench::new();
    for number in 1..=1_000 {
        assert_eq!(bench.kick(), number);
        assert_eq!(bench.counts().kick.due(), None);
        bench.pass(Duration::from_micros(53));
    }
}

#[test]
fn storm_of_kicks_is_muted_and_its_last_kick_is_taken() {
    let mut bench = Bench::new();
    for _ in 0..100 {
        bench.kick();
    }
    assert_eq!(bench.kicked(), KICKS_MAX);
    assert!(bench.counts().kick.due().is_some());
    assert_eq!(bench.pass(WINDOW / 2), KICKS_MAX);
    assert_eq!(bench.pass(WINDOW / 2), KICKS_MAX + 1, "the last one");
    assert_eq!(bench.counts().kick.due(), None);
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
