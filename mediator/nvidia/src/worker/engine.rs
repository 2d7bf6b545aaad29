//! The worker's channels: fetches commands, submits them to streams, and reports completions to the
//! guest.
//!
//! ```text
//!   ring --checked--> in flight (at most IN_FLIGHT_MAX) --stream's mark--> get, fences, interrupts
//! ```
//!
//! A stream writes a mark before each fence and wait, after the last command that was announced,
//! and after every [`MARK_EVERY`] commands. `get` can therefore lag by that many finished commands.
//! A wait, or an error found in the ring, takes effect once all earlier commands have finished.
//!
//! An error of a kernel is known only when the context is gone. Each channel with a launch as its
//! oldest unfinished command then ends with the error, at that command; after a time-out only the
//! channel that exceeded its limit. The VM's other channels end with `DeviceLost`.

mod channel;
mod memory;
mod state;
mod submit;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::{CHUNK_BYTES, ErrorCode};
use turnstile_accounting::{Moment, Nanos};

use super::board::{Board, Standing};
use super::executor::{Executor, Failure};
use channel::{Channel, LoadedModule, Phase};
use state::{Pages, State};
use turnstile_gpu::layout::Layout;
use turnstile_gpu::ring::{ChannelFault, Ring, check_channel, word_reached};
use turnstile_gpu::{ChannelConfig, Doorbells, GuestMemory, Interrupts, Refusal};

/// Commands of a channel that are submitted and not known to have finished. A launch must not block
/// while the VM is suspended. SOURCE: measured, and known of CUDA: the driver's own rings take
/// about 1,000 commands before a launch blocks.
const IN_FLIGHT_MAX: usize = 64;
/// Commands of a channel between two marks.
const MARK_EVERY: u32 = 16;
/// Maximum number of commands submitted for a channel per pass.
const TURN_BUDGET: u32 = 16;
/// Interval of checks of the context and of time limits, while doorbells or streams are polled.
const CHECK_EVERY: Nanos = Nanos(1_000_000);
/// Longest time between two passes that counts against commands. After a longer gap the pass itself
/// was delayed, and the time of the commands on the GPU is not known.
const GAP_MAX: Nanos = Nanos(10_000_000);

/// Result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// Something has changed.
    pub(super) news: bool,
    /// Another pass has work to do at once.
    pub(super) more: bool,
    /// Another pass is needed without a notification.
    pub(super) watching: bool,
    /// The context is gone and every channel's end was reported: the process has to end.
    pub(super) over: bool,
}

/// The channels of one VM. Time is a parameter.
#[derive(Debug)]
pub(super) struct Engine<E: Executor> {
    executor: E,
    guest: Arc<GuestMemory>,
    doorbells: Arc<dyn Doorbells>,
    interrupts: Arc<dyn Interrupts>,
    board: Arc<Board>,
    kernel_limit: Nanos,
    state: Mutex<State<E>>,
    /// Orders that wait for the state: [`Engine::pass`] yields until there is none.
    visitors: AtomicU32,
}

/// Parameters of an engine.
#[derive(Debug)]
pub(super) struct Parts<E: Executor> {
    pub(super) executor: E,
    pub(super) guest: Arc<GuestMemory>,
    pub(super) doorbells: Arc<dyn Doorbells>,
    pub(super) interrupts: Arc<dyn Interrupts>,
    pub(super) board: Arc<Board>,
    pub(super) kernel_limit: Nanos,
    pub(super) memory_bytes: u64,
}

impl<E: Executor> Engine<E> {
    pub(super) fn new(parts: Parts<E>) -> Self {
        let pages = usize::try_from(parts.memory_bytes / CHUNK_BYTES).unwrap_or(0);
        let state = State {
            channels: BTreeMap::new(),
            closing: Vec::new(),
            modules: BTreeMap::new(),
            // The daemon counts and bounds allocations.
            layout: Layout::new(pages, usize::MAX),
            memory: Pages::new(),
            absent: 0,
            last_pass: Moment(0),
            last_check: Moment(0),
            over: false,
        };
        Self {
            executor: parts.executor,
            guest: parts.guest,
            doorbells: parts.doorbells,
            interrupts: parts.interrupts,
            board: parts.board,
            kernel_limit: parts.kernel_limit,
            state: Mutex::new(state),
            visitors: AtomicU32::new(0),
        }
    }

    /// The page shared with the daemon.
    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// Locks the state for an order; passes yield to it.
    fn visit(&self) -> MutexGuard<'_, State<E>> {
        self.visitors.fetch_add(1, Ordering::AcqRel);
        let state = self.lock();
        self.visitors.fetch_sub(1, Ordering::AcqRel);
        state
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open_channel(&self, number: u32, config: ChannelConfig) -> Result<(), Refusal> {
        check_channel(&self.guest, &config)?;
        let stream = self.executor.stream()?;
        let mut state = self.visit();
        if state.channels.contains_key(&number) {
            return Err(ErrorCode::BadArgument.into());
        }
        self.doorbells.clear(number);
        let ring = Ring::open(self.guest.clone(), self.interrupts.clone(), config);
        let channel = Channel {
            ring,
            stream,
            phase: Phase::Fetching,
            in_flight: VecDeque::with_capacity(IN_FLIGHT_MAX),
            given: 0,
            marks_requested: 0,
            reached: 0,
            unmarked: 0,
            marks: VecDeque::new(),
            oldest_for: Nanos::ZERO,
            last_active: state.last_pass,
        };
        self.note(number, &channel);
        state.channels.insert(number, channel);
        Ok(())
    }

    pub(super) fn close_channel(&self, number: u32) -> Result<(), Refusal> {
        let mut state = self.visit();
        let channel = state
            .channels
            .remove(&number)
            .ok_or(ErrorCode::NoSuchChannel)?;
        self.board.note(number, 0, Standing::None, 0);
        if channel.is_idle() {
            channel.ring.report_closed();
        } else {
            state.closing.push(channel);
        }
        Ok(())
    }

    /// Loads a module under a handle and returns the number of its functions.
    pub(super) fn load_module(&self, handle: u32, text: &str) -> Result<u32, Refusal> {
        let (module, mut kernels) = self.executor.load(text)?;
        let functions = kernels.len() as u32;
        kernels.shrink_to_fit();
        let module = Arc::new(LoadedModule { module, kernels });
        self.visit().modules.insert(handle, module);
        Ok(functions)
    }

    pub(super) fn unload_module(&self, handle: u32) -> Result<(), Refusal> {
        let mut state = self.visit();
        let module = state.modules.get(&handle).ok_or(ErrorCode::NoSuchModule)?;
        if Arc::strong_count(module) > 1 {
            return Err(ErrorCode::ModuleInUse.into());
        }
        let module = state.modules.remove(&handle);
        drop(state);
        // Without the lock: the vendor's library can take long.
        drop(module);
        Ok(())
    }

    /// Index and parameter bytes of a function.
    pub(super) fn find_function(&self, handle: u32, name: &str) -> Result<(u32, u32), Refusal> {
        let state = self.visit();
        let module = state.modules.get(&handle).ok_or(ErrorCode::NoSuchModule)?;
        let mut kernels = module.kernels.iter().enumerate();
        let found = kernels.find(|(_, kernel)| kernel.name == name);
        let (index, kernel) = found.ok_or(ErrorCode::NoSuchFunction)?;
        // CAST: a module's text bounds the number of its functions.
        Ok((index as u32, kernel.param_bytes))
    }

    fn note(&self, number: u32, channel: &Channel<E>) {
        let standing = match channel.phase {
            Phase::Faulted => Standing::Faulted,
            _ => Standing::Open,
        };
        let get = channel.ring.get();
        self.board
            .note(number, get, standing, channel.last_active.0);
    }

    /// Reads all doorbells and marks once, and submits what is new.
    pub(super) fn pass(&self, now: Moment) -> Pass {
        while self.visitors.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut pass = Pass::default();
        if state.over {
            pass.over = true;
            return pass;
        }
        let elapsed = now.since(state.last_pass).min(GAP_MAX);
        state.last_pass = now;
        let elapsed = if self.board.suspended() {
            Nanos::ZERO
        } else {
            elapsed
        };
        let mut died = None;
        let numbers: Vec<u32> = state.channels.keys().copied().collect();
        for number in numbers {
            // Taken out of the table meanwhile, so that the rest of the state can be borrowed.
            let Some(mut channel) = state.channels.remove(&number) else {
                continue;
            };
            let turn = self.turn(state, number, &mut channel, now, elapsed, &mut pass);
            if let Err(failure) = turn {
                died.get_or_insert((failure, number));
            }
            state.channels.insert(number, channel);
        }
        for channel in &mut state.closing {
            // The last commands may have no mark yet, and no more commands follow.
            if let Err(failure) = channel.mark(&self.executor) {
                died.get_or_insert((failure, u32::MAX));
            }
            pass.news |= channel.progress(&self.executor, now, elapsed);
        }
        state.closing.retain(|channel| {
            if channel.is_idle() {
                channel.ring.report_closed();
            }
            !channel.is_idle()
        });
        pass.watching |= !state.closing.is_empty() || self.board.unwatched();
        if died.is_none() && pass.watching && now.since(state.last_check) >= CHECK_EVERY {
            state.last_check = now;
            died = self.examine(state);
        }
        if let Some((failure, number)) = died {
            self.end_all(state, now, failure, number);
            pass.over = true;
        }
        pass
    }

    /// Checks that the context is alive and that no command exceeds its limit.
    fn examine(&self, state: &State<E>) -> Option<(Failure, u32)> {
        let busy = |channel: &&Channel<E>| !channel.is_idle();
        let numbered = state
            .channels
            .iter()
            .map(|(number, channel)| (*number, channel));
        let closing = state.closing.iter().map(|channel| (u32::MAX, channel));
        let (mut dead, mut checked) = (None, false);
        for (number, channel) in numbered.chain(closing).filter(|(_, channel)| busy(channel)) {
            // Each command may run for the limit, and a mark shows only the end of all of them.
            let commands = channel.commands_to_mark();
            if channel.oldest_for.0 >= self.kernel_limit.0.saturating_mul(commands) {
                let failure = Failure {
                    is_fatal: true,
                    ..Failure::of(ErrorCode::KernelTimeout, 0)
                };
                return Some((failure, number));
            }
            // One stream answers for all of them: they have one context.
            if !std::mem::replace(&mut checked, true)
                && let Err(failure) = self.executor.check(&channel.stream)
                && failure.is_fatal
            {
                dead = Some((failure, number));
            }
        }
        dead
    }

    /// Advances one channel. An error is the end of the context.
    fn turn(
        &self,
        state: &State<E>,
        number: u32,
        channel: &mut Channel<E>,
        now: Moment,
        elapsed: Nanos,
        pass: &mut Pass,
    ) -> Result<(), Failure> {
        if channel.phase == Phase::Faulted {
            return Ok(());
        }
        let mut news = channel.progress(&self.executor, now, elapsed);
        if !matches!(channel.phase, Phase::Failing(_)) {
            match channel.ring.announce(self.doorbells.put(number)) {
                Ok(false) => {}
                Ok(true) => {
                    channel.last_active = now;
                    news = true;
                }
                Err(fault) => channel.phase = Phase::Failing(fault),
            }
        }
        let mut budget = TURN_BUDGET;
        let submitted = channel.submit(&self.executor, state, &mut budget);
        news |= budget < TURN_BUDGET;
        // First: commands that need no stream have finished by now.
        news |= channel.retire(&self.executor, now);
        submitted?;
        if channel.is_idle() {
            match channel.phase {
                Phase::Waiting { gpa, value } if word_reached(&self.guest, gpa, value) => {
                    channel.phase = Phase::Fetching;
                    channel.ring.complete();
                    channel.last_active = now;
                    news = true;
                }
                Phase::Failing(fault) => {
                    channel.phase = Phase::Faulted;
                    channel.last_active = now;
                    // The shared page first: the guest may close the channel as soon as it reads
                    // the fault.
                    self.note(number, channel);
                    channel.ring.fault(fault);
                    news = true;
                }
                _ => {}
            }
        }
        if news {
            self.note(number, channel);
        }
        let fetches = channel.phase == Phase::Fetching && channel.pending_fetch() > 0;
        pass.more |= fetches && channel.in_flight.len() < IN_FLIGHT_MAX && !state.is_absent();
        pass.watching |= !channel.is_idle() || matches!(channel.phase, Phase::Waiting { .. });
        pass.news |= news;
        Ok(())
    }

    /// Ends every channel: the context is gone. `number` is the channel at which that was detected.
    fn end_all(&self, state: &mut State<E>, now: Moment, failure: Failure, number: u32) {
        state.over = true;
        let timeout = failure.fault.code == ErrorCode::KernelTimeout;
        let runs_kernel = |channel: &Channel<E>| {
            channel
                .in_flight
                .front()
                .is_some_and(|oldest| oldest.module.is_some())
        };
        let suspects = state
            .channels
            .values()
            .filter(|channel| runs_kernel(channel))
            .count();
        for (this, channel) in &mut state.channels {
            if channel.phase == Phase::Faulted {
                continue;
            }
            // Reports what had finished before.
            channel.retire(&self.executor, now);
            let guilty = if timeout || suspects == 0 {
                *this == number
            } else {
                runs_kernel(channel)
            };
            let fault = match (guilty, channel.phase) {
                (true, _) => failure.fault,
                (false, Phase::Failing(fault)) if channel.is_idle() => fault,
                (false, _) => ChannelFault {
                    code: ErrorCode::DeviceLost,
                    info: 0,
                },
            };
            channel.phase = Phase::Faulted;
            channel.last_active = now;
            self.note(*this, channel);
            channel.ring.fault(fault);
        }
        for channel in state.closing.drain(..) {
            channel.ring.report_closed();
        }
    }
}
