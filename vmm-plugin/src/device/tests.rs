use super::*;
use proptest::prelude::*;
use turnstile_abi::regs::mailbox_status;

#[derive(Debug, Default)]
struct Fake {
    sent: Vec<(u64, u32, [u64; MAILBOX_ARGS])>,
    messages: Vec<(u16, Option<MsiMessage>)>,
    raised: Vec<u16>,
    gone: bool,
}

impl Host for Fake {
    fn send_mailbox(
        &mut self,
        id: u64,
        op: u32,
        args: [u64; MAILBOX_ARGS],
    ) -> Result<(), MediatorGone> {
        if self.gone {
            return Err(MediatorGone);
        }
        self.sent.push((id, op, args));
        Ok(())
    }
    fn set_msix(&mut self, vector: u16, message: Option<MsiMessage>) {
        self.messages.push((vector, message));
    }
    fn raise(&mut self, vector: u16) {
        self.raised.push(vector);
    }
    fn read_status_page(&self, offset: u64, data: &mut [u8]) {
        data.fill(offset as u8);
    }
}

fn gpu() -> VirtualGpu<Fake> {
    let identity = Identity {
        features: 0x1_0000_000f,
        channels: 8,
        memory_bytes: 48 << 20,
    };
    VirtualGpu::new(identity, Fake::default())
}

fn read32(gpu: &mut VirtualGpu<Fake>, offset: u64) -> u32 {
    let mut data = [0; 4];
    gpu.regs_read(offset, &mut data);
    u32::from_le_bytes(data)
}

fn read64(gpu: &mut VirtualGpu<Fake>, offset: u64) -> u64 {
    let mut data = [0; 8];
    gpu.regs_read(offset, &mut data);
    u64::from_le_bytes(data)
}

fn write32(gpu: &mut VirtualGpu<Fake>, offset: u64, value: u32) {
    gpu.regs_write(offset, &value.to_le_bytes());
}

fn config32(gpu: &VirtualGpu<Fake>, offset: u64) -> u32 {
    let mut data = [0; 4];
    gpu.config_read(offset, &mut data);
    u32::from_le_bytes(data)
}

#[test]
fn registers_identify_the_device() {
    let gpu = &mut gpu();
    assert_eq!(read32(gpu, regs::IDENTITY), regs::IDENTITY_VALUE);
    assert_eq!(read32(gpu, regs::VERSION), regs::VERSION_VALUE);
    assert_eq!(read64(gpu, regs::FEATURES), 0x1_0000_000f);
    assert_eq!(read32(gpu, regs::CHANNELS), 8);
    assert_eq!(read64(gpu, regs::MEMORY_BYTES), 48 << 20);
    assert_eq!(read32(gpu, regs::DEVICE_STATUS), device_status::READY);
    assert_eq!(read32(gpu, regs::status::PAGE + 0x20), 0x2020_2020);
}

#[test]
fn a_request_is_frozen_sent_and_latched() {
    let gpu = &mut gpu();
    gpu.regs_write(
        regs::MAILBOX_ARG + 8,
        &0x1122_3344_5566_7788_u64.to_le_bytes(),
    );
    write32(gpu, regs::MAILBOX_ARG + 4, 9);
    write32(gpu, regs::MAILBOX_OP, 77);
    let args = [9 << 32, 0x1122_3344_5566_7788, 0, 0, 0, 0, 0, 0];
    assert_eq!(gpu.host().sent, [(1, 77, args)]);
    assert_eq!(read32(gpu, regs::MAILBOX_STATUS), mailbox_status::BUSY);

    write32(gpu, regs::MAILBOX_OP, 78);
    assert_eq!(read32(gpu, regs::MAILBOX_ERROR), ErrorCode::Busy as u32);
    assert_eq!(gpu.host().sent.len(), 1);

    gpu.mailbox_done(5, 0, "not requested", [1; MAILBOX_RESULTS]);
    assert_eq!(read32(gpu, regs::MAILBOX_STATUS), mailbox_status::BUSY);
    gpu.mailbox_done(1, 0, "", [7; MAILBOX_RESULTS]);
    assert_eq!(read32(gpu, regs::MAILBOX_STATUS), mailbox_status::DONE);
    assert_eq!(read32(gpu, regs::MAILBOX_ERROR), 0);
    assert_eq!(read64(gpu, regs::MAILBOX_RESULT + 56), 7);
    assert_eq!(gpu.host().raised, [0]);
    assert_eq!(read32(gpu, regs::INTERRUPT_STATUS), 1);
    write32(gpu, regs::INTERRUPT_STATUS, 1);
    assert_eq!(read32(gpu, regs::INTERRUPT_STATUS), 0);
}

#[test]
fn a_refusal_carries_text_and_no_results() {
    let gpu = &mut gpu();
    write32(gpu, regs::MAILBOX_OP, 5);
    gpu.mailbox_done(1, ErrorCode::ModuleRefused as u32, &"ä".repeat(200), [7; 8]);
    assert_eq!(read32(gpu, regs::MAILBOX_STATUS), mailbox_status::REFUSED);
    assert_eq!(read64(gpu, regs::MAILBOX_RESULT), 0);
    assert_eq!(read32(gpu, regs::MAILBOX_TEXT_LEN), 256);
    assert_eq!(
        read32(gpu, regs::MAILBOX_TEXT).to_le_bytes(),
        *"ää".as_bytes()
    );
    write32(gpu, regs::MAILBOX_OP, 5);
    gpu.mailbox_done(2, 4_000_000, "", [0; 8]);
    assert_eq!(
        read32(gpu, regs::MAILBOX_ERROR),
        ErrorCode::HostLimit as u32
    );
}

#[test]
fn a_lost_mediator_answers_at_once() {
    let gpu = &mut gpu();
    write32(gpu, regs::MAILBOX_OP, 3);
    gpu.lose();
    assert_eq!(read32(gpu, regs::DEVICE_STATUS), device_status::LOST);
    assert_eq!(
        read32(gpu, regs::MAILBOX_ERROR),
        ErrorCode::DeviceLost as u32
    );
    write32(gpu, regs::MAILBOX_OP, 3);
    assert_eq!(read32(gpu, regs::MAILBOX_STATUS), mailbox_status::REFUSED);
    assert_eq!(gpu.host().raised, [0, 0]);
    assert_eq!(gpu.host().sent.len(), 1);

    let gpu = &mut self::gpu();
    gpu.host().gone = true;
    write32(gpu, regs::MAILBOX_OP, 3);
    assert!(gpu.is_lost());
}

#[test]
fn configuration_space_is_a_pci_device() {
    let gpu = &mut gpu();
    assert_eq!(config32(gpu, 0), 0x0001_7a51);
    assert_eq!(config32(gpu, 8) >> 8, pci::CLASS_CODE);
    let size = |gpu: &mut VirtualGpu<Fake>, bar: u64| {
        gpu.config_write(0x10 + 4 * bar, &[0xff; 4]);
        config32(gpu, 0x10 + 4 * bar)
    };
    assert_eq!(size(gpu, 0), 0xffff_0000);
    assert_eq!(size(gpu, 1), 0xffc0_0000);
    assert_eq!(size(gpu, 2), 0xfc00_000c);
    assert_eq!(size(gpu, 3), 0xffff_ffff);
    assert_eq!(size(gpu, 4), 0);
    gpu.config().place(pci::BAR_APERTURE, 0x1_4000_0000);
    assert_eq!(config32(gpu, 0x18), 0x4000_000c);
    assert_eq!(config32(gpu, 0x1c), 1);
    gpu.config_write(0, &[0; 64]);
    assert_eq!(config32(gpu, 0), 0x0001_7a51);
    assert_eq!(config32(gpu, 0x34), 0x40);
    assert_eq!(config32(gpu, 0x40), 0x001f_0011);
    assert_eq!(config32(gpu, 0x100), u32::MAX);
    let mut straddling = [0; 4];
    gpu.config_read(u64::MAX, &mut straddling[..1]);
    gpu.config_read(0xfe, &mut straddling);
    assert_eq!(straddling, [0, 0, 0xff, 0xff]);
}

#[test]
fn changed_msix_vectors_are_passed_to_the_host() {
    let gpu = &mut gpu();
    let entry = pci::MSIX_TABLE + 16 * 3;
    gpu.regs_write(entry, &0xfee0_0000_u64.to_le_bytes());
    write32(gpu, entry + 8, 0x53);
    write32(gpu, entry + 12, 0);
    assert!(gpu.host().messages.is_empty());
    gpu.config_write(0x42, &0x8000_u16.to_le_bytes());
    let message = MsiMessage {
        address: 0xfee0_0000,
        data: 0x53,
    };
    assert_eq!(gpu.host().messages, [(3, Some(message))]);
    write32(gpu, entry + 12, 1);
    write32(gpu, entry + 12, 0);
    gpu.config_write(0x42, &0xc000_u16.to_le_bytes());
    let expected = [Some(message), None, Some(message), None].map(|m| (3, m));
    assert_eq!(gpu.host().messages, expected);
    assert_eq!(read32(gpu, entry + 8), 0x53);
}

#[test]
fn doorbells_are_aligned_words() {
    assert_eq!(doorbell(0x3000, &[1, 2, 0, 0]), Some((3, 0x201)));
    assert_eq!(doorbell(0x3004, &[1, 2, 0, 0]), None);
    assert_eq!(doorbell(0x3000, &[1, 2]), None);
    assert_eq!(doorbell(0x3000, &[0; 8]), None);
    assert_eq!(doorbell(!0xfff, &[0; 4]), None);
}

proptest! {
    #[test]
    fn no_access_panics(accesses in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..0x1_1000_u64, 0..9_usize, any::<u64>()), 1..60)) {
        let mut gpu = gpu();
        for (write, config, offset, length, value) in accesses {
            let mut data = value.to_le_bytes();
            let offset = if config { offset % 0x200 } else { offset };
            match (write, config) {
                (true, true) => gpu.config_write(offset, &data[..length]),
                (true, false) => gpu.regs_write(offset, &data[..length]),
                (false, true) => gpu.config_read(offset, &mut data[..length]),
                (false, false) => gpu.regs_read(offset, &mut data[..length]),
            }
            if value % 3 == 0 { gpu.mailbox_done(value % 5, value as u32, "text", [value; 8]); }
        }
    }
}
