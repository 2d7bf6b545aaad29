//! The software GPU in real time: one thread per engine and one that watches doorbells.
//!
//! The core's lock is held for microseconds, never while a command executes: no caller waits for a
//! tenant's work. [`crate::rank`] has the order of locks.
//!
//! The watching thread polls the doorbells of open gates and the words that channels wait for,
//! without any lock. After a change it polls continuously for a moment, then at growing intervals
//! ([`turnstile_gpu::pace`]). With nothing to watch it sleeps until it is notified of a write
//! ([`turnstile_gpu::DoorbellChange::Written`]).

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;
use std::{hint, io};

use turnstile_abi::ErrorCode;
use turnstile_accounting::{Moment, Nanos};

use super::Driver;
use crate::address_space::swap::Swap;
use crate::board::Board;
use crate::config::{COMPUTE, ENGINES, SoftConfig};
use crate::core::{Core, Watched, again, front_end};
use crate::execute::clock::Clock;
use crate::execute::execute;
use crate::execute::work::{Outcome, Start};
use crate::memory::CardMemory;
use crate::rank;
use crate::registers::Registers;
use turnstile_gpu::Contexts;
use turnstile_gpu::pace::pause;
use turnstile_host::confine;
use turnstile_host::ranked::{Ranked, RankedGuard};

/// What threads share.
#[derive(Debug)]
struct Shared {
    config: SoftConfig,
    clock: Clock,
    card: CardMemory,
    swap: Option<Swap>,
    registers: Arc<Registers>,
    changes: Arc<AtomicU64>,
    state: Ranked<State>,
    /// The core had a notice that was not taken yet.
    noticed: AtomicBool,
    /// The thread that waits for notices.
    waiter: Mutex<Option<Thread>>,
    /// Notifies an engine's thread of work in its inbox.
    begin: [Condvar; ENGINES],
}

/// What the core's lock guards.
#[derive(Debug)]
struct State {
    core: Core,
    inbox: [Option<Start>; ENGINES],
    starts: Vec<Start>,
    watcher: Option<Thread>,
    /// Until when the watcher may sleep, and what it knew of [`Core::changes`].
    watcher_until: Option<Moment>,
    watcher_knows: u64,
    ending: bool,
    /// Number of times that the GPU was taken back. A thread of an earlier one ends.
    generation: u64,
    /// The engine of which the thread has to end as by a bug.
    broken: Option<usize>,
}

impl State {
    /// Whether a thread of this generation has to end.
    fn is_over(&self, generation: u64) -> bool {
        self.ending || self.generation != generation
    }
}

/// A stopped command that still executes after this time occupies its engine for good. TIMEOUT:
/// threads check for it each few milliseconds, and a busy machine may not run them for seconds.
const STUCK_AFTER: Nanos = Nanos::from_ms(5_000);

/// Threads of a GPU: those of the engines, and the watcher.
const THREADS: [&str; ENGINES + 1] = ["gpu-compute", "gpu-copy0", "gpu-copy1", "gpu-watch"];

impl Shared {
    fn lock(&self) -> RankedGuard<'_, State> {
        self.state.lock()
    }

    /// Lets `act` change the core, then hands out what engines are to begin.
    fn drive<R>(&self, state: &mut State, act: impl FnOnce(&mut Core, Moment) -> R) -> R {
        let now = self.clock.now();
        let answer = act(&mut state.core, now);
        state.core.dispatch(now, &mut state.starts);
        for start in state.starts.drain(..) {
            let engine = start.engine;
            state.inbox[engine] = Some(start);
            self.begin[engine].notify_one();
        }
        if state.core.demand.take_notice() {
            self.noticed.store(true, Ordering::Release);
            if let Some(board) = &state.core.board {
                board.notice();
            }
            let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner);
            waiter.iter().for_each(Thread::unpark);
        }
        let due = state.core.next_wakeup();
        let early = due.is_some_and(|due| state.watcher_until.is_none_or(|until| due < until));
        let news = self.changes.load(Ordering::Acquire) != state.watcher_knows;
        if (early || news || !state.core.line.is_empty())
            && let Some(watcher) = &state.watcher
        {
            watcher.unpark();
        }
        answer
    }

    /// An engine's thread.
    fn engine(&self, index: usize, generation: u64) {
        let mut state = self.lock();
        loop {
            if state.is_over(generation) || state.broken == Some(index) {
                return;
            }
            let Some(start) = state.inbox[index].take() else {
                state = state.wait(&self.begin[index]);
                continue;
            };
            drop(state);
            let run = AssertUnwindSafe(|| execute(&start, &self.clock, &self.config));
            // Second line of defence: an interpreter bug that a guest's kernel triggers ends only
            // that channel.
            let outcome = catch_unwind(run).unwrap_or(Outcome::Fault {
                code: ErrorCode::KernelTrap,
                info: 0,
            });
            // Once the guest sees that a command has finished, its module must be free to go.
            let Start { work, context, .. } = start;
            drop(work);
            state = self.lock();
            if state.is_over(generation) || state.broken == Some(index) {
                return;
            }
            self.drive(&mut state, |core, now| {
                core.finished(now, index, outcome);
                front_end::pass(core, now);
            });
            // May be the last that holds the tenant's memory, which takes long to give back.
            drop(state);
            drop(context);
            state = self.lock();
        }
    }

    /// The watcher's thread.
    fn watch(&self, generation: u64) {
        let mut watched = Vec::new();
        let mut last_news = self.clock.now();
        loop {
            let mut state = self.lock();
            if state.is_over(generation) {
                return;
            }
            state.watcher_until = None;
            self.drive(&mut state, |core, _| core.poll(|| self.clock.now()));
            state.core.watched(&mut watched);
            let known = self.changes.load(Ordering::Acquire);
            let until = state.core.next_wakeup();
            state.watcher_knows = known;
            state.watcher_until = until;
            let backlog = !state.core.line.is_empty();
            drop(state);
            if backlog {
                thread::yield_now();
            } else if watched.is_empty() {
                match until {
                    Some(until) => {
                        thread::park_timeout(Duration::from_nanos(until.since(self.clock.now()).0))
                    }
                    None => thread::park(),
                }
            } else {
                self.poll_watched(&watched, known, until, &mut last_news);
            }
        }
    }

    /// Polls until there is news for the core.
    fn poll_watched(
        &self,
        watched: &[Watched],
        known: u64,
        until: Option<Moment>,
        last_news: &mut Moment,
    ) {
        loop {
            let now = self.clock.now();
            if watched.iter().any(Watched::has_changed) {
                *last_news = now;
                return;
            }
            let due = until.is_some_and(|until| until <= now);
            if due || self.changes.load(Ordering::Acquire) != known {
                return;
            }
            match pause(now.since(*last_news)) {
                None => hint::spin_loop(),
                Some(pause) => thread::park_timeout(pause),
            }
        }
    }
}

/// A software GPU that runs in real time.
#[derive(Debug)]
pub struct SoftGpu {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SoftGpu {
    /// Makes a GPU and starts its threads.
    ///
    /// # Errors
    /// The host's, when it has no threads left.
    pub fn new(config: SoftConfig) -> io::Result<Self> {
        Self::make(config, None, None)
    }

    /// The same, which shows what it does on `board`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn with_board(config: SoftConfig, board: Arc<dyn Board>) -> io::Result<Self> {
        Self::make(config, Some(board), None)
    }

    /// The same; also appends each context switch to `trace` as a line of JSON, before the switch
    /// can be read from the log.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn traced(config: SoftConfig, trace: Option<File>) -> io::Result<Self> {
        Self::make(config, None, trace)
    }

    fn make(
        config: SoftConfig,
        board: Option<Arc<dyn Board>>,
        trace: Option<File>,
    ) -> io::Result<Self> {
        let clock = Clock::new();
        let mut core = Core::new(config, clock.now());
        if let Some(board) = board {
            core.show_on(board);
        }
        if let Some(file) = trace {
            core.log.trace_to(file);
        }
        let (card, swap) = Swap::new(&config).map_err(io::Error::other)?;
        core.memory_log = swap.as_ref().map(|swap| swap.log.clone());
        let shared = Arc::new(Shared {
            config,
            clock,
            card,
            swap,
            registers: core.registers.clone(),
            changes: core.changes(),
            noticed: AtomicBool::new(false),
            waiter: Mutex::new(None),
            state: Ranked::new(
                rank::CORE,
                State {
                    core,
                    inbox: Default::default(),
                    starts: Vec::new(),
                    watcher: None,
                    watcher_until: None,
                    watcher_knows: 0,
                    ending: false,
                    generation: 0,
                    broken: None,
                },
            ),
            begin: Default::default(),
        });
        // From here on a failure drops the GPU, which ends the threads that there are.
        let gpu = Self {
            shared,
            threads: Mutex::default(),
        };
        gpu.start()?;
        Ok(gpu)
    }

    /// Ends the compute engine's thread as a bug in it would, for tests of a GPU that falls silent.
    pub fn break_engine(&self) {
        self.shared.lock().broken = Some(COMPUTE);
        self.shared.begin[COMPUTE].notify_all();
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads of the present generation.
    fn start(&self) -> io::Result<()> {
        let generation = self.shared.lock().generation;
        for (index, name) in THREADS.iter().enumerate() {
            let shared = self.shared.clone();
            let run = move || {
                confine::enter(confine::Role::Engine);
                match index {
                    ENGINES => shared.watch(generation),
                    engine => shared.engine(engine, generation),
                }
            };
            let thread = thread::Builder::new().name((*name).to_owned()).spawn(run)?;
            if index == ENGINES {
                self.shared.lock().watcher = Some(thread.thread().clone());
            }
            self.threads().push(thread);
        }
        Ok(())
    }
}

impl Driver for SoftGpu {
    fn config(&self) -> &SoftConfig {
        &self.shared.config
    }

    fn card(&self) -> &CardMemory {
        &self.shared.card
    }

    fn swap(&self) -> Option<&Swap> {
        self.shared.swap.as_ref()
    }

    fn registers(&self) -> &Registers {
        &self.shared.registers
    }

    fn clock(&self) -> Moment {
        self.shared.clock.now()
    }

    fn later(&self, _now: Moment) -> Moment {
        self.shared.clock.now()
    }

    fn drive<R>(&self, act: impl FnOnce(&mut Core, Moment) -> R) -> R {
        self.shared.drive(&mut self.shared.lock(), act)
    }

    fn with_core<R>(&self, read: impl FnOnce(&mut Core) -> R) -> R {
        read(&mut self.shared.lock().core)
    }

    fn wait_for_notice(&self, length: Nanos) -> bool {
        let shared = &self.shared;
        let mut waiter = shared.waiter.lock().unwrap_or_else(PoisonError::into_inner);
        if waiter.as_ref().map(Thread::id) != Some(thread::current().id()) {
            *waiter = Some(thread::current());
        }
        drop(waiter);
        if !shared.noticed.load(Ordering::Acquire) {
            thread::park_timeout(Duration::from_nanos(length.0));
        }
        shared.noticed.swap(false, Ordering::AcqRel)
    }

    /// Its threads live, and none keeps an engine after its work was stopped.
    fn answers(&self) -> Result<(), String> {
        let threads = self.threads();
        for (index, name) in THREADS.iter().enumerate() {
            if threads.get(index).is_none_or(JoinHandle::is_finished) {
                return Err(format!("Its thread {name} has ended"));
            }
        }
        let stopped = self.drive(again::stopped_since);
        for (name, since) in THREADS.iter().zip(stopped) {
            if since.is_some_and(|since| self.clock().since(since) > STUCK_AFTER) {
                return Err(format!("Its thread {name} does not stop a command"));
            }
        }
        Ok(())
    }

    /// With a new core and new threads. A thread that is stuck keeps what it uses, and ends when it
    /// returns.
    fn take_back(&self) -> Result<Contexts, String> {
        let mut state = self.shared.lock();
        let before = again::replace(&mut state.core, self.shared.clock.now());
        state.generation += 1;
        state.broken = None;
        state.inbox = Default::default();
        state.starts.clear();
        state.watcher_until = None;
        let watcher = state.watcher.take();
        drop(state);
        self.shared.begin.iter().for_each(Condvar::notify_all);
        watcher.iter().for_each(Thread::unpark);
        // Giving its memory back takes long.
        drop(before);
        self.threads().clear();
        self.start().map_err(|error| error.to_string())?;
        Driver::answers(self).map(|()| Contexts::Gone)
    }
}

impl Drop for SoftGpu {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        again::stop_all(&mut state.core);
        state.core.changed();
        let watcher = state.watcher.take();
        drop(state);
        for begin in &self.shared.begin {
            begin.notify_all();
        }
        if let Some(watcher) = watcher {
            watcher.unpark();
        }
        for thread in self.threads().drain(..) {
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}
