//! The virtual GPU as a PCI device: configuration space, registers, mailbox, MSI-X.
//!
//! Independent of KVM and of the daemon: the embedding VMM passes accesses in and implements
//! [`Host`]. The doorbells (BAR 1) belong to [`crate::gate::GateControl`]; the aperture (BAR 2) and
//! the status page are memory.

mod config;
mod mailbox;
mod msix;

pub use config::ConfigSpace;
pub use config::bar_bytes;
pub use msix::MsiMessage;

use mailbox::Mailbox;
use msix::Msix;
use turnstile_abi::pci::{DOORBELL_OFFSET, MSIX_PBA, MSIX_TABLE};
use turnstile_abi::regs::{self, device_status, features};
use turnstile_abi::{ErrorCode, MAILBOX_ARGS, MAILBOX_RESULTS, PAGE_BYTES, pci};

/// The mediator is gone.
#[derive(Debug, thiserror::Error)]
#[error("The mediator is gone")]
pub struct MediatorGone;

/// What the device needs of its surroundings. No call may block on the guest or on a GPU's work.
pub trait Host {
    /// Sends a request to the mediator; the answer is passed to [`VirtualGpu::mailbox_done`].
    ///
    /// # Errors
    /// When the mediator is gone.
    fn send_mailbox(
        &mut self,
        id: u64,
        op: u32,
        args: [u64; MAILBOX_ARGS],
    ) -> Result<(), MediatorGone>;

    /// Delivers `vector` as `message` from now on. Without a message its interrupts are retained
    /// and delivered once there is one.
    fn set_msix(&mut self, vector: u16, message: Option<MsiMessage>);

    /// Raises a vector.
    fn raise(&mut self, vector: u16);

    /// A trapped read of the status page: `data.len()` bytes at `offset`, within the page.
    fn read_status_page(&self, offset: u64, data: &mut [u8]);
}

/// Properties that the device reports in its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Bits of [`turnstile_abi::regs::features`].
    pub features: u64,
    /// Channels that the VM may have open.
    pub channels: u32,
    /// Bytes of GPU memory that the VM may own.
    pub memory_bytes: u64,
}

impl Identity {
    /// Bytes of GPU memory that the aperture shows; 0 without an aperture.
    pub const fn aperture_bytes(&self) -> u64 {
        match self.features & features::APERTURE {
            0 => 0,
            _ => self.memory_bytes,
        }
    }
}

/// The virtual GPU of one VM.
#[derive(Debug)]
pub struct VirtualGpu<H> {
    identity: Identity,
    config: ConfigSpace,
    msix: Msix,
    mailbox: Mailbox,
    lost: bool,
    interrupt_status: u32,
    /// Accesses of a form or at a place that the contract does not have.
    ignored: u64,
    host: H,
}

impl<H: Host> VirtualGpu<H> {
    /// A device after reset.
    pub fn new(identity: Identity, host: H) -> Self {
        Self {
            identity,
            config: ConfigSpace::new(identity.aperture_bytes()),
            msix: Msix::new(),
            mailbox: Mailbox::default(),
            lost: false,
            interrupt_status: 0,
            ignored: 0,
            host,
        }
    }

    /// The configuration space, for the code that places the BARs.
    pub fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    /// The host of the device.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// Accesses ignored so far because the contract has nothing there, or not in that form.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// A read of configuration space; all ones beyond it.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.config.read(offset, data);
    }

    /// A write to configuration space; what is read-only stays.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        self.config.write(offset, data);
        let (enabled, masked) = self.config.msix_control();
        self.msix.set_control(enabled, masked, &mut self.host);
    }

    /// A trapped read of the register BAR. Zeroes where the contract defines nothing.
    pub fn regs_read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if !well_formed(offset, data.len()) {
            self.ignored += 1;
            return;
        }
        if page_of(offset) == regs::status::PAGE {
            return self
                .host
                .read_status_page(offset - regs::status::PAGE, data);
        }
        for (at, bytes) in (offset..).step_by(4).zip(data.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&self.word(at).to_le_bytes());
        }
    }

    /// The `N` bytes of a register, as a guest that is a thread reads it.
    pub fn reg<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.regs_read(offset, &mut data);
        data
    }

    /// A trapped write to the register BAR. Ignored where the contract defines nothing to write.
    pub fn regs_write(&mut self, offset: u64, data: &[u8]) {
        if !well_formed(offset, data.len()) {
            self.ignored += 1;
            return;
        }
        for (at, bytes) in (offset..).step_by(4).zip(data.chunks_exact(4)) {
            let value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            self.set_word(at, value);
        }
    }

    /// The mediator's answer to request `id`. An answer to any other request is dropped.
    pub fn mailbox_done(
        &mut self,
        id: u64,
        error: u32,
        text: &str,
        results: [u64; MAILBOX_RESULTS],
    ) {
        // An error number outside this version of the contract must not reach the guest: a later
        // version may define it.
        let error = ErrorCode::from_u32(error).unwrap_or(ErrorCode::HostLimit);
        if self.mailbox.finish(id, error, text, results) {
            self.announce_mailbox();
        }
    }

    /// The mediator is gone: the current request and all later ones are answered with
    /// [`ErrorCode::DeviceLost`].
    pub fn lose(&mut self) {
        self.lost = true;
        if self.mailbox.lose() {
            self.announce_mailbox();
        }
    }

    /// Whether the mediator is gone.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    fn announce_mailbox(&mut self) {
        self.interrupt_status |= 1;
        self.host.raise(0);
    }

    fn word(&self, offset: u64) -> u32 {
        let low = |value: u64| value as u32;
        let high = |value: u64| (value >> 32) as u32;
        match offset {
            regs::IDENTITY => regs::IDENTITY_VALUE,
            regs::VERSION => regs::VERSION_VALUE,
            regs::FEATURES => low(self.identity.features),
            0x00c => high(self.identity.features),
            regs::CHANNELS => self.identity.channels,
            regs::VECTORS => pci::VECTORS.into(),
            regs::MEMORY_BYTES => low(self.identity.memory_bytes),
            0x01c => high(self.identity.memory_bytes),
            regs::DEVICE_STATUS if self.lost => device_status::LOST,
            regs::DEVICE_STATUS => device_status::READY,
            regs::INTERRUPT_STATUS => self.interrupt_status,
            regs::MAILBOX_OP..MSIX_TABLE => self.mailbox.word(offset),
            MSIX_TABLE..MSIX_PBA => self.msix.word(offset - MSIX_TABLE),
            _ => 0,
        }
    }

    fn set_word(&mut self, offset: u64, value: u32) {
        match offset {
            regs::INTERRUPT_STATUS => self.interrupt_status &= !value,
            regs::MAILBOX_OP => self.start_request(value),
            MSIX_TABLE..MSIX_PBA => {
                self.msix
                    .set_word(offset - MSIX_TABLE, value, &mut self.host);
            }
            _ if self.mailbox.set_arg(offset, value) => {}
            _ => self.ignored += 1,
        }
    }

    fn start_request(&mut self, op: u32) {
        let Some((id, args)) = self.mailbox.start(op) else {
            return;
        };
        if self.lost || self.host.send_mailbox(id, op, args).is_err() {
            self.lose();
        }
    }
}

/// A doorbell write: the channel and the value, where the access is one that the contract has.
pub fn doorbell(offset: u64, data: &[u8]) -> Option<(u32, u32)> {
    let channel = u32::try_from(offset / PAGE_BYTES).ok()?;
    let bytes: [u8; 4] = data.try_into().ok()?;
    (offset % PAGE_BYTES == DOORBELL_OFFSET).then(|| (channel, u32::from_le_bytes(bytes)))
}

fn page_of(offset: u64) -> u64 {
    offset & !(PAGE_BYTES - 1)
}

/// 4- and 8-byte accesses, naturally aligned, within the BAR.
fn well_formed(offset: u64, length: usize) -> bool {
    matches!(length, 4 | 8)
        && offset.is_multiple_of(length as u64)
        && offset < regs::BAR_BYTES - length as u64 + 1
}

#[cfg(test)]
mod tests;
