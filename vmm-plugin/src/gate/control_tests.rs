use super::*;
use crate::gate::pages::{SharedPages, ThreadMap};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU32};

type Control = GateControl<ThreadMap, SharedPages>;

fn control(channels: u32) -> Control {
    let words = SharedPages::anonymous(channels).unwrap();
    let kick = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    GateControl::new(channels, ThreadMap::new(channels), words, kick)
}

/// What a guest's write does: straight to the page, or a trap. Returns whether it trapped.
fn ring(control: &Control, channel: u32, value: u32) -> bool {
    let direct = control
        .page_map()
        .write_direct(channel, || control.page_words().store(channel, value));
    if !direct {
        control.trap(channel, value);
    }
    !direct
}

fn kicks(control: &Control) -> u64 {
    control.kick.read().unwrap_or(0)
}

#[test]
fn a_channel_without_gate_drops() {
    let control = control(2);
    assert!(ring(&control, 1, 5));
    control.trap(7, 5);
    assert_eq!(control.page_words().load(1), 0);
    assert_eq!(control.counters().dropped, 2);
    assert_eq!(control.set(2, GateState::Open).unwrap(), None);
}

#[test]
fn watched_lets_one_write_through_and_opens() {
    let control = control(1);
    control.set(0, GateState::Watched).unwrap();
    assert!(ring(&control, 0, 1));
    assert_eq!(control.state(0), Some(GateState::Open));
    assert_eq!(control.page_words().load(0), 1);
    assert_eq!(kicks(&control), 1);
    assert!(!ring(&control, 0, 2));
    assert_eq!(kicks(&control), 0);
}

#[test]
fn closed_keeps_the_last_and_opening_delivers_it() {
    let control = control(1);
    control.set(0, GateState::Closed).unwrap();
    ring(&control, 0, 1);
    ring(&control, 0, 2);
    assert_eq!(control.page_words().load(0), 0);
    assert_eq!(control.read(0), 2);
    assert_eq!(control.set(0, GateState::Open).unwrap(), Some(2));
    assert_eq!(control.page_words().load(0), 2);
    assert_eq!(control.counters().delivered, 1);
    assert_eq!(kicks(&control), 0);
}

#[test]
fn watching_with_a_write_kept_lets_it_through() {
    let control = control(1);
    control.set(0, GateState::Closed).unwrap();
    ring(&control, 0, 3);
    control.set(0, GateState::Watched).unwrap();
    assert_eq!(control.state(0), Some(GateState::Open));
    assert_eq!(control.page_words().load(0), 3);
    assert_eq!(kicks(&control), 1);
}

#[test]
fn removal_unmaps_and_forgets() {
    let control = control(2);
    control.set(0, GateState::Open).unwrap();
    control.set(1, GateState::Closed).unwrap();
    ring(&control, 1, 9);
    control.remove_all().unwrap();
    assert!(ring(&control, 0, 4));
    control.set(1, GateState::Open).unwrap();
    assert_eq!(
        control.page_words().load(1),
        0,
        "a kept value outlived its channel"
    );
}

#[derive(Debug)]
struct Unmappable(AtomicBool);

impl PageMap for Unmappable {
    fn map(&self, channel: u32) -> Result<(), PageMapError> {
        if self.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(PageMapError {
            channel,
            mapping: true,
            source: io::ErrorKind::OutOfMemory.into(),
        })
    }
    fn unmap(&self, _: u32) -> Result<(), PageMapError> {
        Ok(())
    }
}

#[test]
fn a_page_that_cannot_be_mapped_is_delivered_by_traps() {
    let words = SharedPages::anonymous(1).unwrap();
    let kick = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let control = GateControl::new(1, Unmappable(AtomicBool::new(false)), words, kick);
    control.set(0, GateState::Watched).unwrap();
    control.trap(0, 1);
    control.trap(0, 2);
    assert_eq!(control.page_words().load(0), 2);
    assert_eq!(control.state(0), Some(GateState::Watched));
    assert!(control.set(0, GateState::Open).is_err());
    control.trap(0, 3);
    assert_eq!(control.page_words().load(0), 3);
    control.page_map().0.store(true, Ordering::Relaxed);
    control.set(0, GateState::Open).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ring(u32),
    Set(u32, GateState),
    Remove(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop_oneof![
        Just(GateState::Open),
        Just(GateState::Watched),
        Just(GateState::Closed)
    ];
    prop_oneof![
        4 => (0..3u32).prop_map(Step::Ring),
        4 => (0..3u32, state).prop_map(|(channel, state)| Step::Set(channel, state)),
        1 => (0..3u32).prop_map(Step::Remove),
    ]
}

proptest! {
    #[test]
    fn the_page_shows_the_last_value_whenever_the_gate_lets_it(steps in proptest::collection::vec(step(), 1..80)) {
        let control = control(3);
        let (mut written, mut shown, mut has_gate) = ([0u32; 3], [0u32; 3], [false; 3]);
        for (i, step) in steps.into_iter().enumerate() {
            let value = i as u32 + 1;
            match step {
                Step::Ring(channel) => {
                    ring(&control, channel, value);
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
            }
            for channel in 0..3 {
                let at = channel as usize;
                let page = control.page_words().load(channel);
                prop_assert!(page >= shown[at], "a value went back");
                shown[at] = page;
                match control.state(channel) {
                    Some(GateState::Closed) => prop_assert_eq!(control.read(channel), written[at]),
                    Some(_) => prop_assert_eq!(page, written[at]),
                    None => prop_assert_eq!(control.read(channel), 0),
                }
                prop_assert_eq!(control.page_map().is_mapped(channel), control.state(channel) == Some(GateState::Open));
            }
        }
    }
}

/// One thread rings with rising values, another moves the gate: what the page shows never falls, nothing reaches it
/// while the gate is closed, and the first trapped value after a closing follows the page's.
#[test]
fn nothing_is_lost_between_two_threads() {
    const ROUNDS: u32 = 20_000;
    let control = control(1);
    let done = AtomicBool::new(false);
    let last = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while !done.load(Ordering::Relaxed) {
                value += 1;
                ring(&control, 0, value);
                last.store(value, Ordering::Release);
            }
        });
        let mut shown = 0;
        let mut look = || {
            let page = control.page_words().load(0);
            assert!(page >= shown, "a value went back");
            shown = page;
            page
        };
        for round in 0..ROUNDS {
            control.set(0, GateState::Closed).unwrap();
            let page = look();
            std::thread::yield_now();
            assert_eq!(look(), page, "a write reached a closed page");
            if round % 2 == 0 {
                let rang = last.load(Ordering::Acquire);
                control.set(0, GateState::Open).unwrap();
                assert!(look() >= rang, "a value was lost");
            } else {
                control.set(0, GateState::Watched).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    control.set(0, GateState::Open).unwrap();
    assert_eq!(control.page_words().load(0), last.load(Ordering::Acquire));
}
