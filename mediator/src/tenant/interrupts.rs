//! A VM's interrupt vectors: eventfds of its VMM.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::gpu::Interrupts;

/// Why a descriptor was not taken as an interrupt vector.
#[derive(Debug, thiserror::Error)]
pub enum InterruptsError {
    /// It is something else, on which a write might block or do harm.
    #[error("Descriptor for vector {vector} is {kind}, not an eventfd")]
    NotAnEventfd {
        /// Which vector.
        vector: usize,
        /// What it is.
        kind: String,
    },
    /// The kernel would not tell.
    #[error("Looking at the descriptor for vector {vector} failed")]
    Inspect {
        /// Which vector.
        vector: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// One eventfd per vector; the VMM has tied each to an interrupt of its VM.
#[derive(Debug)]
pub struct EventfdInterrupts {
    vectors: Vec<File>,
}

impl EventfdInterrupts {
    /// Takes the VMM's descriptors, in the order of vectors.
    ///
    /// # Errors
    /// When one of them is no eventfd.
    pub fn new(fds: Vec<OwnedFd>) -> Result<Self, InterruptsError> {
        let mut vectors = Vec::with_capacity(fds.len());
        for (vector, fd) in fds.into_iter().enumerate() {
            let inspect = |source: io::Error| InterruptsError::Inspect { vector, source };
            let kind =
                std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(inspect)?;
            if kind.as_os_str() != "anon_inode:[eventfd]" {
                let kind = kind.display().to_string();
                return Err(InterruptsError::NotAnEventfd { vector, kind });
            }
            let flags = fcntl_getfl(&fd).map_err(|errno| inspect(errno.into()))?;
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(|errno| inspect(errno.into()))?;
            vectors.push(File::from(fd));
        }
        Ok(Self { vectors })
    }
}

impl EventfdInterrupts {
    /// The eventfds, in the order of vectors; writing to them does not block.
    pub fn into_files(self) -> Vec<File> {
        self.vectors
    }
}

impl Interrupts for EventfdInterrupts {
    fn raise(&self, vector: u16) {
        if let Some(mut file) = self.vectors.get(usize::from(vector)) {
            // Full (WouldBlock) means that the interrupt is pending many times over: nothing is lost.
            let _ = file.write(&1u64.to_ne_bytes());
        }
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let copy = |file: &File| file.try_clone().map(OwnedFd::from);
        self.vectors.iter().map(copy).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn raising_signals_the_vector_and_no_other() {
        let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let (a, b) = (event(), event());
        let mut views = [
            File::from(a.try_clone().unwrap()),
            File::from(b.try_clone().unwrap()),
        ];
        let interrupts = EventfdInterrupts::new(vec![a, b]).unwrap();
        interrupts.raise(1);
        interrupts.raise(1);
        interrupts.raise(9);
        let mut count = [0; 8];
        assert!(views[0].read(&mut count).is_err());
        views[1].read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (reader, _writer) = io::pipe().unwrap();
        let refused = EventfdInterrupts::new(vec![reader.into()]).unwrap_err();
        assert!(matches!(
            refused,
            InterruptsError::NotAnEventfd { vector: 0, .. }
        ));
    }
}
