//! What the device shows of itself: the status page, the host area's log and channel table, the
//! demand area, notices.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use turnstile_abi::PAGE_BYTES;
use turnstile_abi::physical::{area, status, switch_state};
use turnstile_accounting::{DemandEvent, EngineState, SwitchEvent, TenantId};
use vm_memory::{Bytes, FileOffset, GuestAddress, MmapRegion, VolatileMemory};

use super::demand::{DemandArea, Notice, Places};
use super::{Shared, Vectors};
use crate::board::Board;
use crate::config::ENGINES;
use crate::rank;
use turnstile_gpu::{ChannelActivity, GuestMemory, Interrupts};
use turnstile_host::memory_file::memory_file;
use turnstile_host::ranked::{Ranked, RankedGuard};

/// What the writer of the mediator's memory knows.
#[derive(Debug, Default)]
struct Area {
    memory: Option<GuestMemory>,
    /// Records written since the reset.
    put: u64,
    /// The last record of each engine, with which a log begins.
    last: [Option<SwitchEvent>; ENGINES],
    places: Places,
    demand: DemandArea,
    notice: Notice,
}

/// Status page, shared areas, notices.
#[derive(Debug)]
pub(super) struct Shown {
    status: MmapRegion,
    file: File,
    /// Innermost of all locks.
    area: Ranked<Area>,
    faults: AtomicU32,
    vectors: Arc<Vectors>,
}

impl Shown {
    pub(super) fn new(vectors: Arc<Vectors>) -> io::Result<Self> {
        // As far in the file as in the BAR, so that the BAR begins where the file does.
        let file = memory_file("turnstile-gpu-status", status::PAGE + PAGE_BYTES)?;
        let mapped = FileOffset::new(file.try_clone()?, status::PAGE);
        let status =
            MmapRegion::from_file(mapped, PAGE_BYTES as usize).map_err(io::Error::other)?;
        Ok(Self {
            status,
            file,
            area: Ranked::new(rank::SHOWN, Area::default()),
            faults: AtomicU32::new(0),
            vectors,
        })
    }

    /// The memory file of the status page, at the same offset as in the BAR.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn area(&self) -> RankedGuard<'_, Area> {
        // No update can be left half done by a panic.
        self.area.lock()
    }

    /// Accesses to memory that is not there, since the reset.
    pub(super) fn faults(&self) -> u32 {
        self.faults.load(Ordering::Relaxed)
    }

    pub(super) fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a shared area into use, or none.
    pub(super) fn use_area(&self, shared: Shared, memory: Option<GuestMemory>) {
        let area = &mut *self.area();
        match shared {
            Shared::Host => area.use_memory(memory),
            Shared::Demand => area.demand.use_memory(memory, &area.places),
        }
    }

    /// Resets the shared areas, the notice and the fault counter.
    pub(super) fn reset(&self) {
        self.use_area(Shared::Host, None);
        self.use_area(Shared::Demand, None);
        self.area().notice = Notice::Off;
        self.faults.store(0, Ordering::Relaxed);
    }

    /// Arms a vector for the next notice, or none.
    pub(super) fn arm(&self, vector: u32) {
        let kept = self.area().notice.arm(vector);
        if let Some(kept) = kept {
            self.vectors.raise(kept);
        }
    }

    /// Lets `act` use the host area, if there is one.
    pub(super) fn with_area<T>(&self, act: impl FnOnce(&GuestMemory) -> T) -> Option<T> {
        self.area().memory.as_ref().map(act)
    }

    /// A context is shown from this page on, or no more.
    pub(super) fn place(&self, context: u32, first: Option<u32>) {
        let area = &mut *self.area();
        if let Some(gone) = area.places.remove(&context) {
            area.demand.clear(gone);
        }
        if let Some(first) = first {
            let placed = area.demand.place(context, first);
            area.places.insert(context, placed);
        }
    }

    /// The word of the status page at `offset`; zero outside.
    pub(super) fn word(&self, offset: u64) -> u64 {
        // CAST: an offset in the BAR.
        let word = self
            .status
            .as_volatile_slice()
            .load(offset as usize & !7, Ordering::Acquire);
        u64::from_le(word.unwrap_or(0))
    }
}

impl Area {
    /// Takes a host area into use, or none; the log begins with the states that the engines are in.
    fn use_memory(&mut self, memory: Option<GuestMemory>) {
        self.memory = memory;
        self.put = 0;
        for event in self.last.into_iter().flatten() {
            self.log(&event);
        }
        self.show_put();
    }

    fn show_put(&self) {
        if let Some(memory) = &self.memory {
            let at = GuestAddress(area::LOG_PUT);
            let _ = memory.store(self.put.to_le(), at, Ordering::Release);
        }
    }

    /// Writes a record; the count that makes it valid follows.
    fn log(&mut self, event: &SwitchEvent) {
        let Some(memory) = &self.memory else { return };
        let (state, context) = match event.state {
            EngineState::Idle => (switch_state::IDLE, 0),
            EngineState::Running(tenant) => (switch_state::RUNNING, tenant.0),
            EngineState::Switching => (switch_state::SWITCHING, 0),
            EngineState::Fault(tenant) => (switch_state::FAULT, tenant.0),
        };
        let entry = self.put % area::LOG_ENTRIES;
        let at = area::LOG + entry * area::RECORD_BYTES;
        let words = [
            event.at.0,
            event.seq,
            u64::from(event.engine.0) | u64::from(state) << 32,
            context.into(),
        ];
        for (index, word) in (0..).zip(words) {
            let at = GuestAddress(at + 8 * index);
            let _ = memory.store(word.to_le(), at, Ordering::Relaxed);
        }
        self.put += 1;
    }
}

impl Board for Shown {
    fn status(&self, engine: usize, register: u64) {
        // CAST: there are three engines.
        let at = status::engine(engine as u8) as usize;
        let page = self.status.as_volatile_slice();
        let _ = page.store(register.to_le(), at, Ordering::Release);
    }

    fn switched(&self, event: &SwitchEvent) {
        let mut area = self.area();
        if let Some(last) = area.last.get_mut(usize::from(event.engine.0)) {
            *last = Some(*event);
        }
        area.log(event);
        area.show_put();
    }

    fn demand(&self, event: &DemandEvent) {
        let area = &mut *self.area();
        area.demand.log(event, &mut area.places);
    }

    fn notice(&self) {
        let vector = self.area().notice.give();
        if let Some(vector) = vector {
            self.vectors.raise(vector);
        }
    }

    fn channel(&self, tenant: TenantId, activity: ChannelActivity) {
        let area = self.area();
        let (Some(memory), Some(placed)) = (&area.memory, area.places.get(&tenant.0)) else {
            return;
        };
        let page = u64::from(placed.first + activity.channel);
        let at = area::CHANNELS + page * area::CHANNEL_BYTES;
        let (time, count) = (GuestAddress(at + 8), GuestAddress(at));
        let progress = u64::from(activity.finished.unwrap_or(0)) | u64::from(activity.stalls) << 32;
        let _ = memory.store(progress.to_le(), GuestAddress(at + 16), Ordering::Relaxed);
        let word = u64::from(tenant.0) | u64::from(activity.pending) << 32;
        let _ = memory.store(activity.last_active.0.to_le(), time, Ordering::Relaxed);
        let _ = memory.store(word.to_le(), count, Ordering::Release);
    }

    fn strayed(&self, _: TenantId) {
        self.count_fault();
    }
}
