//! The usher, who takes the engine from who is to be suspended: its process is known as our own.

use turnstile_accounting::TenantId;

use super::{Shared, lock};
use crate::usher::Usher;

/// The usher of a GPU, if there is to be one.
#[derive(Debug, Default)]
pub(super) struct Ushering {
    usher: Option<Usher>,
    /// As our own it is known.
    pid: Option<u32>,
    /// So often it was told to take the engine, and had it.
    pub(super) takes: u64,
    pub(super) arrivals: u64,
}

impl Ushering {
    pub(super) fn new(usher: Option<Usher>) -> Self {
        Self {
            usher,
            ..Self::default()
        }
    }
}

impl Shared {
    /// The engine is taken from a tenant, if he works on it as far as is known, and nobody else would.
    pub(super) fn take_engine(&self, tenant: TenantId) {
        let now = self.now();
        let wanted = lock(&self.watched).watch.is_to_be_ushered(tenant, now);
        if !wanted {
            return;
        }
        self.usher(|ushering, usher| {
            if usher.take() {
                ushering.takes += 1;
                lock(&self.watched).watch.own(true, now);
            }
        });
    }

    /// Whoever took it lets go of it.
    pub(super) fn leave_engine(&self) {
        self.usher(|ushering, usher| {
            if let Some(came) = usher.leave() {
                ushering.arrivals += u64::from(came);
                let now = self.now();
                lock(&self.watched).watch.own(false, now);
            }
        });
    }

    /// Does something with the usher, and sees to it that it is known, which may be another then.
    pub(super) fn usher(&self, act: impl FnOnce(&mut Ushering, &mut Usher)) {
        let mut ushering = lock(&self.ushering);
        let Some(mut usher) = ushering.usher.take() else {
            return;
        };
        act(&mut ushering, &mut usher);
        let pid = usher.pid();
        ushering.usher = Some(usher);
        if pid != ushering.pid {
            ushering.pid = pid;
            lock(&self.watched).watch.set_own(pid);
        }
    }
}
