//! Memory of programs that moves, without a GPU. Everything is the daemon's own, down to the
//! mover's process, but for two parts. The driver is `mediator/preload/tests/libcuda.c`, with its
//! memory in files. Programs are suspended by a lock on a file, which the driver takes for each
//! copy and kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use turnstile_accounting::{Moment, TenantId};
use turnstile_gpu::{Capabilities, ChannelActivity};
use turnstile_nvidia::mover::{Mover, MoverConfig};
use turnstile_nvidia::programs::{ProgramChunks, ProgramMemory};
use turnstile_nvidia::sets::{Copies, Sets};

/// A program that did nothing for this long has no demand.
const IDLE: Duration = Duration::from_millis(20);

/// A program's engine.
#[derive(Debug)]
struct Engine {
    file: File,
    held: bool,
    /// Its demand when it was last not held.
    wants: bool,
    count: u64,
    seen: Instant,
}

impl Engine {
    /// Whether it did something lately; while it is held, the last such answer.
    fn poll(&mut self) -> bool {
        if self.held {
            return self.wants;
        }
        let mut word = [0; 8];
        let _ = self.file.read_exact_at(&mut word, 0);
        let count = u64::from_le_bytes(word);
        if count != self.count {
            (self.count, self.seen) = (count, Instant::now());
        }
        self.wants = self.seen.elapsed() < IDLE;
        self.wants
    }
}

/// A card with movable memory, and the engines of the programs on it.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) sets: Arc<Sets>,
    pub(crate) mover: Arc<Mover>,
    pub(crate) chunks: ProgramChunks,
    card_bytes: u64,
    pool_bytes: u64,
    engines: Mutex<BTreeMap<TenantId, Engine>>,
    pinned: Arc<Mutex<BTreeSet<TenantId>>>,
}

impl Moves {
    /// A card of `card_bytes`, with a pool of `pool_bytes` at the host; the driver is in `folder`.
    pub(crate) fn new(folder: &Path, card_bytes: u64, pool_bytes: u64) -> Self {
        let folder = folder.to_owned();
        let command = move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_turnstile"));
            command.arg("nvidia-mover").env("LD_LIBRARY_PATH", &folder);
            command
        };
        let mover = Arc::new(Mover::start(MoverConfig::new(0, pool_bytes), command).unwrap());
        let copies: Arc<dyn Copies> = mover.clone();
        let pinned = Arc::<Mutex<BTreeSet<TenantId>>>::default();
        let own = pinned.clone();
        let pin_owner = Box::new(move |tenant, on| {
            let mut pinned = own.lock().unwrap();
            let _ = if on {
                pinned.insert(tenant)
            } else {
                pinned.remove(&tenant)
            };
            Ok(())
        });
        let sets = Sets::new(copies, pin_owner, card_bytes, pool_bytes).unwrap();
        let (sets, chunks) = (Arc::new(sets), ProgramChunks::default());
        chunks.move_by(sets.clone());
        Self {
            sets,
            mover,
            chunks,
            card_bytes,
            pool_bytes,
            engines: Mutex::default(),
            pinned,
        }
    }

    pub(crate) const fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    pub(crate) fn capabilities(&self, of: Capabilities) -> Capabilities {
        Capabilities {
            memory_bytes: self.card_bytes,
            ..of
        }
    }

    /// Adds a program; its launcher's environment names its engine.
    pub(crate) fn add(&self, tenant: TenantId, root: u32, memory: &ProgramMemory) {
        let environment = fs::read_to_string(format!("/proc/{root}/environ")).unwrap();
        let mut variables = environment.split('\0');
        let engine = variables.find_map(|variable| variable.strip_prefix("FAKE_ENGINE="));
        let Some(path) = engine else { return };
        let engine = Engine {
            file: File::open(path).unwrap(),
            held: false,
            wants: false,
            count: 0,
            seen: Instant::now(),
        };
        self.engines.lock().unwrap().insert(tenant, engine);
        self.chunks.add(tenant, memory);
    }

    pub(crate) fn remove(&self, tenant: TenantId) {
        self.sets.remove(tenant);
        self.engines.lock().unwrap().remove(&tenant);
    }

    pub(crate) fn suspend(&self, tenant: TenantId) {
        if let Some(engine) = self.engines.lock().unwrap().get_mut(&tenant) {
            if !engine.held {
                engine.poll();
                // A kernel takes milliseconds.
                flock(&engine.file, FlockOperation::LockExclusive).unwrap();
                engine.held = true;
            }
            self.sets.held(tenant);
        }
    }

    pub(crate) fn resume(&self, tenant: TenantId) {
        if let Some(engine) = self.engines.lock().unwrap().get_mut(&tenant)
            && self.sets.release(tenant)
            && engine.held
        {
            engine.held = false;
            self.pinned.lock().unwrap().remove(&tenant);
            engine.seen = Instant::now();
            flock(&engine.file, FlockOperation::Unlock).unwrap();
        }
    }

    pub(crate) fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        if let Some(engine) = self.engines.lock().unwrap().get_mut(&tenant) {
            let wants = engine.poll() || self.sets.has_request(tenant);
            channels.push(ChannelActivity {
                channel: 0,
                pending: wants.into(),
                finished: None,
                stalls: 0,
                last_active: Moment(0),
            });
        }
    }

    /// The daemon is gone: programs that are pinned (`pinned`) are not resumed.
    pub(crate) fn end(&self) {
        for (tenant, engine) in std::mem::take(&mut *self.engines.lock().unwrap()) {
            if self.pinned.lock().unwrap().contains(&tenant) {
                std::mem::forget(engine);
            }
        }
        self.sets.end();
    }
}
