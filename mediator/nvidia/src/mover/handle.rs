//! The daemon's side: a mover process, and the memory that it moved.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use turnstile_accounting::Nanos;

use super::config::MoverConfig;
use super::memory::{Away, Back, Kept, MoverError, Resident, Stayed, host};
use super::pages::{Pages, Pool};
use super::process::{Lane, Shared, lock};
use super::protocol::{EXTENTS_MAX, Extent, Order, SPANS_MAX};

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
            .spawn(move || own.maintain_pool())
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
