//! One VM's mailbox: a thread of its own, so that a long request (a large module) delays no other
//! VM.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use turnstile_abi::{ErrorCode, MAILBOX_ARGS, MAILBOX_RESULTS, Request};
use turnstile_accounting::TenantId;
use turnstile_vmm::wire::ToVmm;

use super::Host;
use crate::limits::{Held, Holder, Limits, Resource};
use crate::tenant::requests::{self, Effect, Holdings};
use turnstile_gpu::{GuestMemory, Refusal};

/// A request from the socket.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) id: u64,
    pub(crate) op: u32,
    pub(crate) args: [u64; MAILBOX_ARGS],
}

/// Sends requests to the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Mailbox {
    letters: SyncSender<(Letter, Held)>,
    holder: Holder,
}

impl Mailbox {
    /// Starts the thread.
    pub(crate) fn start(
        host: &Arc<Host>,
        tenant: TenantId,
        guest: Arc<GuestMemory>,
        holder: Holder,
    ) -> std::io::Result<Self> {
        let (sender, letters) = sync_channel(1);
        let mut holdings = Holdings::new(host.limits().clone(), holder.clone());
        // Weak, so that a forgotten mailbox does not keep a stopped daemon's GPU alive.
        let host = Arc::downgrade(host);
        thread::Builder::new()
            .name(format!("turnstile-mb{}", tenant.0))
            .spawn(move || {
                serve(&letters, tenant, &guest, &mut holdings, || host.upgrade());
            })?;
        let letters = sender;
        Ok(Self { letters, holder })
    }

    /// Hands a request over; false if the VMM sent one too many, or the thread is gone.
    pub(crate) fn post(&self, limits: &Arc<Limits>, letter: Letter) -> bool {
        let Ok(held) = limits.take(Resource::Requests, &self.holder, 1) else {
            return false;
        };
        match self.letters.try_send((letter, held)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

fn serve(
    letters: &Receiver<(Letter, Held)>,
    tenant: TenantId,
    guest: &GuestMemory,
    holdings: &mut Holdings,
    host: impl Fn() -> Option<Arc<Host>>,
) {
    while let Ok((Letter { id, op, args }, _held)) = letters.recv() {
        let Some(host) = host() else { return };
        let served = Request::decode(op, &args).map_err(Refusal::from);
        let served = served.and_then(|request| {
            let (gpu, account) = (&**host.gpu(), host.account(tenant));
            let tasks = host.common.tasks.get().and_then(Weak::upgrade);
            requests::serve(
                gpu,
                tasks.as_deref(),
                tenant,
                guest,
                account,
                holdings,
                request,
            )
        });
        let (answer, effect) = match served {
            Ok(served) => {
                let error = ErrorCode::None as u32;
                let (text, results) = (String::new(), served.results);
                (
                    ToVmm::MailboxDone {
                        id,
                        error,
                        text,
                        results,
                    },
                    served.effect,
                )
            }
            Err(refusal) => {
                let (error, text) = (refusal.code as u32, refusal.to_string());
                let results = [0; MAILBOX_RESULTS];
                (
                    ToVmm::MailboxDone {
                        id,
                        error,
                        text,
                        results,
                    },
                    Effect::None,
                )
            }
        };
        host.mailbox_served(tenant, effect, &answer);
    }
}
