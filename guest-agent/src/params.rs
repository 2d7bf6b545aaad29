//! Kernel parameters, laid out as the PTX `.param` space: each at a multiple of its size.

/// Most bytes of parameters that this driver passes with a launch. Kernels may take more.
pub const PARAMS_BYTES_MAX: usize = 256;

/// Parameters of a launch, in the kernel's order.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    bytes: [u8; PARAMS_BYTES_MAX],
    len: usize,
}

impl Params {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            bytes: [0; PARAMS_BYTES_MAX],
            len: 0,
        }
    }

    /// Adds a 32-bit value.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.put(&value.to_le_bytes())
    }

    /// Adds a 64-bit value, or an address.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.put(&value.to_le_bytes())
    }

    /// Adds a 32-bit floating-point value.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.u32(value.to_bits())
    }

    /// Bytes, padding included. Parameters that do not fit count as one byte more than the maximum,
    /// which no kernel takes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.min(PARAMS_BYTES_MAX)]
    }

    fn put(mut self, value: &[u8]) -> Self {
        let at = self.len.next_multiple_of(value.len());
        match self.bytes.get_mut(at..at + value.len()) {
            Some(room) => {
                room.copy_from_slice(value);
                self.len = at + value.len();
            }
            None => self.len = PARAMS_BYTES_MAX + 1,
        }
        self
    }
}

impl Default for Params {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_aligned_to_its_size() {
        let params = Params::new().f32(1.0).u64(2).u32(3);
        let mut expected = [0; 20];
        expected[..4].copy_from_slice(&1f32.to_le_bytes());
        expected[8] = 2;
        expected[16] = 3;
        assert_eq!(params.bytes(), expected);
    }

    #[test]
    fn too_many_are_seen_by_the_length() {
        let params = (0..40).fold(Params::new(), |params, i| params.u64(i));
        assert_eq!(params.len(), PARAMS_BYTES_MAX + 1);
        assert_eq!(params.bytes().len(), PARAMS_BYTES_MAX);
    }
}
