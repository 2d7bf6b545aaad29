//! One tenant as the host keeps it, and messages to its VMM or launcher.

use std::os::unix::net::UnixStream;

use turnstile_accounting::AccountId;
use turnstile_vmm::wire::{FrameWriter, ToVmm};

use super::dma::MemoryDesk;
use super::mailbox::Mailbox;
use super::settings::Brought;
use crate::tenant::gates::{GateBook, GateMove};
use crate::tenant::pages::StatusPage;
use turnstile_host::process::Identity;

/// One tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: String,
    /// Number and name of its account.
    pub(super) account: (AccountId, String),
    pub(super) peer: Peer,
    pub(super) kind: Kind,
    /// In force where nothing was set.
    pub(super) brought: Brought,
}

/// What a tenant is.
#[derive(Debug)]
pub(super) enum Kind {
    /// A virtual machine.
    Vm(Box<Vm>),
    /// A program: the launcher, and what descends from it.
    Program(Identity),
}

/// What belongs to a VM alone.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) mailbox: Mailbox,
    pub(super) gates: GateBook,
    pub(super) status: StatusPage,
    pub(super) desk: MemoryDesk,
}

/// The other end of a tenant's connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: UnixStream,
    pub(super) writer: FrameWriter,
}

impl Tenant {
    /// The VM, if it is one, and its VMM.
    pub(super) fn vm(&mut self) -> Option<(&mut Vm, &mut Peer)> {
        match &mut self.kind {
            Kind::Vm(vm) => Some((vm, &mut self.peer)),
            Kind::Program(_) => None,
        }
    }

    /// The first process of a program.
    pub(super) const fn root(&self) -> Option<Identity> {
        match self.kind {
            Kind::Program(root) => Some(root),
            Kind::Vm(_) => None,
        }
    }

    /// The gates; a program has none.
    pub(super) fn gates(&self) -> Option<&GateBook> {
        match &self.kind {
            Kind::Vm(vm) => Some(&vm.gates),
            Kind::Program(_) => None,
        }
    }
}

impl Peer {
    pub(super) fn send(&mut self, message: &ToVmm) {
        if self.writer.push(message, Vec::new()).is_err() {
            self.give_up();
        }
        self.flush();
    }

    /// Writes what the socket takes; the rest follows at the end of a later period. A peer that
    /// never reads overflows the queue.
    pub(super) fn flush(&mut self) {
        if !self.writer.is_empty() && self.writer.flush(&self.stream).is_err() {
            self.give_up();
        }
    }

    /// The control loop then sees the end of the connection, and takes the tenant down.
    fn give_up(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    pub(super) fn send_move(
        &mut self,
        GateMove {
            channel,
            seq,
            state,
        }: GateMove,
    ) {
        self.send(&ToVmm::Gate {
            channel,
            seq,
            state,
        });
    }
}
