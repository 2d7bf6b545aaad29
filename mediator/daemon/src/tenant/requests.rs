//! Mailbox requests of a VM, from checked words to calls of the GPU.

use turnstile_abi::{ErrorCode, MAILBOX_ARGS, MAILBOX_RESULTS, QueryItem, Request};
use turnstile_accounting::TenantId;
use vm_memory::GuestAddress;

use turnstile_gpu::{ChannelConfig, Gpu, GuestMemory, Refusal, within_limit};

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

/// Serves one request of `tenant`.
///
/// # Errors
/// The refusal that the guest sees.
pub fn serve(
    gpu: &dyn Gpu,
    tenant: TenantId,
    guest: &GuestMemory,
    account: Account,
    op: u32,
    args: &[u64; MAILBOX_ARGS],
) -> Result<Served, Refusal> {
    let mut effect = Effect::None;
    let results = match Request::decode(op, args)? {
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
            let channel = gpu.open_channel(tenant, config)?;
            effect = Effect::Opened(channel);
            words(&[channel.into()])
        }
        Request::CloseChannel { channel } => {
            gpu.close_channel(tenant, channel)?;
            effect = Effect::Closed(channel);
            words(&[])
        }
        Request::Allocate { bytes } => {
            if gpu.capabilities().memory_held {
                let held = gpu.memory(tenant).held_bytes;
                within_limit(held, bytes, account.memory_max_bytes)?;
            }
            let given = gpu.allocate(tenant, bytes)?;
            words(&[given.va, given.aperture_offset, given.bytes])
        }
        Request::Free { va } => {
            gpu.free(tenant, va)?;
            words(&[])
        }
        Request::LoadModule { text_gpa, bytes } => {
            let text = read_text(guest, text_gpa, bytes)?;
            let max_bytes = account.memory_max_bytes;
            let (module, functions) = gpu.load_module(tenant, &text, max_bytes)?;
            words(&[module.into(), functions.into()])
        }
        Request::UnloadModule { module } => {
            gpu.unload_module(tenant, module)?;
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

/// Copies text out of guest memory; the length was bounded when the request was decoded.
fn read_text(guest: &GuestMemory, gpa: u64, bytes: u64) -> Result<String, Refusal> {
    // CAST: at most MODULE_TEXT_BYTES_MAX
    let len = bytes as usize;
    if !guest.check_range(GuestAddress(gpa), len) {
        return Err(ErrorCode::NotGuestMemory.into());
    }
    let mut text = vec![0; len];
    guest
        .read_slice(&mut text, GuestAddress(gpa))
        .map_err(|_| Refusal::from(ErrorCode::NotGuestMemory))?;
    String::from_utf8(text).map_err(|_| Refusal {
        code: ErrorCode::BadArgument,
        detail: "text is not UTF-8".into(),
    })
}
