//! One VM as the host holds it, and how its VMM is told.

use std::os::unix::net::UnixStream;

use turnstile_vmm::wire::{FrameWriter, ToVmm};

use super::mailbox::Mailbox;
use crate::tenant::gates::{GateBook, GateMove};
use crate::tenant::pages::StatusPage;

/// One VM.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) stream: UnixStream,
    pub(super) writer: FrameWriter,
    pub(super) mailbox: Mailbox,
    pub(super) gates: GateBook,
    pub(super) status: StatusPage,
}

impl Tenant {
    pub(super) fn send(&mut self, message: &ToVmm) {
        if self.writer.push(message, Vec::new()).is_err() {
            self.give_up();
        }
        self.flush();
    }

    /// What the socket does not take now goes at the end of a later period; a VMM that never reads overflows the queue.
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
