//! Share-a-GPU, algorithms 1 and 2: processes and scheduler as state machines, as printed and
//! repaired, with the processes' messages in random order.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use turnstile_policies::model::slice::{Message, Order, Turns};

use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Wait,
    Restore,
    Ready,
    Running,
    Save,
    Finish,
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    ended: usize,
    running_max: usize,
    preparing_max: usize,
    saving_max: usize,
    with_memory_max: usize,
    turns: u64,
}

/// Runs until no process can send a message.
fn play(mut turns: Turns, microkernels: &[u32], random: &mut SmallRng) -> Shown {
    let count = microkernels.len();
    let (mut left, mut states) = (microkernels.to_vec(), vec![State::Wait; count]);
    let mut shown = Shown::default();
    let mut inbox: Vec<Message> = (0..count).map(Message::Request).collect();
    while !inbox.is_empty() {
        let place = random.random_range(0..inbox.len());
        let message = inbox.swap_remove(place);
        if let Message::YieldedMemory(process) = message {
            states[process] = State::Wait;
            if left[process] == 0 {
                states[process] = State::Finish;
            } else {
                inbox.push(Message::Request(process));
            }
        }
        if let Message::Ready(process) = message {
            states[process] = State::Ready;
        }
        for order in turns.take(message) {
            match order {
                Order::Prepare(process) => {
                    states[process] = State::Restore;
                    inbox.push(Message::Ready(process));
                }
                Order::Launch(process) => {
                    states[process] = State::Running;
                    left[process] = left[process].saturating_sub(1);
                    shown.turns += 1;
                    inbox.push(Message::YieldedGpu(process));
                }
                Order::Save(process) => {
                    states[process] = State::Save;
                    inbox.push(Message::YieldedMemory(process));
                }
            }
        }
        let count = |of: &[State]| states.iter().filter(|state| of.contains(state)).count();
        let preparing = count(&[State::Restore, State::Ready]);
        let (running, saving) = (count(&[State::Running]), count(&[State::Save]));
        shown.running_max = shown.running_max.max(running);
        shown.preparing_max = shown.preparing_max.max(preparing);
        shown.saving_max = shown.saving_max.max(saving);
        shown.with_memory_max = shown.with_memory_max.max(running + preparing + saving);
    }
    shown.ended = states
        .iter()
        .filter(|state| **state == State::Finish)
        .count();
    shown
}

/// The experiment.
///
/// # Errors
/// None.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let of_seeds = over_seeds(seeds, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = *[1, 2, 3, 7].choose(&mut random).unwrap_or(&7);
        let microkernels: Vec<u32> = (0..count).map(|_| random.random_range(1..=20)).collect();
        let repaired = play(Turns::new(), &microkernels, &mut random);
        let printed = play(Turns::as_printed(), &microkernels, &mut random);
        Ok::<_, Failure>((count, repaired, printed))
    })?;
    let over = |name: &str, of: &dyn Fn(&(usize, Shown, Shown)) -> f64| {
        Quantity::over(name, "", of_seeds.iter().map(of).collect())
    };
    Ok(Report {
        title: "1 to 7 processes of 1 to 20 microkernels, messages in random order".to_owned(),
        parameters: Parameters {
            paper: "states and messages",
            fitted: "",
            chosen: "processes, microkernels, the order of messages",
        },
        quantities: vec![
            over("as printed: turns", &|of| of.2.turns as f64).exactly(0.0),
            over("repaired: turns", &|of| of.1.turns as f64),
            over("repaired: processes that did not end", &|of| (of.0 - of.1.ended) as f64)
                .exactly(0.0),
            over("repaired: running, most", &|of| of.1.running_max as f64).exactly(1.0),
            over("repaired: restoring or ready, most", &|of| of.1.preparing_max as f64)
                .exactly(1.0),
            over("repaired: saving, most", &|of| of.1.saving_max as f64).exactly(1.0),
            over("repaired: at most two with memory", &|of| {
                f64::from(u8::from(of.1.with_memory_max <= 2))
            })
            .exactly(1.0),
        ],
        notes: vec!["As printed, PrepareState is sent only after memory was freed: no process ever starts. Repaired: the first request prepares, launches are ordered at both ReadyToLaunch and YieldedGPU, and the GPU's state is kept.".to_owned()],
        ..Report::default()
    })
}
