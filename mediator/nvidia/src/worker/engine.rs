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

mod memory;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::{CHUNK_BYTES, Command, CopyDirection, ErrorCode, Launch};
use turnstile_accounting::{Moment, Nanos};

use super::board::{Board, Standing};
use super::executor::{Executor, Failure, KernelInfo};
use turnstile_gpu::layout::Layout;
use turnstile_gpu::ring::{ChannelFault, Ring, check_channel, launch_fits, word_reached};
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

/// A module as channels use it.
#[derive(Debug)]
struct LoadedModule<E: Executor> {
    module: E::Module,
    kernels: Vec<KernelInfo>,
}

/// What to do when a command has finished.
#[derive(Debug)]
enum Then {
    Nothing,
    Fence {
        gpa: u64,
        value: u64,
        interrupt: bool,
    },
}

/// A command that was submitted.
#[derive(Debug)]
struct InFlight<E: Executor> {
    /// The command has finished when the stream's mark is at least this.
    needs: u64,
    then: Then,
    /// Keeps the module loaded.
    module: Option<Arc<LoadedModule<E>>>,
    /// GPU ranges that the command is known to touch: address and bytes.
    touches: [(u64, u64); 2],
}

/// State of a channel, beside its commands in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fetching,
    /// Until the word has reached the value, once nothing is in flight.
    Waiting {
        gpa: u64,
        value: u64,
    },
    /// Ends with this, once nothing is in flight.
    Failing(ChannelFault),
    Faulted,
}

#[derive(Debug)]
struct Channel<E: Executor> {
    ring: Ring,
    stream: E::Stream,
    phase: Phase,
    in_flight: VecDeque<InFlight<E>>,
    /// Commands that were submitted to the stream so far.
    given: u64,
    /// The last mark that was submitted to the stream, and the last that the stream wrote.
    asked: u64,
    reached: u64,
    unmarked: u32,
    /// Marks that were submitted and not reached.
    marks: VecDeque<u64>,
    /// How long the oldest command has been the oldest, as far as marks show.
    oldest_for: Nanos,
    last_active: Moment,
}

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

/// Memory by first page: number of pages and the memory, `None` while it is elsewhere.
type Pages<M> = BTreeMap<u32, (u32, Option<M>)>;

#[derive(Debug)]
struct State<E: Executor> {
    channels: BTreeMap<u32, Channel<E>>,
    /// Closed by the guest while commands are in flight.
    closing: Vec<Channel<E>>,
    modules: BTreeMap<u32, Arc<LoadedModule<E>>>,
    layout: Layout,
    memory: Pages<E::Memory>,
    /// Entries of `memory` without memory.
    absent: usize,
    last_pass: Moment,
    last_check: Moment,
    over: bool,
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

impl<E: Executor> Channel<E> {
    fn pending_fetch(&self) -> u32 {
        // CAST: bounded by IN_FLIGHT_MAX.
        self.ring.pending() - self.in_flight.len() as u32
    }

    /// Removes finished commands from the list and reports them to the guest.
    fn retire(&mut self, executor: &E, now: Moment) -> bool {
        self.reached = self
            .reached
            .max(executor.marked(&self.stream).min(self.asked));
        while self
            .marks
            .pop_front_if(|mark| *mark <= self.reached)
            .is_some()
        {}
        let mut news = false;
        while let Some(oldest) = self
            .in_flight
            .pop_front_if(|oldest| oldest.needs <= self.reached)
        {
            news = true;
            // First, so that the module can be unloaded when the guest reads that the command
            // finished.
            drop(oldest.module);
            let mut interrupts = false;
            if let Then::Fence {
                gpa,
                value,
                interrupt,
            } = oldest.then
            {
                interrupts = interrupt;
                // The range was checked when the command was fetched.
                let _ = self.ring.write_fence(gpa, value, now);
            }
            self.ring.complete();
            if interrupts {
                self.ring.interrupt();
            }
        }
        if news {
            self.last_active = now;
            self.oldest_for = Nanos::ZERO;
        }
        news
    }

    /// As [`Self::retire`], once per pass: `elapsed` counts against the commands in flight.
    fn progress(&mut self, executor: &E, now: Moment, elapsed: Nanos) -> bool {
        let news = self.retire(executor, now);
        if !self.is_idle() && !news {
            self.oldest_for += elapsed;
        }
        news
    }

    fn push(&mut self, then: Then, module: Option<Arc<LoadedModule<E>>>, touches: [(u64, u64); 2]) {
        if self.in_flight.is_empty() {
            self.oldest_for = Nanos::ZERO;
        }
        self.in_flight.push_back(InFlight {
            needs: self.given,
            then,
            module,
            touches,
        });
    }

    fn mark(&mut self, executor: &E) -> Result<(), Failure> {
        if self.given > self.asked {
            executor.mark(&self.stream, self.given)?;
            self.asked = self.given;
            self.marks.push_back(self.given);
            self.unmarked = 0;
        }
        Ok(())
    }

    /// Commands that have to finish before the next mark is reached; at most [`MARK_EVERY`].
    fn commands_to_mark(&self) -> u64 {
        let next = self.marks.front().copied().unwrap_or(self.given);
        next.saturating_sub(self.reached).max(1)
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }
}

impl<E: Executor> State<E> {
    /// Checks a launch against its module and returns the module.
    fn resolve(
        &self,
        launch: &Launch,
        params: &[u8],
        shared_bytes_max: u32,
    ) -> Result<Arc<LoadedModule<E>>, ErrorCode> {
        let module = self
            .modules
            .get(&launch.module)
            .ok_or(ErrorCode::NoSuchModule)?;
        let kernel = module
            .kernels
            .get(launch.function as usize)
            .ok_or(ErrorCode::NoSuchFunction)?;
        let shared = u64::from(kernel.shared_bytes) + u64::from(launch.shared_bytes);
        let fits = launch_fits(launch)
            && params.len() == kernel.param_bytes as usize
            && launch.block.count() <= u64::from(kernel.threads_max)
            && shared <= u64::from(shared_bytes_max);
        if fits {
            Ok(module.clone())
        } else {
            Err(ErrorCode::BadLaunch)
        }
    }

    /// Whether some pages have no memory: no command may be submitted then.
    fn is_absent(&self) -> bool {
        self.absent > 0
    }

    fn covered(&self, va: u64, bytes: u64) -> Result<(), Failure> {
        match self.layout.hole(va, bytes) {
            None => Ok(()),
            Some(hole) => Err(Failure::of(ErrorCode::PageFault, hole)),
        }
    }

    /// Whether a command in flight is known to touch these addresses.
    fn in_use(&self, va: u64, bytes: u64) -> bool {
        let all = self.channels.values().chain(&self.closing);
        let mut touches = all
            .flat_map(|channel| &channel.in_flight)
            .flat_map(|flying| flying.touches);
        touches
            .any(|(from, count)| count > 0 && from < va + bytes && va < from.saturating_add(count))
    }
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
            asked: 0,
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
        let (mut dead, mut asked) = (None, false);
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
            if !std::mem::replace(&mut asked, true)
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
        let submitted = self.submit(state, channel, &mut budget);
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

    /// Submits commands. An error is the end of the context.
    fn submit(
        &self,
        state: &State<E>,
        channel: &mut Channel<E>,
        budget: &mut u32,
    ) -> Result<(), Failure> {
        while *budget > 0
            && !state.is_absent()
            && channel.phase == Phase::Fetching
            && channel.pending_fetch() > 0
            && channel.in_flight.len() < IN_FLIGHT_MAX
        {
            *budget -= 1;
            match self.give(state, channel) {
                Ok(()) => {}
                Err(failure) if failure.is_fatal => return Err(failure),
                Err(failure) => channel.phase = Phase::Failing(failure.fault),
            }
            if channel.unmarked >= MARK_EVERY {
                channel.mark(&self.executor)?;
            }
        }
        if *budget > 0 || channel.in_flight.len() >= IN_FLIGHT_MAX {
            channel.mark(&self.executor)?;
        }
        Ok(())
    }

    /// Fetches the next command and submits it to the stream.
    fn give(&self, state: &State<E>, channel: &mut Channel<E>) -> Result<(), Failure> {
        let failure = |fault| Failure {
            fault,
            is_fatal: false,
        };
        // CAST: bounded by IN_FLIGHT_MAX.
        let index = channel
            .ring
            .get()
            .wrapping_add(channel.in_flight.len() as u32);
        let nothing = [(0, 0); 2];
        match channel.ring.command(index).map_err(failure)? {
            Command::Nop => channel.push(Then::Nothing, None, nothing),
            Command::Fence {
                gpa,
                value,
                interrupt,
            } => {
                channel.mark(&self.executor)?;
                let then = Then::Fence {
                    gpa,
                    value,
                    interrupt,
                };
                channel.push(then, None, nothing);
            }
            Command::Wait { gpa, value } => {
                channel.mark(&self.executor)?;
                channel.phase = Phase::Waiting { gpa, value };
            }
            Command::Copy {
                direction,
                source,
                destination,
                bytes,
            } => {
                let (mut reads, mut writes) = ((source, bytes), (destination, bytes));
                if direction == CopyDirection::GuestToGpu {
                    reads = (0, 0);
                } else {
                    state.covered(source, bytes)?;
                }
                if direction == CopyDirection::GpuToGuest {
                    writes = (0, 0);
                } else {
                    state.covered(destination, bytes)?;
                }
                let stream = &channel.stream;
                self.executor
                    .copy(stream, direction, source, destination, bytes)?;
                channel.gave(None, [reads, writes]);
            }
            Command::Fill { va, bytes, pattern } => {
                state.covered(va, bytes)?;
                self.executor.fill(&channel.stream, va, bytes, pattern)?;
                channel.gave(None, [(va, bytes), (0, 0)]);
            }
            Command::Launch(launch) => {
                let params = channel.ring.params(&launch).map_err(failure)?;
                let shared = self.executor.shared_bytes_max();
                let module = state.resolve(&launch, &params, shared);
                let module = module.map_err(|code| Failure::of(code, launch.module.into()))?;
                let function = launch.function as usize;
                self.executor.launch(
                    &channel.stream,
                    &module.module,
                    function,
                    &launch,
                    &params,
                )?;
                channel.gave(Some(module), nothing);
            }
        }
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

impl<E: Executor> Channel<E> {
    /// Records a command that was submitted to the stream.
    fn gave(&mut self, module: Option<Arc<LoadedModule<E>>>, touches: [(u64, u64); 2]) {
        self.given += 1;
        self.unmarked += 1;
        self.push(Then::Nothing, module, touches);
    }
}
