//! Threads that carry out requests: as many as there are requests in flight, up to a limit, so that
//! none waits for another.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads of a VM at most. Further requests wait.
const WORKERS_MAX: usize = 32;

/// Carries out a job.
type Carry<J> = dyn Fn(J) + Send + Sync;

#[derive(Debug)]
struct State<J> {
    jobs: VecDeque<J>,
    running: usize,
    /// No job is begun.
    held: usize,
    ended: bool,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
    carry: Box<Carry<J>>,
}

/// The threads.
pub(super) struct Workers<J>(Arc<Shared<J>>);

impl<J> fmt::Debug for Workers<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl<J> Shared<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<J>>) -> MutexGuard<'a, State<J>> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            if state.ended {
                return;
            }
            let job = if state.held == 0 {
                state.jobs.pop_front()
            } else {
                None
            };
            let Some(job) = job else {
                state = self.wait(state);
                continue;
            };
            state.running += 1;
            drop(state);
            (self.carry)(job);
            state = self.state();
            state.running -= 1;
            self.changed.notify_all();
        }
    }
}

impl<J: Send + 'static> Workers<J> {
    /// Threads that do this with each job. None is started yet.
    pub(super) fn new(carry: impl Fn(J) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                running: 0,
                held: 0,
                ended: false,
                threads: Vec::new(),
            }),
            changed: Condvar::new(),
            carry: Box::new(carry),
        }))
    }

    /// Adds jobs. The caller bounds their number.
    pub(super) fn add(&self, jobs: impl IntoIterator<Item = J>) {
        let mut state = self.0.state();
        state.jobs.extend(jobs);
        while state.threads.len() < WORKERS_MAX.min(state.running + state.jobs.len()) {
            let shared = Arc::clone(&self.0);
            let thread = thread::Builder::new().name("guest-call".to_owned());
            match thread.spawn(move || shared.run()) {
                Ok(thread) => state.threads.push(thread),
                // Those that there are carry them out, one after the other.
                Err(_) => break,
            }
        }
        self.0.changed.notify_all();
    }

    /// Waits until no job is running, and does `then` while none is begun.
    pub(super) fn paused<T>(&self, then: impl FnOnce() -> T) -> T {
        let mut state = self.0.state();
        state.held += 1;
        while state.running != 0 {
            state = self.0.wait(state);
        }
        drop(state);
        let done = then();
        self.0.state().held -= 1;
        self.0.changed.notify_all();
        done
    }

    /// Drops jobs that are not begun.
    pub(super) fn clear(&self) {
        self.0.state().jobs.clear();
    }

    /// Ends the threads.
    pub(super) fn end(&self) {
        let mut state = self.0.state();
        state.ended = true;
        state.jobs.clear();
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.0.changed.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                log::error!("A thread of a request panicked");
            }
        }
    }
}
