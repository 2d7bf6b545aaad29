//! Pages of the GPU's registers, mapped for reading.
//!
//! The driver maps them for a privileged process (class NV01_MEMORY_LOCAL_PRIVILEGED is the GPU's
//! first BAR). The driver's own call to read a register takes 0.2 ms; a mapped one 1 us.

use crate::clock::PAGE_BYTES;
use crate::rm::{Handle, RmClient, RmError};
use crate::sys::abi::CLASS_REGISTERS;
use crate::sys::{Caching, SharedPages};

/// Why registers are not mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistersError {
    /// The driver does not map them.
    #[error(transparent)]
    Rm(#[from] RmError),
    /// They are not what they should be.
    #[error("The GPU's registers are mapped, but {0}")]
    Unlike(&'static str),
}

/// The upper half of a register that may not be read. SOURCE: measured: 0xbadf5040 and
/// 0xbadf1100.
const REFUSED: u32 = 0xbadf;

/// The value of a word, if it is one.
pub(crate) fn readable(word: u32) -> Option<u32> {
    let gone = word == u32::MAX;
    (word >> 16 != REFUSED && !gone).then_some(word)
}

/// Why a setting that was readable cannot be this word. SOURCE: PCI Express Base Specification,
/// 2.3.2, for a device that is gone; 0xbad0 to 0xbadf begin what is read in place of a register.
pub(crate) fn unreadable(word: u32) -> Option<String> {
    match word {
        u32::MAX => Some(
            "Its registers read as all ones: it is off the bus (Xid 79 in the kernel's log)".into(),
        ),
        _ if word >> 20 == REFUSED >> 4 => Some(format!(
            "Its registers read as {word:#x}: they may not be read"
        )),
        _ => None,
    }
}

/// All registers of a client's GPU.
#[derive(Debug)]
pub(crate) struct Bar<'a> {
    client: &'a RmClient,
    registers: Handle,
}

impl<'a> Bar<'a> {
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn open(client: &'a RmClient) -> Result<Self, RmError> {
        let device = client.device();
        let registers = client.alloc_plain("map registers", device, CLASS_REGISTERS)?;
        Ok(Self { client, registers })
    }

    /// Maps the page of a register.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn page(&self, register: u32) -> Result<Page, RmError> {
        // CAST: a page is small.
        let from = register - register % PAGE_BYTES as u32;
        let range = (from.into(), PAGE_BYTES);
        let pages = self.client.map_gpu(self.registers, range, Caching::Own)?;
        Ok(Page { pages, from })
    }
}

/// One page.
#[derive(Debug)]
pub(crate) struct Page {
    pages: SharedPages,
    from: u32,
}

impl Page {
    /// Reads a register; none if it is elsewhere or may not be read.
    pub(crate) fn read(&self, register: u32) -> Option<u32> {
        self.word(register).and_then(readable)
    }

    /// What is read of a register; none if it is elsewhere.
    pub(crate) fn word(&self, register: u32) -> Option<u32> {
        let at = register.checked_sub(self.from)?;
        // CAST: within a page.
        self.pages.read(at as usize).map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_that_may_not_be_read_has_no_value() {
        assert_eq!(readable(0xbadf_5040), None);
        assert_eq!(readable(u32::MAX), None, "the GPU is gone");
        assert_eq!(readable(0x0124_2001), Some(0x0124_2001));
    }

    #[test]
    fn words_in_place_of_a_setting_are_reasons() {
        assert!(unreadable(u32::MAX).unwrap().contains("off the bus"));
        for word in [0xbad0_0100, 0xbadf_5040, 0xbad1_1234] {
            assert!(unreadable(word).unwrap().contains(&format!("{word:#x}")));
        }
        assert_eq!(unreadable(2), None);
        assert_eq!(unreadable(0xbae0_0000), None);
    }
}
