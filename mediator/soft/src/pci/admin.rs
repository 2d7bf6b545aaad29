//! Administrative commands: contexts, channels, memory, modules.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::physical::{self, AdminOp, CONTEXTS_MAX, PAGES, WINDOWS_MAX, area};
use turnstile_abi::regs::mailbox_status;
use turnstile_abi::{ErrorCode, FUNCTION_NAME_BYTES_MAX, MODULE_TEXT_BYTES_MAX, PAGE_BYTES};
use turnstile_accounting::{AccountId, TenantId};
use turnstile_vmm::gate::{PageWords, SharedPages};
use vm_memory::GuestAddress;

use super::dma::Window;
use super::{Device, lock};
use turnstile_gpu::prelude::*;
use turnstile_gpu::{
    ChannelConfig, DoorbellChange, Doorbells, GuestMemory, Refusal, TenantResources,
};
use turnstile_host::room::zeroed;

/// Longest wait for a context's work to release its memory. TIMEOUT: a kernel checks for a stop
/// request every few thousand instructions, which take microseconds.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A command that was started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) op: u32,
    pub(super) args: [u64; physical::ARGS],
}

/// Result of the last command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) error: ErrorCode,
    pub(super) text_bytes: u32,
    pub(super) results: [u64; physical::RESULTS],
}

impl Default for Verdict {
    fn default() -> Self {
        Self {
            error: ErrorCode::None,
            text_bytes: 0,
            results: [0; physical::RESULTS],
        }
    }
}

/// A context.
#[derive(Debug)]
struct Context {
    first: u32,
    pages: u32,
    windows: Vec<Window>,
    /// Held by whatever may still reach it.
    memory: Weak<GuestMemory>,
}

/// Contexts by number.
#[derive(Debug, Default)]
pub(super) struct Contexts(BTreeMap<u32, Context>);

impl Contexts {
    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        // CAST: at most CONTEXTS_MAX.
        self.0.len() as u32
    }

    /// Contexts with a window that overlaps the range.
    pub(super) fn using(&self, iova: u64, bytes: u64) -> Vec<u32> {
        let uses = |context: &Context| context.windows.iter().any(|w| w.touches(iova, bytes));
        let using = self.0.iter().filter(|(_, context)| uses(context));
        using.map(|(context, _)| *context).collect()
    }

    fn takes(&self, first: u32, pages: u32) -> bool {
        let end = first.checked_add(pages);
        pages > 0
            && end.is_some_and(|end| end <= PAGES)
            && self
                .0
                .values()
                .all(|other| first >= other.first + other.pages || first + pages <= other.first)
    }
}

/// Doorbell pages of one context.
#[derive(Debug)]
struct Pages {
    all: Arc<SharedPages>,
    first: u32,
    count: u32,
}

impl Doorbells for Pages {
    fn put(&self, channel: u32) -> u32 {
        if channel < self.count {
            self.all.load(self.first + channel)
        } else {
            0
        }
    }

    fn clear(&self, channel: u32) {
        if channel < self.count {
            self.all.store(self.first + channel, 0);
        }
    }
}

/// A number that a register of 8 bytes holds and the contract has 4 for.
fn short(word: u64) -> Result<u32, Refusal> {
    u32::try_from(word).map_err(|_| ErrorCode::BadArgument.into())
}

fn refusal(code: ErrorCode, detail: impl ToString) -> Refusal {
    Refusal {
        code,
        detail: detail.to_string(),
    }
}

impl Device {
    /// Executes a command and reports the result.
    pub(super) fn serve(&self, order: &Order) {
        let answer = match AdminOp::from_u32(order.op) {
            Some(op) => self.execute(op, &order.args),
            None => Err(ErrorCode::UnknownOp.into()),
        };
        let mut verdict = Verdict::default();
        match answer {
            Ok(results) => verdict.results = results,
            Err(Refusal { code, detail }) => {
                verdict.error = code;
                verdict.text_bytes = self.leave_text(&detail);
            }
        }
        let mut registers = lock(&self.registers);
        registers.status = match verdict.error {
            ErrorCode::None => mailbox_status::DONE,
            _ => mailbox_status::REFUSED,
        };
        registers.verdict = verdict;
    }

    /// Leaves text in the host area; returns how many bytes of it fit.
    fn leave_text(&self, text: &str) -> u32 {
        // CAST: a page.
        let fits = text.floor_char_boundary(text.len().min(area::REPLY_BYTES as usize));
        let bytes = &text.as_bytes()[..fits];
        let left = self
            .shown
            .with_area(|area| area.write_slice(bytes, GuestAddress(area::REPLY)));
        if matches!(left, Some(Ok(()))) {
            // CAST: a page at most.
            fits as u32
        } else {
            0
        }
    }

    /// Text that the mediator left in the host area.
    fn text(&self, bytes: u64, max: u64) -> Result<String, Refusal> {
        if bytes > max {
            return Err(ErrorCode::ModuleTooLarge.into());
        }
        // CAST: bounded above.
        let mut text = zeroed(bytes as usize).ok_or(ErrorCode::HostLimit)?;
        let read = self
            .shown
            .with_area(|area| area.read_slice(&mut text, GuestAddress(area::TEXT)));
        if !matches!(read, Some(Ok(()))) {
            return Err(refusal(ErrorCode::NotGuestMemory, "there is no host area"));
        }
        String::from_utf8(text).map_err(|_| refusal(ErrorCode::BadArgument, "text is not UTF-8"))
    }

    fn execute(
        &self,
        op: AdminOp,
        args: &[u64; physical::ARGS],
    ) -> Result<[u64; physical::RESULTS], Refusal> {
        let context = short(args[0])?;
        let tenant = TenantId(context);
        let mut results = [0; physical::RESULTS];
        match op {
            AdminOp::CreateContext => {
                self.create(context, short(args[1])?, short(args[2])?, args[3], args[4])?;
            }
            AdminOp::DestroyContext => {
                let mut contexts = self.contexts.lock();
                self.end(&mut contexts, context);
            }
            AdminOp::OpenChannel => {
                let config = ChannelConfig {
                    ring_gpa: args[1],
                    entries: short(args[2])?,
                    state_gpa: args[3],
                    // CAST: a vector that the device does not have stays silent.
                    vector: args[4].min(u16::MAX.into()) as u16,
                };
                results[0] = self.gpu.open_channel(tenant, config)?.into();
            }
            AdminOp::CloseChannel => self.gpu.close_channel(tenant, short(args[1])?)?,
            AdminOp::Allocate => {
                let given = self.gpu.allocate(tenant, args[1])?;
                (results[0], results[1]) = (given.va, given.aperture_offset);
                results[2] = given.bytes;
            }
            AdminOp::Free => self.gpu.free(tenant, args[1])?,
            AdminOp::LoadModule => {
                let text = self.text(args[1], MODULE_TEXT_BYTES_MAX)?;
                let (module, functions) = self.gpu.load_module(tenant, &text, None)?;
                (results[0], results[1]) = (module.into(), functions.into());
            }
            AdminOp::UnloadModule => self.gpu.unload_module(tenant, short(args[1])?)?,
            AdminOp::FindFunction => {
                let name = self.text(args[2], FUNCTION_NAME_BYTES_MAX)?;
                let (function, bytes) = self.gpu.find_function(tenant, short(args[1])?, &name)?;
                (results[0], results[1]) = (function.into(), bytes.into());
            }
            AdminOp::Memory => {
                let memory = self.gpu.memory(tenant);
                (results[0], results[1]) = (memory.free_bytes, memory.held_bytes);
            }
        }
        Ok(results)
    }

    /// Makes a context over the windows that the host area names.
    fn create(
        &self,
        context: u32,
        first: u32,
        pages: u32,
        memory_bytes: u64,
        windows: u64,
    ) -> Result<(), Refusal> {
        let mut contexts = self.contexts.lock();
        if contexts.count() >= CONTEXTS_MAX {
            return Err(refusal(ErrorCode::HostLimit, "contexts are used up"));
        }
        if contexts.0.contains_key(&context) || !contexts.takes(first, pages) {
            let detail = format!("context {context} or its pages {first}+{pages} are taken");
            return Err(refusal(ErrorCode::BadArgument, detail));
        }
        let windows = self.windows(windows)?;
        let guest = self.dma.lock().memory(&windows).map_err(|error| {
            self.shown.count_fault();
            refusal(ErrorCode::NotGuestMemory, error)
        })?;
        let guest = Arc::new(guest);
        let memory = Arc::downgrade(&guest);
        let doorbells = Pages {
            all: self.doorbells.clone(),
            first,
            count: pages,
        };
        let resources = TenantResources {
            // The contract has no accounts: each context is one.
            account: AccountId(context),
            guest,
            doorbells: Arc::new(doorbells),
            interrupts: self.vectors.clone(),
            memory_bytes,
            channels: pages,
        };
        let tenant = TenantId(context);
        self.shown.place(context, Some(first));
        if let Err(refusal) = self.gpu.create_context(tenant, resources) {
            self.shown.place(context, None);
            return Err(refusal);
        }
        // Doorbells need no notification on hardware: the GPU polls them.
        self.gpu
            .doorbells_changed(tenant, DoorbellChange::AnyOpen(true));
        let entry = Context {
            first,
            pages,
            windows,
            memory,
        };
        contexts.0.insert(context, entry);
        Ok(())
    }

    /// Reads windows out of the host area.
    fn windows(&self, count: u64) -> Result<Vec<Window>, Refusal> {
        let bad = || {
            refusal(
                ErrorCode::BadArgument,
                "a window is not made of whole pages",
            )
        };
        if count == 0 || count > WINDOWS_MAX as u64 {
            return Err(bad());
        }
        let read = |at: u64| {
            let word = self
                .shown
                .with_area(|area| area.read_obj::<u64>(GuestAddress(area::WINDOWS + at)));
            match word {
                Some(Ok(word)) => Ok(u64::from_le(word)),
                _ => Err(refusal(ErrorCode::NotGuestMemory, "there is no host area")),
            }
        };
        let mut windows = Vec::new();
        for index in 0..count {
            let at = index * area::WINDOW_BYTES;
            let (gpa, iova, bytes) = (read(at)?, read(at + 8)?, read(at + 16)?);
            let whole = [gpa, iova, bytes]
                .iter()
                .all(|n| n.is_multiple_of(PAGE_BYTES));
            if !whole || bytes == 0 || gpa.checked_add(bytes).is_none() {
                return Err(bad());
            }
            windows.push(Window { gpa, iova, bytes });
        }
        Ok(windows)
    }

    /// Ends a context, if it exists. When this returns, nothing reaches its memory any more, except
    /// after an error log: work that did not stop within `STOP_PATIENCE`.
    pub(super) fn end(&self, contexts: &mut Contexts, context: u32) {
        let Some(known) = contexts.0.remove(&context) else {
            return;
        };
        self.gpu.destroy_context(TenantId(context));
        self.shown.place(context, None);
        let begin = Instant::now();
        // Running work stops at its next check for a stop request.
        while known.memory.strong_count() > 0 {
            if begin.elapsed() > STOP_PATIENCE {
                log::error!("context {context} did not let go of its memory within 5 s");
                return;
            }
            thread::sleep(Duration::from_micros(50));
        }
    }
}
