//! Addresses in the image of a module's variables.

/// Bytes of the image that depend on where the module is placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relocation {
    /// Where in the image, and how many bytes.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Address from the module's base, of which the bytes from bit `shift` on are taken.
    pub(super) target: u64,
    pub(super) shift: u32,
}

impl Relocation {
    pub(super) fn apply(&self, image: &mut [u8], base: u64) {
        let address = base.wrapping_add(self.target) >> self.shift;
        let slot = image.get_mut(self.offset..self.offset + self.bytes);
        let bytes = address.to_le_bytes();
        if let (Some(slot), Some(bytes)) = (slot, bytes.get(..self.bytes)) {
            slot.copy_from_slice(bytes);
        }
    }
}
