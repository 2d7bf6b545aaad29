//! Messages of clients that are broken or hostile.

use rand::rngs::SmallRng;
use rand::{Rng, RngCore};
use turnstile_vmm::vfio_user::{Command, Header, irq, region};

/// Bytes of a message before its payload.
pub(crate) const HEADER_BYTES: usize = 16;

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A well-formed payload of each command.
pub(crate) fn payload(command: Command) -> Vec<u8> {
    match command {
        Command::Version => b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0".to_vec(),
        Command::DmaMap => words(&[32, 3, 0, 0, 0x10_0000, 0, 0x1000, 0]),
        Command::DmaUnmap => words(&[24, 0, 0x10_0000, 0, 0x1000, 0]),
        Command::DeviceInfo => words(&[16, 0, 0, 0]),
        Command::RegionInfo => words(&[80, 0, 2, 0, 0, 0, 0, 0]),
        Command::RegionIoFds | Command::DirtyPages => words(&[16, 0, 0, 0]),
        Command::IrqInfo => words(&[16, 0, irq::MSIX, 0]),
        Command::SetIrqs => [words(&[23, 2 | 32, irq::MSIX, 0, 3]), vec![1; 3]].concat(),
        Command::RegionRead => words(&[0, 0, region::CONFIG, 64]),
        Command::RegionWrite => words(&[8, 0, 0, 4, 0x1234]),
        Command::DmaRead | Command::DmaWrite => words(&[0, 0, 16, 0]),
        Command::Reset => Vec::new(),
    }
}

pub(crate) fn message(header: Header, payload: &[u8]) -> Vec<u8> {
    [header.encode().as_slice(), payload].concat()
}

pub(crate) fn whole(id: u16, command: Command, payload: &[u8]) -> Vec<u8> {
    message(Header::command(id, command, payload.len()), payload)
}

/// A random message: mostly nearly correct, sometimes noise. With `ends` also messages that end the
/// connection.
pub(crate) fn random(rng: &mut SmallRng, ends: bool) -> Vec<u8> {
    let command = Command::ALL[rng.random_range(0..Command::ALL.len())];
    let mut payload = payload(command);
    for _ in 0..rng.random_range(0..4) {
        if let Some(at) = payload.len().checked_sub(1) {
            payload[rng.random_range(0..=at)] = rng.next_u32() as u8;
        }
    }
    if rng.random_ratio(1, 4) {
        payload.resize(rng.random_range(0..96), rng.next_u32() as u8);
    }
    let mut header = Header::command(rng.next_u32() as u16, command, payload.len());
    if rng.random_ratio(1, 8) {
        header.command = rng.next_u32() as u16 % 20;
    }
    if rng.random_ratio(1, 8) {
        header.flags = rng.next_u32() & 0x30;
    }
    if ends && rng.random_ratio(1, 200) {
        header.flags = rng.next_u32();
    }
    if ends && rng.random_ratio(1, 200) {
        header.size = rng.next_u32() >> rng.random_range(0..32);
    }
    message(header, &payload)
}
