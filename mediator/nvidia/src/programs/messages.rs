//! Receives the messages of a process, one thread for each process.
//!
//! In: messages of its connection. Out: changes of the book, calls of the [`super::Backing`],
//! answers to the process and to orders that wait for it. Called by [`ProgramMemory::connect`].

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;
use turnstile_preload_wire::socket::DaemonLine;
use turnstile_preload_wire::{ChunkNumber, Denial, ToDaemon, ToLibrary, VERSION};

use super::book::{Breach, ProcessNumber};
use super::{Backing, Grant, ProgramMemory, ProgramPlace};

/// Minimum time between two log lines on refusals, which programs can cause.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl ProgramMemory {
    pub(super) fn serve_library(&self, tenant: TenantId, number: ProcessNumber, line: &DaemonLine) {
        let mut greeted = false;
        let end = loop {
            let (message, fd) = match line.next() {
                Ok(Some(received)) => received,
                Ok(None) => break None,
                Err(error) => break Some(error.to_string()),
            };
            let served = match (message, greeted) {
                (ToDaemon::Hello { version: VERSION }, false) => {
                    greeted = true;
                    let info = self.0.lock().book.info(number);
                    info.map(|(_, limit_bytes)| {
                        let version = VERSION;
                        line.say(
                            &ToLibrary::Welcome {
                                version,
                                limit_bytes,
                            },
                            None,
                        )
                    })
                }
                (ToDaemon::Hello { .. }, _) | (_, false) => {
                    break Some("it does not greet as this daemon does".into());
                }
                (message, true) => self.serve(tenant, number, line, message, fd),
            };
            match served {
                Ok(true) => {}
                Ok(false) => break None,
                Err(breach) => break Some(breach.to_string()),
            }
        };
        if let Some(why) = end {
            self.tell_end(tenant, &why);
        }
        self.lose(tenant, number);
    }

    /// Serves a message. False if the process cannot be reached any more.
    fn serve(
        &self,
        tenant: TenantId,
        number: ProcessNumber,
        line: &DaemonLine,
        message: ToDaemon,
        fd: Option<OwnedFd>,
    ) -> Result<bool, Breach> {
        let place = |chunk, bytes| ProgramPlace {
            process: number,
            chunk,
            bytes,
        };
        match message {
            ToDaemon::Ask { chunk, bytes } => {
                let place = place(chunk, bytes);
                let granted = self.within_limits(place, |of| of.allocate(tenant, place))?;
                return Ok(match granted {
                    Ok(Grant::Given) => true,
                    Ok(Grant::Make) => line.say(&ToLibrary::Granted { chunk }, None),
                    Err(reason) => self.deny(tenant, line, place, reason),
                });
            }
            ToDaemon::Take { chunk, bytes } => {
                let place = place(chunk, bytes);
                let mut reached = true;
                let mut send = |handle: OwnedFd| {
                    reached = line.say(&ToLibrary::Restore { chunk }, Some(&handle));
                };
                let given = self.within_limits(place, |of| of.give(tenant, place, &mut send))?;
                return Ok(match given {
                    Ok(()) => reached,
                    Err(reason) => self.deny(tenant, line, place, reason),
                });
            }
            ToDaemon::Made { chunk, bytes } => {
                self.0.lock().book.made(number, chunk, bytes)?;
                // PANIC: none; a frame of this kind has a descriptor.
                if let Some(handle) = fd {
                    self.0.backing.made(tenant, place(chunk, bytes), handle);
                }
            }
            ToDaemon::Spared { chunk } | ToDaemon::Freed { chunk } | ToDaemon::Kept { chunk } => {
                let bytes = self.0.lock().book.forget(number, chunk)?;
                self.0.backing.freed(tenant, place(chunk, bytes));
                self.answer(number, chunk, Err(0));
            }
            ToDaemon::Pinned { reason, bytes } => {
                self.0.lock().book.pinned(number, reason, bytes)?;
                self.tell_pinned(tenant);
            }
            ToDaemon::Wants {} => self.0.backing.wants(tenant),
            ToDaemon::Released { chunk } => {
                self.0.lock().book.released(number, chunk)?;
                self.answer(number, chunk, Ok(()));
            }
            ToDaemon::Restored { chunk } => {
                self.0.lock().book.restored(number, chunk)?;
                self.answer(number, chunk, Ok(()));
            }
            ToDaemon::Failed { chunk, result } => self.answer(number, chunk, Err(result)),
            ToDaemon::Info { question } => {
                let (free_bytes, total_bytes) = self.0.lock().book.info(number)?;
                let memory = ToLibrary::Memory {
                    question,
                    free_bytes,
                    total_bytes,
                };
                return Ok(line.say(&memory, None));
            }
            ToDaemon::Hello { .. } => return Ok(false),
        }
        Ok(true)
    }

    /// Requests a chunk of the book, then of the backing; the book withdraws what that denies.
    fn within_limits<T>(
        &self,
        place: ProgramPlace,
        request: impl FnOnce(&dyn Backing) -> Result<T, Denial>,
    ) -> Result<Result<T, Denial>, Breach> {
        let ProgramPlace {
            process,
            chunk,
            bytes,
        } = place;
        let permitted = self.0.lock().book.ask(process, chunk, bytes)?;
        Ok(permitted.and_then(|()| {
            let granted = request(&*self.0.backing);
            granted.inspect_err(|denial| {
                self.0.lock().book.withdraw(process, chunk, *denial);
            })
        }))
    }

    /// Denies a chunk. False if the process cannot be reached any more.
    fn deny(
        &self,
        tenant: TenantId,
        line: &DaemonLine,
        place: ProgramPlace,
        reason: Denial,
    ) -> bool {
        self.tell(tenant, place.bytes, reason);
        let chunk = place.chunk;
        line.say(&ToLibrary::Denied { chunk, reason }, None)
    }

    fn tell_pinned(&self, tenant: TenantId) {
        let fixed_bytes = self.0.lock().book.fixed_bytes(tenant);
        self.0.backing.pinned(tenant, fixed_bytes);
    }

    /// Logs at intervals that a connection ended: a program can make another at once.
    fn tell_end(&self, tenant: TenantId, why: &str) {
        let mut state = self.0.lock();
        let logged_at = state.ends_logged.get(&tenant);
        let level = if logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            log::Level::Debug
        } else {
            // Nothing is kept of a tenant that is gone.
            if state.limits.contains_key(&tenant) {
                state.ends_logged.insert(tenant, Instant::now());
            }
            log::Level::Warn
        };
        drop(state);
        log::log!(
            level,
            "Memory of a process of {tenant} does not move any more: {why}"
        );
    }

    /// Logs at intervals that a chunk was denied.
    fn tell(&self, tenant: TenantId, bytes: u64, reason: Denial) {
        let mut state = self.0.lock();
        if state
            .logged_at
            .is_some_and(|at| at.elapsed() < LOG_INTERVAL)
        {
            return;
        }
        state.logged_at = Some(Instant::now());
        let denied: u64 = state.book.denied().iter().sum();
        drop(state);
        let why = match reason {
            Denial::Limit => "it has its memory.max",
            Denial::Full => "GPU and host have no more room",
        };
        log::warn!(
            "{tenant} was refused {bytes} bytes of GPU memory: {why} ({denied} refusals so far)"
        );
    }

    pub(super) fn answer(
        &self,
        number: ProcessNumber,
        chunk: ChunkNumber,
        result: Result<(), u32>,
    ) {
        let mut state = self.0.lock();
        if let Some(slot @ None) = state.awaited.0.get_mut(&(number, chunk)) {
            *slot = Some(result);
            self.0.answered.notify_all();
        }
    }

    /// Removes a process that has ended, or was disconnected.
    pub(super) fn lose(&self, tenant: TenantId, number: ProcessNumber) {
        let mut state = self.0.lock();
        if let Some(line) = state.lines.remove(&number) {
            line.end();
        }
        let had = state.book.disconnect(number);
        for (_, slot) in state.awaited.0.range_mut((number, 0)..=(number, u64::MAX)) {
            slot.get_or_insert(Err(0));
        }
        self.0.answered.notify_all();
        drop(state);
        for (chunk, bytes) in had {
            let process = number;
            let place = ProgramPlace {
                process,
                chunk,
                bytes,
            };
            self.0.backing.freed(tenant, place);
        }
        self.tell_pinned(tenant);
    }
}
