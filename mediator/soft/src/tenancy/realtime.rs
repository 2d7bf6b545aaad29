//! The software GPU in real time: one thread per engine and one that watches doorbells.
//!
//! Locks, outermost first: the core's, then a context's modules, then its layout, then the card's.
//! The core's lock is held for microseconds, never while a command executes: no caller waits for a
//! tenant's work.
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
use crate::config::{ENGINES, SoftConfig};
use crate::core::{Core, Watched};
use crate::execute::clock::Clock;
use crate::execute::execute;
use crate::execute::work::{Outcome, Start};
use crate::memory::CardMemory;
use crate::registers::Registers;
use turnstile_gpu::pace::pause;
use turnstile_host::confine;

/// What threads share.
#[derive(Debug)]
struct Shared {
    config: SoftConfig,
    clock: Clock,
    card: CardMemory,
    swap: Option<Swap>,
    registers: Arc<Registers>,
    changes: Arc<AtomicU64>,
    state: Mutex<State>,
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
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug; the others' GPU goes on as well as it can.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        if state.core.take_notice() {
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
        if (early || news || state.core.has_backlog())
            && let Some(watcher) = &state.watcher
        {
            watcher.unpark();
        }
        answer
    }

    /// An engine's thread.
    fn engine(&self, index: usize) {
        let mut state = self.lock();
        loop {
            if state.ending {
                return;
            }
            let Some(start) = state.inbox[index].take() else {
                state = self.begin[index]
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
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
            self.drive(&mut state, |core, now| {
                core.finished(now, index, outcome);
                core.front_end(now);
            });
            // May be the last that holds the tenant's memory, which takes long to give back.
            drop(state);
            drop(context);
            state = self.lock();
        }
    }

    /// The watcher's thread.
    fn watch(&self) {
        let mut watched = Vec::new();
        let mut last_news = self.clock.now();
        loop {
            let mut state = self.lock();
            if state.ending {
                return;
            }
            state.watcher_until = None;
            self.drive(&mut state, |core, now| core.poll(now));
            state.core.watched(&mut watched);
            let known = self.changes.load(Ordering::Acquire);
            let until = state.core.next_wakeup();
            state.watcher_knows = known;
            state.watcher_until = until;
            let backlog = state.core.has_backlog();
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
    threads: Vec<JoinHandle<()>>,
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
            state: Mutex::new(State {
                core,
                inbox: Default::default(),
                starts: Vec::new(),
                watcher: None,
                watcher_until: None,
                watcher_knows: 0,
                ending: false,
            }),
            begin: Default::default(),
        });
        // From here on a failure drops the GPU, which ends the threads that there are.
        let mut gpu = Self {
            shared,
            threads: Vec::new(),
        };
        for (index, name) in ["gpu-compute", "gpu-copy0", "gpu-copy1"].iter().enumerate() {
            let shared = gpu.shared.clone();
            gpu.spawn(name, move || shared.engine(index))?;
        }
        let shared = gpu.shared.clone();
        let watcher = gpu.spawn("gpu-watch", move || shared.watch())?;
        gpu.shared.lock().watcher = Some(watcher);
        Ok(gpu)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                confine::enter(confine::Role::Engine);
                run();
            })?;
        let handle = thread.thread().clone();
        self.threads.push(thread);
        Ok(handle)
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
}

impl Drop for SoftGpu {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        state.core.stop_all();
        state.core.changed();
        let watcher = state.watcher.take();
        drop(state);
        for begin in &self.shared.begin {
            begin.notify_all();
        }
        if let Some(watcher) = watcher {
            watcher.unpark();
        }
        for thread in self.threads.drain(..) {
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}
