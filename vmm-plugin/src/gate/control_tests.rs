use super::*;
use crate::gate::pages::{SharedPages, ThreadMap};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

type Control = GateControl<ThreadMap, SharedPages>;

fn with_map<M: PageMap>(channels: u32, map: M) -> GateControl<M, SharedPages> {
    let pages = || SharedPages::new(channels).unwrap();
    let kick = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    GateControl::new(channels, map, pages(), pages(), kick)
}

fn control(channels: u32) -> Control {
    with_map(channels, ThreadMap::new(channels))
}

/// How a refused store traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// Emulated: with its value, and the guest goes on.
    WithValue,
    /// The guest repeats it.
    Repeats,
    /// The guest repeats it, and the channel is unknown.
    RepeatsSomewhere,
}

/// A guest's doorbell write. Returns how often it trapped.
fn ring(control: &Control, channel: u32, value: u32, leaves: Leaves) -> u64 {
    for came_out in 0.. {
        if control.store(channel, value) {
            return came_out;
        }
        match leaves {
            Leaves::WithValue => {
                control.trap(channel, value);
                return came_out + 1;
            }
            Leaves::Repeats => control.fault(channel),
            Leaves::RepeatsSomewhere => control.fault_somewhere(),
        };
    }
    unreachable!()
}

fn kicks(control: &Control) -> u64 {
    control.kick.read().unwrap_or(0)
}

const ALL: [Leaves; 3] = [Leaves::WithValue, Leaves::Repeats, Leaves::RepeatsSomewhere];

#[test]
fn closed_gate_traps_every_write_with_a_value_if_configured() {
    let control = control(2).trapping_every_write(true);
    control.set(1, GateState::Closed).unwrap();
    for value in 1..=5 {
        assert_eq!(ring(&control, 1, value, Leaves::WithValue), 1);
        let trace = control.trace(1).unwrap();
        assert_eq!((trace.parked, trace.trapped), (Some(value), value.into()));
    }
    assert_eq!((kicks(&control), control.counters().parked), (1, 1));
    assert_eq!(control.page_words().load(1), 0);
    control.set(1, GateState::Open).unwrap();
    assert_eq!(control.page_words().load(1), 5);
    assert_eq!(ring(&control, 1, 6, Leaves::WithValue), 0);
    // Without its value the first write traps, and the later ones reach a page.
    control.set(1, GateState::Closed).unwrap();
    assert_eq!(ring(&control, 1, 7, Leaves::Repeats), 1);
    assert_eq!(ring(&control, 1, 8, Leaves::Repeats), 0);
    control.set(1, GateState::Watched).unwrap();
    assert_eq!(control.page_words().load(1), 8);
}

#[test]
fn a_channel_without_gate_drops() {
    let control = control(2);
    assert_eq!(ring(&control, 1, 5, Leaves::WithValue), 0);
    control.trap(7, 5);
    assert!(!control.fault(1) && !control.fault(7) && !control.fault_somewhere());
    assert_eq!(control.page_words().load(1), 0);
    assert_eq!(control.counters().dropped, 1);
    assert_eq!(control.set(2, GateState::Open).unwrap(), None);
}

#[test]
fn watched_lets_one_write_through_and_opens() {
    for leaves in ALL {
        let control = control(1);
        control.set(0, GateState::Watched).unwrap();
        assert_eq!(ring(&control, 0, 1, leaves), 1);
        assert_eq!(control.state(0), Some(GateState::Open));
        assert_eq!(control.page_words().load(0), 1);
        assert_eq!(kicks(&control), 1);
        assert_eq!(ring(&control, 0, 2, leaves), 0);
        assert_eq!(control.page_words().load(0), 2);
        assert_eq!(kicks(&control), 0);
    }
}

#[test]
fn closed_parks_at_the_first_write_and_opening_delivers_the_last() {
    for leaves in ALL {
        let control = control(1);
        control.set(0, GateState::Closed).unwrap();
        assert_eq!(ring(&control, 0, 1, leaves), 1);
        assert_eq!(kicks(&control), 1);
        assert_eq!(ring(&control, 0, 2, leaves), 0);
        assert_eq!(ring(&control, 0, 3, leaves), 0);
        assert_eq!(kicks(&control), 0);
        assert_eq!(control.page_words().load(0), 0);
        assert_eq!(control.trace(0).unwrap().parked, Some(3));
        assert_eq!(control.set(0, GateState::Open).unwrap(), Some(1));
        assert_eq!(control.page_words().load(0), 3);
        let counters = control.counters();
        assert_eq!((counters.parked, counters.delivered), (1, 1));
        assert_eq!(control.trace(0).unwrap().parked, None);
        assert_eq!(kicks(&control), 0);
    }
}

#[test]
fn watching_with_a_write_parked_lets_it_through() {
    for leaves in ALL {
        let control = control(1);
        control.set(0, GateState::Closed).unwrap();
        ring(&control, 0, 3, leaves);
        assert_eq!(kicks(&control), 1);
        control.set(0, GateState::Watched).unwrap();
        assert_eq!(control.state(0), Some(GateState::Open));
        assert_eq!(control.page_words().load(0), 3);
        assert_eq!(kicks(&control), 1);
    }
}

#[test]
fn watching_an_unwritten_parking_page_succeeds() {
    let control = control(1);
    control.set(0, GateState::Closed).unwrap();
    assert!(control.fault_somewhere());
    control.set(0, GateState::Watched).unwrap();
    assert_eq!(control.state(0), Some(GateState::Watched));
    assert_eq!(ring(&control, 0, 1, Leaves::Repeats), 1);
    assert_eq!(control.page_words().load(0), 1);
}

#[test]
fn what_is_parked_replaces_only_what_is_older() {
    let control = control(1);
    control.page_words().store(0, u32::MAX - 1);
    control.set(0, GateState::Closed).unwrap();
    ring(&control, 0, u32::MAX, Leaves::Repeats);
    ring(&control, 0, 1, Leaves::Repeats);
    control.set(0, GateState::Open).unwrap();
    assert_eq!(control.page_words().load(0), 1);
    // A trapped write that a later write of the guest has overtaken.
    control.trap(0, u32::MAX);
    assert_eq!(control.page_words().load(0), 1);
    control.set(0, GateState::Closed).unwrap();
    control.trap(0, 4);
    control.trap(0, 3);
    control.set(0, GateState::Open).unwrap();
    assert_eq!(control.page_words().load(0), 4);
}

#[test]
fn removal_forgets_what_is_parked() {
    let control = control(2);
    control.set(0, GateState::Open).unwrap();
    control.set(1, GateState::Closed).unwrap();
    ring(&control, 1, 9, Leaves::Repeats);
    control.remove_all().unwrap();
    assert_eq!(ring(&control, 0, 4, Leaves::Repeats), 0);
    assert_eq!(control.page_words().load(0), 0);
    control.set(1, GateState::Closed).unwrap();
    assert!(control.fault(1));
    assert_eq!(control.trace(1).unwrap().parked, Some(0));
    control.set(1, GateState::Open).unwrap();
    assert_eq!(
        control.page_words().load(1),
        0,
        "a parked value outlived its channel"
    );
}

#[derive(Debug)]
struct Immovable(AtomicBool);

impl PageMap for Immovable {
    fn lay(&self, channel: u32, page: Page) -> Result<(), PageMapError> {
        if self.0.load(Ordering::Relaxed) || page == Page::Protected {
            return Ok(());
        }
        Err(PageMapError {
            channel,
            page,
            source: io::ErrorKind::OutOfMemory.into(),
        })
    }
}

#[test]
fn where_pages_cannot_be_exchanged_traps_with_values_go_on() {
    let control = with_map(1, Immovable(AtomicBool::new(false)));
    control.set(0, GateState::Watched).unwrap();
    control.trap(0, 1);
    control.trap(0, 2);
    assert_eq!(control.page_words().load(0), 2);
    assert_eq!(control.state(0), Some(GateState::Watched));
    assert!(
        !control.fault(0),
        "a store that is repeated gets nowhere, and must get an error"
    );
    control.set(0, GateState::Closed).unwrap();
    control.trap(0, 3);
    control.trap(0, 4);
    assert!(!control.fault(0));
    assert_eq!(control.page_words().load(0), 2);
    assert!(control.set(0, GateState::Open).is_err());
    control.trap(0, 5);
    assert_eq!(control.page_words().load(0), 5);
    control.page_map().0.store(true, Ordering::Relaxed);
    control.set(0, GateState::Open).unwrap();
    assert_eq!(control.page_words().load(0), 5);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ring(u32, Leaves),
    Set(u32, GateState),
    Remove(u32),
    Spurious,
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop_oneof![
        Just(GateState::Open),
        Just(GateState::Watched),
        Just(GateState::Closed)
    ];
    prop_oneof![
        5 => (0..3u32, proptest::sample::select(&ALL[..]))
            .prop_map(|(channel, leaves)| Step::Ring(channel, leaves)),
        4 => (0..3u32, state).prop_map(|(channel, state)| Step::Set(channel, state)),
        1 => (0..3u32).prop_map(Step::Remove),
        1 => Just(Step::Spurious),
    ]
}

proptest! {
    #[test]
    fn the_page_shows_the_last_value_whenever_the_gate_lets_it(
        steps in proptest::collection::vec(step(), 1..80),
        base in prop_oneof![Just(0u32), Just(u32::MAX - 20), Just(i32::MAX as u32 - 20)],
    ) {
        let control = control(3);
        for channel in 0..3 { control.page_words().store(channel, base); }
        let (mut written, mut shown, mut has_gate) = ([base; 3], [base; 3], [false; 3]);
        for (i, step) in steps.into_iter().enumerate() {
            let value = base.wrapping_add(i as u32 + 1);
            match step {
                Step::Ring(channel, leaves) => {
                    let direct = control.page_map().access(channel, |page| page != Page::Protected);
                    prop_assert_eq!(ring(&control, channel, value, leaves), u64::from(!direct));
                    if has_gate[channel as usize] { written[channel as usize] = value; }
                }
                Step::Set(channel, state) => {
                    control.set(channel, state).unwrap();
                    has_gate[channel as usize] = true;
                }
                Step::Remove(channel) => {
                    control.remove(channel).unwrap();
                    has_gate[channel as usize] = false;
                    written[channel as usize] = control.page_words().load(channel);
                }
                Step::Spurious => { control.fault_somewhere(); }
            }
            for channel in 0..3 {
                let at = channel as usize;
                let page = control.page_words().load(channel);
                prop_assert!(!newer(shown[at], page), "a value went back");
                let trace = control.trace(channel);
                if trace.is_none_or(|trace| trace.state == GateState::Closed) {
                    prop_assert!(page == shown[at] || matches!(step, Step::Set(set, _) if set == channel),
                        "a write reached a closed page");
                }
                shown[at] = page;
                let laid = control.page_map().access(channel, |page| page);
                match trace.map(|trace| (trace.state, trace.parked)) {
                    Some((GateState::Closed, parked)) => {
                        prop_assert_eq!(parked.unwrap_or(page), written[at]);
                        prop_assert_eq!(laid, if parked.is_some() { Page::Parking } else { Page::Protected });
                    }
                    Some((state, parked)) => {
                        prop_assert_eq!((page, parked), (written[at], None));
                        prop_assert_eq!(laid, if state == GateState::Open { Page::Direct } else { Page::Protected });
                    }
                    None => prop_assert_eq!(laid, Page::Sink),
                }
            }
        }
    }
}

/// Ends the other thread, however the one that owns this ends.
struct Ends<'d>(&'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread rings with rising values, another moves the gate. The page's value never falls, and
/// does not change while the gate is closed. A parked value follows it, and no value is missing
/// when the gate is open again.
///
/// Each round gives the core away: for microseconds, or for milliseconds beside busy processes. So
/// time ends the test; a few rounds always run.
#[test]
fn nothing_is_lost_between_two_threads() {
    const TIME: Duration = Duration::from_millis(500);
    const ROUNDS_MIN: u32 = 100;
    for leaves in ALL {
        let control = control(1);
        // The numbers run over within the test.
        control.page_words().store(0, u32::MAX - 1000);
        control.set(0, GateState::Closed).unwrap();
        let done = AtomicBool::new(false);
        let last = AtomicU32::new(u32::MAX - 1000);
        std::thread::scope(|scope| {
            let ends = Ends(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let value = last.load(Ordering::Relaxed).wrapping_add(1);
                    ring(&control, 0, value, leaves);
                    last.store(value, Ordering::Release);
                }
            });
            let mut shown = control.page_words().load(0);
            let mut snapshot = || {
                let page = control.page_words().load(0);
                assert!(!newer(shown, page), "a value went back");
                shown = page;
                page
            };
            let begin = Instant::now();
            for round in 0.. {
                if round >= ROUNDS_MIN && begin.elapsed() >= TIME {
                    break;
                }
                control.set(0, GateState::Closed).unwrap();
                let page = snapshot();
                std::thread::yield_now();
                assert_eq!(snapshot(), page, "a write reached a closed page");
                let parked = control.trace(0).unwrap().parked;
                assert!(parked.is_none_or(|parked| !newer(page, parked)));
                let rang = last.load(Ordering::Acquire);
                if round % 2 == 0 {
                    control.set(0, GateState::Open).unwrap();
                } else {
                    control.set(0, GateState::Watched).unwrap();
                }
                assert!(!newer(rang, snapshot()), "a value was lost");
            }
            drop(ends);
        });
        control.set(0, GateState::Open).unwrap();
        assert_eq!(control.page_words().load(0), last.load(Ordering::Acquire));
    }
}
