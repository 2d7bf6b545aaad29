//! What a VM has: channels, modules and memory, and checks of commands against them.
//!
//! In: a launch, or a range of GPU addresses. Out: the module, or the error that ends the channel.
//! Called by [`super::Engine`], which holds the lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnstile_abi::{ErrorCode, Launch};
use turnstile_accounting::Moment;

use super::channel::{Channel, LoadedModule};
use crate::worker::executor::{Executor, Failure};
use turnstile_gpu::layout::Layout;
use turnstile_gpu::ring::launch_fits;

/// Memory by first page: number of pages and the memory, `None` while it is elsewhere.
pub(super) type Pages<M> = BTreeMap<u32, (u32, Option<M>)>;

#[derive(Debug)]
pub(super) struct State<E: Executor> {
    pub(super) channels: BTreeMap<u32, Channel<E>>,
    /// Closed by the guest while commands are in flight.
    pub(super) closing: Vec<Channel<E>>,
    pub(super) modules: BTreeMap<u32, Arc<LoadedModule<E>>>,
    pub(super) layout: Layout,
    pub(super) memory: Pages<E::Memory>,
    /// Entries of `memory` without memory.
    pub(super) absent: usize,
    pub(super) last_pass: Moment,
    pub(super) last_check: Moment,
    pub(super) over: bool,
}

impl<E: Executor> State<E> {
    /// Checks a launch against its module and returns the module.
    pub(super) fn resolve(
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
    pub(super) fn is_absent(&self) -> bool {
        self.absent > 0
    }

    pub(super) fn covered(&self, va: u64, bytes: u64) -> Result<(), Failure> {
        match self.layout.hole(va, bytes) {
            None => Ok(()),
            Some(hole) => Err(Failure::of(ErrorCode::PageFault, hole)),
        }
    }

    /// Whether a command in flight is known to touch these addresses.
    pub(super) fn in_use(&self, va: u64, bytes: u64) -> bool {
        let all = self.channels.values().chain(&self.closing);
        let mut touches = all
            .flat_map(|channel| &channel.in_flight)
            .flat_map(|flying| flying.touches);
        touches
            .any(|(from, count)| count > 0 && from < va + bytes && va < from.saturating_add(count))
    }
}
