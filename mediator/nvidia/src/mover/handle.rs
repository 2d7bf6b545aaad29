//! The daemon's side: a mover process, and the memory that it moved.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::Nanos;
use turnstile_vmm::wire::{FrameReader, send};

use super::pages::{Chore, Pages, Pool, Segment};
use super::protocol::{Answer, EXTENTS_MAX, Extent, MORE_LINES, Moved, Order, SPANS_MAX};
use crate::line::{self, answer};

/// Maximum memory behind one handle: it is moved at once, and is in both places meanwhile. SOURCE:
/// measured: a copy of 1 GiB takes 19.4 ms; importing and mapping a handle takes 1 ms, freeing its
/// memory 0.3 ms.
pub const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// Minimum memory behind one handle, if there is that much. SOURCE: measured: the work that follows
/// the last copy (freeing or mapping) takes 1.3 ms for 1 GiB, as long as copying 70 MiB.
const EXTENT_BYTES_MIN: u64 = 128 << 20;

/// Memory behind the first and the last of many handles. SOURCE: measured: with 64 MiB, 1 GiB goes
/// out at 96.1 to 97.3 % of the link and comes in at 95.4 to 95.7 %; with 32 MiB, 97.5 % and 94.7
/// %.
const EDGE_BYTES: u64 = 64 << 20;
/// Memory of at least this size has small first and last handles.
const EDGED_BYTES: u64 = 4 * EXTENT_BYTES_MIN;

/// Splits memory of `bytes` that moves as a whole into the bytes behind each handle, each at most
/// `most`. With several handles, one is copied while the next is mapped and the last freed. Nothing
/// is copied while the first is mapped and the last freed: in large memory, these two are small.
pub fn parts(bytes: u64, most: u64) -> Vec<u64> {
    parts_from(bytes, most, EDGE_BYTES)
}

/// As [`parts`], with `edge_bytes` behind the first and the last handle.
pub fn parts_from(bytes: u64, most: u64, edge_bytes: u64) -> Vec<u64> {
    let part = bytes / 8 / CHUNK_BYTES * CHUNK_BYTES;
    let part = part.clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX).min(most);
    let doubled = |before: &u64| Some(before * 2).filter(|next| *next < part);
    let mut edge: Vec<u64> = std::iter::successors(Some(edge_bytes), doubled).collect();
    if bytes < EDGED_BYTES || part <= edge_bytes {
        edge.clear();
    }
    let middle = bytes - 2 * edge.iter().sum::<u64>();
    let mut parts = edge.clone();
    parts.extend(std::iter::repeat_n(part, (middle / part) as usize));
    parts.extend(Some(middle % part).filter(|rest| *rest > 0));
    parts.extend(edge.into_iter().rev());
    parts
}

/// Why memory was not made or moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoverError {
    /// The mover has ended or does not answer.
    #[error("The mover {0}")]
    Gone(String),
    /// The GPU has no room.
    #[error("The GPU has no room")]
    NoRoom,
    /// The host's pool has no room.
    #[error("The pool of the host has no room")]
    PoolFull,
    /// The GPU or the host refused something else.
    #[error("{0}")]
    Refused(String),
}

fn host(error: impl std::fmt::Display) -> MoverError {
    MoverError::Refused(error.to_string())
}

/// Configuration of a mover.
#[derive(Clone, Copy, Debug)]
pub struct MoverConfig {
    /// CUDA's number of the GPU.
    pub device: u32,
    /// Maximum size of the host's pool, which is pinned in steps.
    pub pool_bytes: u64,
    /// Size of a step.
    pub step_bytes: u64,
    /// Time until a mover has to be ready. TIMEOUT: the vendor's library takes 0.3 s on an idle
    /// host (measured).
    pub start_limit: Duration,
    /// Time limit of an order. TIMEOUT: 2 GiB take 40 ms (measured), and wait for a tenant's copies
    /// on the same engine.
    pub order_limit: Duration,
    /// Time limit of a wait for pages while the pool grows. TIMEOUT: 1 GiB is pinned in 0.45 s
    /// (measured).
    pub grow_limit: Duration,
    /// Minimum time between two starts.
    pub restart_pause: Duration,
}

impl MoverConfig {
    /// A mover for a GPU with a pool of `pool_bytes`.
    pub const fn new(device: u32, pool_bytes: u64) -> Self {
        Self {
            device,
            pool_bytes,
            step_bytes: 1 << 30,
            start_limit: Duration::from_secs(30),
            order_limit: Duration::from_secs(20),
            grow_limit: Duration::from_secs(5),
            restart_pause: Duration::from_secs(1),
        }
    }
}

/// GPU memory, by a descriptor of the daemon. The memory exists until this and all other
/// descriptors and mappings of it are closed.
#[derive(Debug)]
pub struct Resident {
    handle: OwnedFd,
    bytes: u64,
}

impl Resident {
    /// Memory of `bytes` that another process made and exported as `handle`.
    pub const fn adopt(handle: OwnedFd, bytes: u64) -> Self {
        Self { handle, bytes }
    }

    /// Bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another descriptor, for a process that maps the memory. It has to be closed after mapping:
    /// an open descriptor keeps the memory.
    ///
    /// # Errors
    /// When this process has no descriptor left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.handle.try_clone()
    }
}

/// Bytes of GPU memory at the host. When dropped, their pages are scrubbed.
#[derive(Debug)]
pub struct Away {
    pages: Pages,
    bytes: u64,
}

impl Away {
    /// Number of bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Memory that was moved back.
#[derive(Debug)]
pub struct Back {
    /// The memory.
    pub memory: Resident,
    /// The host copy: equal to the memory until the next write to it.
    pub copy: Away,
    /// Link time of the copy.
    pub took: Nanos,
}

/// Memory that was not moved out: it is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stayed {
    /// The memory.
    pub memory: Resident,
    /// Reason.
    pub error: MoverError,
}

/// Bytes that were not moved in: they are still at the host.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Kept {
    /// The bytes.
    pub copy: Away,
    /// Reason.
    pub error: MoverError,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
enum Lane {
    Tables = 0,
    Pins = 1,
    Out = 2,
    In = 3,
}

#[derive(Debug)]
struct Line {
    stream: UnixStream,
    reader: FrameReader,
}

impl Line {
    fn say(&self, order: &Order, fds: Vec<OwnedFd>) -> Result<(), MoverError> {
        send(&self.stream, order, fds).map_err(|error| MoverError::Gone(error.to_string()))
    }

    fn hear(&mut self, limit: Duration) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        let heard = answer(&self.stream, &mut self.reader, limit, || false);
        match heard.map_err(|error| MoverError::Gone(error.to_string()))? {
            (Answer::Refused { no_room: true, .. }, _) => Err(MoverError::NoRoom),
            (Answer::Refused { detail, .. }, _) => Err(MoverError::Refused(detail)),
            heard => Ok(heard),
        }
    }

    fn ask(
        &mut self,
        order: &Order,
        fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        self.say(order, fds)?;
        self.hear(limit)
    }

    /// Receives the result for the next extent.
    fn moved(&mut self, limit: Duration) -> Result<(Nanos, Option<OwnedFd>), MoverError> {
        match self.hear(limit)? {
            (Answer::Moved { result }, mut fds) => Ok((outcome(result)?, fds.pop())),
            _ => Err(MoverError::Gone("answers another request".into())),
        }
    }
}

#[derive(Debug)]
struct Running {
    child: Mutex<Child>,
    lines: [Mutex<Line>; MORE_LINES + 1],
    lost: AtomicBool,
}

impl Running {
    /// Sends an order and waits for the answer. A mover that does not answer in time, or wrongly,
    /// is ended.
    fn ask(
        &self,
        lane: Lane,
        order: &Order,
        fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        self.talk(lane, |line| line.ask(order, fds, limit))
    }

    /// Uses a connection exclusively. A mover that breaks off is ended.
    fn talk<T>(
        &self,
        lane: Lane,
        about: impl FnOnce(&mut Line) -> Result<T, MoverError>,
    ) -> Result<T, MoverError> {
        let mut line = lock(&self.lines[lane as usize]);
        let said = about(&mut line);
        if matches!(said, Err(MoverError::Gone(_))) {
            self.end();
        }
        said
    }

    fn end(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            let mut child = lock(&self.child);
            // Fails if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no update under these locks incomplete, except a connection's, which then
    // fails.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    config: MoverConfig,
    command: Box<dyn Fn() -> Command + Send + Sync>,
    pool: Arc<Pool>,
    process: Mutex<Option<(Arc<Running>, Instant)>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// A mover. Dropping it ends the process. Bytes that it moved to the host cannot be moved back
/// then.
#[derive(Debug)]
pub struct Mover {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Starts a mover and waits until it is ready; its pool grows from then on. `command` has to
    /// call [`super::run`] with its standard input.
    ///
    /// # Errors
    /// If the process does not start, or the GPU refuses it.
    pub fn start(
        config: MoverConfig,
        command: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Result<Self, MoverError> {
        let shared = Arc::new(Shared {
            pool: Arc::new(Pool::new(config.pool_bytes, config.step_bytes)),
            config,
            command: Box::new(command),
            process: Mutex::default(),
        });
        shared.running()?;
        let own = shared.clone();
        let thread = thread::Builder::new()
            .name("gpu-pool".into())
            .spawn(move || own.look_after_pool())
            .map_err(host)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Makes zeroed memory.
    ///
    /// # Errors
    /// [`MoverError::NoRoom`], or the mover's.
    pub fn create(&self, bytes: u64) -> Result<Resident, MoverError> {
        let order = Order::Create { bytes };
        let (_, mut fds) = self.shared.ask(Lane::Tables, &order, Vec::new())?;
        let missing = || MoverError::Refused("The mover gave no memory".into());
        let handle = fds.pop().ok_or_else(missing)?;
        Ok(Resident { handle, bytes })
    }

    /// Zeroes memory, which must not be in use meanwhile.
    ///
    /// # Errors
    /// The mover's.
    pub fn scrub(&self, memory: &Resident) -> Result<(), MoverError> {
        let (bytes, fd) = (memory.bytes, memory.share().map_err(host)?);
        let order = Order::Zero { bytes };
        self.shared.ask(Lane::Tables, &order, vec![fd])?;
        Ok(())
    }

    /// Copies memory to the host and closes its descriptors; returns each with the link time of its
    /// copy. No process may have the memory mapped: then it is free afterwards.
    pub fn out(&self, memory: Vec<Resident>) -> Vec<Result<(Away, Nanos), Stayed>> {
        let mut all = Vec::with_capacity(memory.len());
        self.out_each(memory, |_| true, |moved| all.push(moved));
        all
    }

    /// As [`Self::out`], for memory that its owner still uses. `when` is called with an index once
    /// the mover has mapped the memory. It ensures that no other process has that memory mapped, or
    /// returns false to leave it. Each is copied while `when` runs for the next. `each` is called
    /// with a result while the next are copied.
    pub fn out_each(
        &self,
        memory: Vec<Resident>,
        mut when: impl FnMut(usize) -> bool,
        mut each: impl FnMut(Result<(Away, Nanos), Stayed>),
    ) {
        let (mut batch, mut spans) = (Vec::new(), 0);
        for (nth, memory) in memory.into_iter().enumerate() {
            let pages = self
                .shared
                .pool
                .take(memory.bytes, self.shared.config.grow_limit);
            let count = pages.as_ref().map_or(0, |pages| pages.spans().len());
            if batch.len() == EXTENTS_MAX || spans + count > SPANS_MAX {
                self.out_batch(std::mem::take(&mut batch), &mut when, &mut each);
                spans = 0;
            }
            spans += count;
            batch.push((nth, memory, pages));
        }
        self.out_batch(batch, &mut when, &mut each);
    }

    fn out_batch(
        &self,
        batch: Vec<(usize, Resident, Option<Pages>)>,
        when: &mut dyn FnMut(usize) -> bool,
        each: &mut dyn FnMut(Result<(Away, Nanos), Stayed>),
    ) {
        let with_pages = || {
            let all = batch.iter();
            all.filter_map(|(nth, m, pages)| Some((*nth, m, pages.as_ref()?)))
        };
        let handles: io::Result<Vec<OwnedFd>> = with_pages().map(|(_, m, _)| m.share()).collect();
        let extents = with_pages().map(|(_, memory, pages)| extent(memory.bytes, pages));
        let order = Order::Out {
            extents: extents.collect(),
        };
        let numbers: Vec<usize> = with_pages().map(|(nth, ..)| nth).collect();
        let mut left = batch.into_iter();
        let limit = self.shared.config.order_limit;
        let talked = handles.map_err(host).and_then(|handles| {
            if handles.is_empty() {
                return Ok(());
            }
            self.shared.running()?.talk(Lane::Out, |line| {
                line.ask(&order, handles, limit)?;
                for nth in numbers {
                    let go = when(nth);
                    line.say(&Order::Go { go }, Vec::new())?;
                }
                for (_, memory, pages) in left.by_ref() {
                    let Some(pages) = pages else {
                        each(stayed(memory, MoverError::PoolFull));
                        continue;
                    };
                    match line.moved(limit) {
                        // The descriptor is closed here, which frees the memory while the next is
                        // copied.
                        Ok((took, _)) => {
                            let bytes = memory.bytes;
                            drop(memory);
                            each(Ok((Away { pages, bytes }, took)));
                        }
                        Err(MoverError::Gone(error)) => {
                            each(stayed(memory, MoverError::Gone(error.clone())));
                            return Err(MoverError::Gone(error));
                        }
                        Err(error) => each(stayed(memory, error)),
                    }
                }
                Ok(())
            })
        });
        let error = talked.err().unwrap_or(MoverError::PoolFull);
        for (_, memory, pages) in left {
            let full = pages.is_none();
            let error = if full {
                MoverError::PoolFull
            } else {
                error.clone()
            };
            each(stayed(memory, error));
        }
    }

    /// Makes memory with the bytes at the host; returns each with the host copy and the link time
    /// of its copy.
    pub fn back(&self, copies: Vec<Away>) -> Vec<Result<Back, Kept>> {
        let mut all = Vec::with_capacity(copies.len());
        self.back_each(copies, |moved| all.push(moved));
        all
    }

    /// As [`Self::back`]; `each` is called with a result while the next are copied.
    pub fn back_each(&self, copies: Vec<Away>, mut each: impl FnMut(Result<Back, Kept>)) {
        let (mut batch, mut spans) = (Vec::new(), 0);
        for copy in copies {
            let count = copy.pages.spans().len();
            if batch.len() == EXTENTS_MAX || spans + count > SPANS_MAX {
                self.back_batch(std::mem::take(&mut batch), &mut each);
                spans = 0;
            }
            spans += count;
            batch.push(copy);
        }
        self.back_batch(batch, &mut each);
    }

    fn back_batch(&self, batch: Vec<Away>, each: &mut dyn FnMut(Result<Back, Kept>)) {
        if batch.is_empty() {
            return;
        }
        let extents = batch.iter().map(|copy| extent(copy.bytes, &copy.pages));
        let order = Order::In {
            extents: extents.collect(),
        };
        let mut left = batch.into_iter();
        let limit = self.shared.config.order_limit;
        let talked = self.shared.running().and_then(|running| {
            running.talk(Lane::In, |line| {
                line.say(&order, Vec::new())?;
                for copy in left.by_ref() {
                    let missing = || MoverError::Gone("gave no memory".into());
                    let moved = line.moved(limit);
                    match moved.and_then(|(took, fd)| Ok((fd.ok_or_else(missing)?, took))) {
                        Ok((handle, took)) => {
                            let bytes = copy.bytes;
                            let memory = Resident { handle, bytes };
                            each(Ok(Back { memory, copy, took }));
                        }
                        Err(MoverError::Gone(error)) => {
                            let gone = MoverError::Gone(error.clone());
                            each(Err(Kept { copy, error: gone }));
                            return Err(MoverError::Gone(error));
                        }
                        Err(error) => each(Err(Kept { copy, error })),
                    }
                }
                Ok(())
            })
        });
        let error = talked.err().unwrap_or_else(|| host("it was left out"));
        for copy in left {
            let error = error.clone();
            each(Err(Kept { copy, error }));
        }
    }

    /// Bytes of the host's pool, and bytes in use.
    pub fn pool_bytes(&self) -> (u64, u64) {
        self.shared.pool.bytes()
    }

    /// Waits until the pool has `bytes`. False if it does not grow to that within `limit`.
    pub fn wait_grown(&self, bytes: u64, limit: Duration) -> bool {
        self.shared.pool.wait_grown(bytes, limit)
    }

    /// Process id of the mover, if there is one.
    pub fn pid(&self) -> Option<u32> {
        let process = lock(&self.shared.process);
        process
            .as_ref()
            .map(|(running, _)| lock(&running.child).id())
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shared.pool.end();
        let running = lock(&self.shared.process).take();
        if let Some((running, _)) = running {
            running.end();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn stayed<T>(memory: Resident, error: MoverError) -> Result<T, Stayed> {
    Err(Stayed { memory, error })
}

fn extent(bytes: u64, pages: &Pages) -> Extent {
    let spans = pages.spans().to_vec();
    Extent { bytes, spans }
}

fn outcome(moved: Moved) -> Result<Nanos, MoverError> {
    match moved {
        Moved::Done { took_ns } => Ok(Nanos(took_ns)),
        Moved::Not { no_room: true, .. } => Err(MoverError::NoRoom),
        Moved::Not { detail, .. } => Err(MoverError::Refused(detail)),
    }
}

impl Shared {
    /// The current process; starts another if the last one was lost.
    fn running(&self) -> Result<Arc<Running>, MoverError> {
        let mut process = lock(&self.process);
        if let Some((running, since)) = &*process {
            if !running.lost.load(Ordering::Acquire) {
                return Ok(running.clone());
            }
            if since.elapsed() < self.config.restart_pause {
                return Err(MoverError::Gone(
                    "ended again just after it was started".into(),
                ));
            }
            log::error!("The mover was gone; another is started");
        }
        let running = Arc::new(self.start()?);
        *process = Some((running.clone(), Instant::now()));
        Ok(running)
    }

    fn start(&self) -> Result<Running, MoverError> {
        let config = &self.config;
        let mut mine = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..=MORE_LINES {
            let (one, other) = UnixStream::pair().map_err(host)?;
            one.set_nonblocking(true).map_err(host)?;
            mine.push(Mutex::new(Line {
                stream: one,
                reader: FrameReader::new(),
            }));
            theirs.push(OwnedFd::from(other));
        }
        let lines: [Mutex<Line>; MORE_LINES + 1] = mine.try_into().map_err(|_| host("no lines"))?;
        let rest = theirs.split_off(1);
        let child = line::start((self.command)(), theirs.remove(0));
        let child = child.map_err(|error| MoverError::Gone(format!("did not start: {error}")))?;
        let running = Running {
            child: Mutex::new(child),
            lines,
            lost: AtomicBool::new(false),
        };
        let device = config.device;
        running.ask(
            Lane::Tables,
            &Order::Start { device },
            rest,
            config.start_limit,
        )?;
        for (at, bytes, file) in self.pool.files().map_err(host)? {
            self.pin(&running, at, bytes, file)?;
        }
        Ok(running)
    }

    fn pin(&self, running: &Running, at: u64, bytes: u64, file: File) -> Result<(), MoverError> {
        let order = Order::Pin { at, bytes };
        let limit = self.config.order_limit;
        running.ask(Lane::Pins, &order, vec![file.into()], limit)?;
        Ok(())
    }

    fn ask(
        &self,
        lane: Lane,
        order: &Order,
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        self.running()?
            .ask(lane, order, fds, self.config.order_limit)
    }

    /// Runs the tasks of the pool, in its own thread.
    fn look_after_pool(&self) {
        loop {
            match self.pool.next_chore() {
                Chore::End => return,
                Chore::Scrub(span) => self.pool.scrub(span),
                Chore::Grow(at, bytes) => {
                    if let Err(error) = self.grow(at, bytes) {
                        log::error!("The host's pool stays at {} MiB: {error}", at >> 20);
                        self.pool.grow(None);
                    }
                }
            }
        }
    }

    fn grow(&self, at: u64, bytes: u64) -> Result<(), MoverError> {
        let segment = Segment::new(bytes).map_err(host)?;
        let file = || segment.file().map_err(host);
        let running = self.running()?;
        self.pin(&running, at, bytes, file()?)?;
        let again = file()?;
        self.pool.grow(Some(segment));
        // A mover started meanwhile may lack this file; a later one gets it from the pool.
        let now = self.running()?;
        if !Arc::ptr_eq(&running, &now) {
            let _ = self.pin(&now, at, bytes, again);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod fake {
    //! Stand-ins for moves of memory that is a file, without a mover.

    use std::os::unix::fs::FileExt;

    use super::*;

    /// Moves memory to a host pool of its own.
    pub(crate) fn away(memory: Resident) -> Away {
        let bytes = memory.bytes;
        let pool = Arc::new(Pool::new(bytes, bytes));
        pool.grow(Some(Segment::new(bytes).unwrap()));
        let mut data = vec![0; bytes as usize];
        let file = File::from(memory.handle);
        file.read_exact_at(&mut data, 0).unwrap();
        pool.write(0, &data);
        let pages = pool.take(bytes, Duration::ZERO).unwrap();
        Away { pages, bytes }
    }

    /// Fills memory as a move in does.
    pub(crate) fn fill(copy: &Away, memory: &Resident) {
        let file = File::from(memory.share().unwrap());
        file.write_all_at(&copy.pages.content(), 0).unwrap();
    }
}
