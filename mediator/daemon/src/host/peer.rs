//! One tenant as the host keeps it, and messages to its VMM or launcher.

use std::os::unix::net::UnixStream;

use turnstile_accounting::AccountId;
use turnstile_vmm::wire::{FrameWriter, ToVmm};

use super::dma::MemoryDesk;
use super::mailbox::Mailbox;
use super::settings::Brought;
use crate::error::chain;
use crate::limits::Holder;
use crate::tenant::gates::{GateBook, GateMove};
use crate::tenant::pages::StatusPage;
use turnstile_host::process::Identity;

/// One tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// Number and name of its account.
    pub(crate) account: (AccountId, String),
    pub(crate) peer: Peer,
    pub(crate) kind: Kind,
    /// In force where nothing was set.
    pub(crate) brought: Brought,
    /// For which account and tenant its objects and log lines count.
    pub(crate) holder: Holder,
}

/// What a tenant is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A virtual machine.
    Vm(Box<Vm>),
    /// A program: the launcher, and what descends from it.
    Program(Identity),
}

/// What belongs to a VM alone.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) mailbox: Mailbox,
    pub(crate) gates: GateBook,
    pub(crate) status: StatusPage,
    pub(crate) desk: MemoryDesk,
}

/// The other end of a tenant's connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    pub(crate) writer: FrameWriter,
}

impl Tenant {
    /// The VM, if it is one, and its VMM.
    pub(crate) fn vm(&mut self) -> Option<(&mut Vm, &mut Peer)> {
        match &mut self.kind {
            Kind::Vm(vm) => Some((vm, &mut self.peer)),
            Kind::Program(_) => None,
        }
    }

    /// The first process of a program.
    pub(crate) const fn root(&self) -> Option<Identity> {
        match self.kind {
            Kind::Program(root) => Some(root),
            Kind::Vm(_) => None,
        }
    }

    /// The gates; a program has none.
    pub(crate) fn gates(&self) -> Option<&GateBook> {
        match &self.kind {
            Kind::Vm(vm) => Some(&vm.gates),
            Kind::Program(_) => None,
        }
    }
}

impl Peer {
    pub(crate) fn send(&mut self, message: &ToVmm) {
        if self.writer.push(message, Vec::new()).is_err() {
            self.give_up();
        }
        self.flush();
    }

    /// Sends the reason for which the tenant ends, and ends the connection.
    pub(crate) fn end(&mut self, reason: &str) {
        let text = reason.to_owned();
        self.send(&ToVmm::Refused { text });
        self.give_up();
    }

    /// Writes what the socket takes; the rest follows at the end of a later period. A peer that
    /// never reads overflows the queue.
    pub(crate) fn flush(&mut self) {
        if !self.writer.is_empty() && self.writer.flush(&self.stream).is_err() {
            self.give_up();
        }
    }

    /// The control loop then sees the end of the connection, and takes the tenant down.
    pub(crate) fn give_up(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    pub(crate) fn send_move(
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

/// Sends a peer the reason for which it is refused, if its socket takes it.
pub(crate) fn refuse(error: &dyn std::error::Error, stream: &UnixStream) {
    let (mut writer, text) = (FrameWriter::new(), chain(error));
    if writer.push(&ToVmm::Refused { text }, Vec::new()).is_ok() {
        let _ = writer.flush(stream);
    }
}
