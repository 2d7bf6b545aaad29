//! Mailbox requests of a VM, from checked words to calls of the GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnstile_abi::{ErrorCode, MAILBOX_RESULTS, QueryItem, Request};
use turnstile_accounting::TenantId;
use vm_memory::GuestAddress;

use crate::common::PlaceTasks;
use crate::limits::{
    Held, Holder, LimitError, Limits, MODULE_EXPANSION, MODULE_IMAGE_BYTES, Resource,
};
use turnstile_gpu::{ChannelConfig, Gpu, GuestMemory, Refusal, within_limit};
use turnstile_host::room::{has_room, zeroed};
use turnstile_policies::place::Job;

/// A VM's account, as its requests read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The VM's weight.
    pub weight: u32,
    /// Compute time charged.
    pub compute_ns: u64,
    /// Copy time charged.
    pub copy_ns: u64,
    /// GPU memory that it may have, if an operator set a limit.
    pub memory_max_bytes: Option<u64>,
}

/// What a served request changed for the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A channel was opened: it needs a gate.
    Opened(u32),
    /// A channel was closed: its gate is removed.
    Closed(u32),
}

/// Results for the mailbox, and what they mean for the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The mailbox's result words.
    pub results: [u64; MAILBOX_RESULTS],
    /// What changed.
    pub effect: Effect,
}

/// What a VM holds through its mailbox, each until the request that gives it back.
#[derive(Debug)]
pub struct Holdings {
    limits: Arc<Limits>,
    holder: Holder,
    held: BTreeMap<Object, Vec<Held>>,
}

/// An object that a mailbox made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Channel(u32),
    Allocation(u64),
    Module(u32),
}

impl Holdings {
    /// Nothing is held.
    pub const fn new(limits: Arc<Limits>, holder: Holder) -> Self {
        let held = BTreeMap::new();
        Self {
            limits,
            holder,
            held,
        }
    }

    fn take(&self, resource: Resource, amount: u64) -> Result<Held, Refusal> {
        check_room(0)?;
        let beyond = |error: LimitError| Refusal {
            code: ErrorCode::HostLimit,
            detail: error.to_string(),
        };
        let taken = self.limits.take(resource, &self.holder, amount);
        taken.map_err(beyond)
    }

    fn keep(&mut self, object: Object, held: impl IntoIterator<Item = Held>) {
        self.held.insert(object, held.into_iter().collect());
    }
}

/// Serves one request of `tenant`.
///
/// # Errors
/// The refusal that the guest sees.
pub(crate) fn serve(
    gpu: &dyn Gpu,
    tasks: Option<&dyn PlaceTasks>,
    tenant: TenantId,
    guest: &GuestMemory,
    account: Account,
    holdings: &mut Holdings,
    request: Request,
) -> Result<Served, Refusal> {
    let mut effect = Effect::None;
    let results = match request {
        Request::OpenChannel {
            ring_gpa,
            entries,
            state_gpa,
            vector,
        } => {
            let config = ChannelConfig {
                ring_gpa,
                entries,
                state_gpa,
                vector,
            };
            let held = holdings.take(Resource::Objects, 1)?;
            let channel = gpu.open_channel(tenant, config)?;
            holdings.keep(Object::Channel(channel), [held]);
            effect = Effect::Opened(channel);
            words(&[channel.into()])
        }
        Request::CloseChannel { channel } => {
            gpu.close_channel(tenant, channel)?;
            holdings.held.remove(&Object::Channel(channel));
            effect = Effect::Closed(channel);
            words(&[])
        }
        Request::Allocate { bytes } => {
            if gpu.capabilities().memory_held {
                let held = gpu.memory(tenant).held_bytes;
                within_limit(held, bytes, account.memory_max_bytes)?;
            }
            let held = holdings.take(Resource::Objects, 1)?;
            let given = gpu.allocate(tenant, bytes)?;
            holdings.keep(Object::Allocation(given.va), [held]);
            words(&[given.va, given.aperture_offset, given.bytes])
        }
        Request::Free { va } => {
            gpu.free(tenant, va)?;
            holdings.held.remove(&Object::Allocation(va));
            words(&[])
        }
        Request::LoadModule { text_gpa, bytes } => {
            let kept_bytes = bytes.saturating_mul(MODULE_EXPANSION);
            let room_bytes = kept_bytes + MODULE_IMAGE_BYTES;
            let place = holdings.take(Resource::Objects, 1)?;
            let mut held = holdings.take(Resource::Modules, room_bytes)?;
            check_room(room_bytes)?;
            let text = read_text(guest, text_gpa, bytes)?;
            let max_bytes = account.memory_max_bytes;
            let (module, functions) = gpu.load_module(tenant, &text, max_bytes)?;
            held.shrink(kept_bytes);
            holdings.keep(Object::Module(module), [place, held]);
            words(&[module.into(), functions.into()])
        }
        Request::UnloadModule { module } => {
            gpu.unload_module(tenant, module)?;
            holdings.held.remove(&Object::Module(module));
            words(&[])
        }
        Request::FindFunction {
            module,
            name_gpa,
            bytes,
        } => {
            let name = read_text(guest, name_gpa, bytes)?;
            let (function, param_bytes) = gpu.find_function(tenant, module, &name)?;
            words(&[function.into(), param_bytes.into()])
        }
        Request::Query { item } => {
            let capabilities = gpu.capabilities();
            words(&[match item {
                QueryItem::MemoryFreeBytes => memory_left(gpu, tenant, account.memory_max_bytes),
                QueryItem::Weight => account.weight.into(),
                QueryItem::ComputeNs => account.compute_ns,
                QueryItem::CopyNs => account.copy_ns,
                QueryItem::Multiprocessors => capabilities.multiprocessors.into(),
                QueryItem::SharedBytesMax => capabilities.shared_bytes_max.into(),
            }])
        }
        Request::BeginTask {
            memory_bytes,
            threads,
            blocks,
        } => {
            let job = Job {
                memory_bytes,
                blocks,
                threads,
            };
            let task = tasks.ok_or(ErrorCode::UnknownOp)?.begin(tenant, job)?;
            words(&[task.into()])
        }
        Request::EndTask { task } => {
            tasks.ok_or(ErrorCode::UnknownOp)?.end(tenant, task)?;
            words(&[])
        }
    };
    Ok(Served { results, effect })
}

fn memory_left(gpu: &dyn Gpu, tenant: TenantId, max_bytes: Option<u64>) -> u64 {
    let memory = gpu.memory(tenant);
    match max_bytes.filter(|_| gpu.capabilities().memory_held) {
        Some(max) => memory.free_bytes.min(max.saturating_sub(memory.held_bytes)),
        None => memory.free_bytes,
    }
}

fn words(values: &[u64]) -> [u64; MAILBOX_RESULTS] {
    let mut results = [0; MAILBOX_RESULTS];
    results[..values.len()].copy_from_slice(values);
    results
}

/// Checks that the daemon can have this much memory now: a failed allocation would end it.
fn check_room(bytes: u64) -> Result<(), Refusal> {
    if has_room(bytes) {
        return Ok(());
    }
    Err(Refusal {
        code: ErrorCode::HostLimit,
        detail: format!("the host has no {bytes} bytes for it"),
    })
}

/// Copies text out of guest memory; the length was bounded when the request was decoded.
fn read_text(guest: &GuestMemory, gpa: u64, bytes: u64) -> Result<String, Refusal> {
    // CAST: at most MODULE_TEXT_BYTES_MAX
    let len = bytes as usize;
    if !guest.check_range(GuestAddress(gpa), len) {
        return Err(ErrorCode::NotGuestMemory.into());
    }
    let mut text = zeroed(len).ok_or(ErrorCode::HostLimit)?;
    guest
        .read_slice(&mut text, GuestAddress(gpa))
        .map_err(|_| Refusal::from(ErrorCode::NotGuestMemory))?;
    String::from_utf8(text).map_err(|_| Refusal {
        code: ErrorCode::BadArgument,
        detail: "text is not UTF-8".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Row, rows};
    use turnstile_gpu::plain::PlainVm;
    use turnstile_soft::{SoftConfig, SoftGpu};

    const TEXT: &str = ".version 7.0\n.target sm_75\n.address_size 64\n.entry f() { ret; }\n";

    fn holdings(limits: &Arc<Limits>, account: &str, tenant: u32) -> Holdings {
        let holder = Holder {
            account: account.into(),
            tenant: Some(TenantId(tenant)),
            trusted: false,
        };
        Holdings::new(limits.clone(), holder)
    }

    /// Loads modules until one is refused; returns how many were loaded, and the refusal.
    fn fill(change: impl FnOnce(&mut [Row])) -> (usize, Refusal, Arc<Limits>) {
        let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
        let mut rows = rows(256);
        change(&mut rows);
        let limits = Limits::new(rows);
        let enter = |number| {
            let tenant = TenantId(number);
            let vm = PlainVm::enter(&gpu, tenant, 1 << 20, 2 << 20, 4).unwrap();
            let gpa = vm.put(TEXT.as_bytes());
            (vm, tenant, [gpa, TEXT.len() as u64, 0, 0, 0, 0, 0, 0])
        };
        let (vm, one, args) = enter(1);
        let mut own = holdings(&limits, "a", 1);
        let mut load = |op, args: &_| {
            let account = Account::default();
            let request = Request::decode(op, args)?;
            serve(&gpu, None, one, &vm.guest, account, &mut own, request)
        };
        let mut loaded = Vec::new();
        let refusal = loop {
            match load(5, &args) {
                Ok(served) => loaded.push(served.results[0]),
                Err(refusal) => break refusal,
            }
        };
        let (other, two, args_of_other) = enter(2);
        let mut its = holdings(&limits, "b", 2);
        let account = Account::default();
        serve(
            &gpu,
            None,
            two,
            &other.guest,
            account,
            &mut its,
            Request::decode(5, &args_of_other).unwrap(),
        )
        .unwrap();
        load(6, &[loaded[0], 0, 0, 0, 0, 0, 0, 0]).unwrap();
        load(5, &args).unwrap();
        (loaded.len(), refusal, limits)
    }

    #[test]
    fn objects_are_refused_at_the_bound_and_free_again() {
        let (count, refusal, _) = fill(|rows| rows[Resource::Objects as usize].account = 5);
        assert_eq!((count, refusal.code), (5, ErrorCode::HostLimit));
        assert!(refusal.detail.contains("the bound is 5"), "{refusal}");
    }

    #[test]
    fn modules_are_refused_at_the_bound_and_free_again() {
        let one = MODULE_EXPANSION * TEXT.len() as u64;
        let max = MODULE_IMAGE_BYTES + 3 * one;
        let (count, refusal, limits) = fill(|rows| {
            rows[Resource::Modules as usize].tenant = max;
        });
        assert_eq!((count, refusal.code), (3, ErrorCode::HostLimit));
        assert!(
            refusal.detail.contains("tenant 1") || refusal.detail.contains('1'),
            "{refusal}"
        );
        assert_eq!(limits.snapshot().refused["module_bytes"], 1);
    }
}
