//! A GPU that does not answer: nothing is known of its engines, and nothing is charged.
//!
//! In: what the accounting thread finds at the end of a period. Out: a gap in the ledger, an event,
//! and the reason that `/readyz` shows. Where the GPU was reset to take it back, its contexts are
//! gone, so all VMs are notified and end; their VMMs may connect again.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use turnstile_accounting::Moment;
use turnstile_gpu::Contexts;
use turnstile_vmm::wire::ToVmm;

use super::Host;
use super::peer::Kind;

impl Host {
    fn silence_lock(&self) -> MutexGuard<'_, Option<String>> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing is known of the GPU now; none while it answers. Waits for no device.
    pub fn silence(&self) -> Option<String> {
        self.silence_lock().clone()
    }

    /// The GPU does not answer since `from`.
    pub(crate) fn silent(&self, from: Moment, reason: &str) {
        log::error!(
            "GPU: silent: {reason}; its time is charged to no tenant, and it is taken back when it answers"
        );
        *self.silence_lock() = Some(reason.to_owned());
        self.journal().report("gpu_silent", "", reason);
        let mut state = self.lock();
        if let Some(recorder) = &mut state.recorder {
            recorder.silent(from);
        }
    }

    /// Takes the GPU back. Its VMs are notified and end if it was reset.
    ///
    /// # Errors
    /// Why it does not answer yet; its time since is a gap.
    pub(crate) fn retake(&self) -> Result<(), String> {
        let taken = self.gpu.take_back();
        let mut state = self.lock();
        let now = self.gpu.now();
        if let Some(recorder) = &mut state.recorder {
            recorder.silent(now);
        }
        let contexts = taken?;
        let ending = (contexts == Contexts::Gone).then_some(&mut state.tenants);
        for tenant in ending.into_iter().flat_map(BTreeMap::values_mut) {
            if matches!(tenant.kind, Kind::Vm(_)) {
                let text = "The GPU was reset after it had not answered; connect again".to_owned();
                tenant.peer.send(&ToVmm::Refused { text });
                tenant.peer.give_up();
            }
        }
        drop(state);
        let text = match contexts {
            Contexts::Kept => "The GPU answers again, with its contexts",
            Contexts::Gone => "The GPU answers again and was reset; its VMs have to connect again",
        };
        self.journal().report("gpu_back", "", text);
        *self.silence_lock() = None;
        log::warn!("GPU: {text}");
        Ok(())
    }
}
