//! Carving up a range of addresses, of guest memory or of a GPU allocation.

use crate::DriverError;

/// Allocates pieces of a range, upwards; they are freed all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bump {
    start: u64,
    next: u64,
    end: u64,
}

impl Bump {
    /// Over `start..start + bytes`.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            start,
            next: start,
            end: start.saturating_add(bytes),
        }
    }

    /// `bytes` at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`].
    pub fn take(&mut self, bytes: u64, align: u64) -> Result<u64, DriverError> {
        let at = self
            .next
            .checked_next_multiple_of(align)
            .ok_or(DriverError::OutOfMemory)?;
        match at.checked_add(bytes) {
            Some(next) if next <= self.end => {
                self.next = next;
                Ok(at)
            }
            _ => Err(DriverError::OutOfMemory),
        }
    }

    /// Bytes left.
    pub fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Takes all pieces back.
    pub fn reset(&mut self) {
        self.next = self.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_end_with_the_range() {
        let mut bump = Bump::new(0x1001, 0x1fff);
        assert_eq!(bump.take(3, 64), Ok(0x1040));
        assert_eq!(bump.take(8, 8), Ok(0x1048));
        assert_eq!(bump.take(0x1000, 0x1000), Ok(0x2000));
        assert_eq!(bump.left(), 0);
        assert_eq!(bump.take(1, 1), Err(DriverError::OutOfMemory));
        assert_eq!(bump.take(u64::MAX, 1), Err(DriverError::OutOfMemory));
        bump.reset();
        assert_eq!(bump.take(1, 1), Ok(0x1001));
        assert_eq!(
            Bump::new(u64::MAX, 1).take(1, 4096),
            Err(DriverError::OutOfMemory)
        );
    }
}
