//! Messages to frames and back, with the checks of a frame.
//!
//! In: a message, or the bytes of a frame and the number of descriptors that arrived with it. Out:
//! the frame; or the message, or why the frame is invalid. Both sides call it for each message.

use crate::{
    CHUNK_BYTES_MAX, ChunkNumber, Denial, FRAME_BYTES, GRANULE_BYTES, Pin, ToDaemon, ToLibrary,
};

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is wrong.
    #[error("a frame has {FRAME_BYTES} bytes, this one {0}")]
    Length(usize),
    /// The first word is unknown.
    #[error("there is no frame of kind {0:#x}")]
    Kind(u64),
    /// An unused word is not zero.
    #[error("a word that is not used is {0:#x}")]
    Unused(u64),
    /// A chunk's number is invalid.
    #[error("chunks are numbered from 1 on")]
    Number,
    /// A chunk's size is invalid.
    #[error("a chunk of {0} bytes is not one of whole granules up to {CHUNK_BYTES_MAX}")]
    Bytes(u64),
    /// A reason is unknown.
    #[error("there is no reason {0}")]
    Reason(u64),
    /// The number of descriptors is wrong.
    #[error("it came with {got} descriptors instead of {expected}")]
    Descriptors {
        /// Number that arrived.
        got: usize,
        /// Number that the message has.
        expected: usize,
    },
}

type Words = [u64; 4];

fn words(frame: &[u8]) -> Result<Words, FrameError> {
    let frame: &[u8; FRAME_BYTES] = frame
        .try_into()
        .map_err(|_| FrameError::Length(frame.len()))?;
    let (words, _) = frame.as_chunks::<8>();
    Ok(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}

fn bytes(words: Words) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    for (to, word) in frame.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    frame
}

fn chunk(number: u64) -> Result<ChunkNumber, FrameError> {
    (number > 0).then_some(number).ok_or(FrameError::Number)
}

fn size(bytes: u64) -> Result<u64, FrameError> {
    let is = bytes > 0 && bytes <= CHUNK_BYTES_MAX && bytes.is_multiple_of(GRANULE_BYTES);
    is.then_some(bytes).ok_or(FrameError::Bytes(bytes))
}

fn unused(words: &[u64]) -> Result<(), FrameError> {
    let set = words.iter().find(|word| **word != 0);
    set.map_or(Ok(()), |word| Err(FrameError::Unused(*word)))
}

fn one_of<T: Copy>(all: &[T], at: u64) -> Result<T, FrameError> {
    let found = usize::try_from(at).ok().and_then(|at| all.get(at));
    found.copied().ok_or(FrameError::Reason(at))
}

fn belongs<T>(message: T, expected: usize, got: usize) -> Result<T, FrameError> {
    if got == expected {
        Ok(message)
    } else {
        Err(FrameError::Descriptors { got, expected })
    }
}

impl ToDaemon {
    /// Number of the message's descriptors.
    pub const fn descriptors(&self) -> usize {
        matches!(self, Self::Made { .. }) as usize
    }

    /// The message as a frame.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        bytes(match *self {
            Self::Hello { version } => [1, version, 0, 0],
            Self::Ask { chunk, bytes } => [2, chunk, bytes, 0],
            Self::Made { chunk, bytes } => [3, chunk, bytes, 0],
            Self::Spared { chunk } => [4, chunk, 0, 0],
            Self::Freed { chunk } => [5, chunk, 0, 0],
            Self::Kept { chunk } => [6, chunk, 0, 0],
            // CAST: the reasons are numbered.
            Self::Pinned { reason, bytes } => [7, reason as u64, bytes, 0],
            Self::Released { chunk } => [8, chunk, 0, 0],
            Self::Restored { chunk } => [9, chunk, 0, 0],
            Self::Failed { chunk, result } => [10, chunk, result.into(), 0],
            Self::Info { question } => [11, question, 0, 0],
            Self::Wants {} => [12, 0, 0, 0],
            Self::Take { chunk, bytes } => [13, chunk, bytes, 0],
        })
    }

    /// The message of a frame that arrived with `descriptors` descriptors.
    ///
    /// # Errors
    /// If the frame is invalid.
    pub fn decode(frame: &[u8], descriptors: usize) -> Result<Self, FrameError> {
        let [kind, a, b, c] = words(frame)?;
        unused(&[c])?;
        let alone = |message: Self| unused(&[b]).map(|()| message);
        let message = match kind {
            1 => alone(Self::Hello { version: a })?,
            2 => Self::Ask {
                chunk: chunk(a)?,
                bytes: size(b)?,
            },
            3 => Self::Made {
                chunk: chunk(a)?,
                bytes: size(b)?,
            },
            4 => alone(Self::Spared { chunk: chunk(a)? })?,
            5 => alone(Self::Freed { chunk: chunk(a)? })?,
            6 => alone(Self::Kept { chunk: chunk(a)? })?,
            7 => Self::Pinned {
                reason: one_of(&Pin::ALL, a)?,
                bytes: if b <= CHUNK_BYTES_MAX {
                    b
                } else {
                    return Err(FrameError::Bytes(b));
                },
            },
            8 => alone(Self::Released { chunk: chunk(a)? })?,
            9 => alone(Self::Restored { chunk: chunk(a)? })?,
            10 => Self::Failed {
                chunk: chunk(a)?,
                result: u32::try_from(b).map_err(|_| FrameError::Reason(b))?,
            },
            11 => alone(Self::Info {
                question: chunk(a)?,
            })?,
            12 => unused(&[a, b]).map(|()| Self::Wants {})?,
            13 => Self::Take {
                chunk: chunk(a)?,
                bytes: size(b)?,
            },
            _ => return Err(FrameError::Kind(kind)),
        };
        belongs(message, message.descriptors(), descriptors)
    }
}

impl ToLibrary {
    /// Number of the message's descriptors.
    pub const fn descriptors(&self) -> usize {
        matches!(self, Self::Restore { .. }) as usize
    }

    /// The message as a frame.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        bytes(match *self {
            Self::Welcome {
                version,
                limit_bytes,
            } => [33, version, limit_bytes, 0],
            Self::Granted { chunk } => [34, chunk, 0, 0],
            // CAST: the reasons are numbered.
            Self::Denied { chunk, reason } => [35, chunk, reason as u64, 0],
            Self::Memory {
                question,
                free_bytes,
                total_bytes,
            } => [36, question, free_bytes, total_bytes],
            Self::Release { chunk } => [37, chunk, 0, 0],
            Self::Restore { chunk } => [38, chunk, 0, 0],
        })
    }

    /// The message of a frame that arrived with `descriptors` descriptors.
    ///
    /// # Errors
    /// If the frame is invalid.
    pub fn decode(frame: &[u8], descriptors: usize) -> Result<Self, FrameError> {
        let [kind, a, b, c] = words(frame)?;
        let message = match kind {
            33 => Self::Welcome {
                version: a,
                limit_bytes: b,
            },
            34 => Self::Granted { chunk: chunk(a)? },
            35 => Self::Denied {
                chunk: chunk(a)?,
                reason: one_of(&Denial::ALL, b)?,
            },
            36 => Self::Memory {
                question: chunk(a)?,
                free_bytes: b,
                total_bytes: c,
            },
            37 => Self::Release { chunk: chunk(a)? },
            38 => Self::Restore { chunk: chunk(a)? },
            _ => return Err(FrameError::Kind(kind)),
        };
        match kind {
            33 | 35 => unused(&[c])?,
            34 | 37 | 38 => unused(&[b, c])?,
            _ => {}
        }
        belongs(message, message.descriptors(), descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VERSION;
    use proptest::prelude::*;

    /// Words that are often valid.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            0_u64..48,
            (0_u64..64).prop_map(|granules| granules * GRANULE_BYTES),
            Just(CHUNK_BYTES_MAX),
            Just(CHUNK_BYTES_MAX + GRANULE_BYTES),
            any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_the_same(
            kind in 0_u64..48, rest in [word(), word(), word()], fds in 0_usize..3,
        ) {
            let frame = bytes([kind, rest[0], rest[1], rest[2]]);
            if let Ok(message) = ToDaemon::decode(&frame, fds) {
                prop_assert_eq!(message.encode(), frame);
                prop_assert_eq!(message.descriptors(), fds);
                prop_assert!(ToLibrary::decode(&frame, fds).is_err());
            }
            if let Ok(message) = ToLibrary::decode(&frame, fds) {
                prop_assert_eq!(message.encode(), frame);
                prop_assert_eq!(message.descriptors(), fds);
            }
        }

        #[test]
        fn anything_is_decoded_or_refused(frame in prop::collection::vec(any::<u8>(), 0..80)) {
            let decoded = ToDaemon::decode(&frame, 0);
            prop_assert!(frame.len() == FRAME_BYTES || decoded == Err(FrameError::Length(frame.len())));
            let _ = ToLibrary::decode(&frame, 0);
        }
    }

    #[test]
    fn all_are_sent_and_received() {
        let (chunk, bytes) = (7, 3 * GRANULE_BYTES);
        let mut to_daemon = vec![
            ToDaemon::Hello { version: VERSION },
            ToDaemon::Ask { chunk, bytes },
            ToDaemon::Made { chunk, bytes },
            ToDaemon::Spared { chunk },
            ToDaemon::Freed { chunk },
            ToDaemon::Kept { chunk },
            ToDaemon::Released { chunk },
            ToDaemon::Restored { chunk },
            ToDaemon::Failed { chunk, result: 2 },
            ToDaemon::Info { question: 8 },
            ToDaemon::Wants {},
            ToDaemon::Take { chunk, bytes },
        ];
        to_daemon.extend(Pin::ALL.map(|reason| ToDaemon::Pinned { reason, bytes: 5 }));
        for message in to_daemon {
            let again = ToDaemon::decode(&message.encode(), message.descriptors());
            assert_eq!(again, Ok(message));
        }
        let mut to_library = vec![
            ToLibrary::Welcome {
                version: VERSION,
                limit_bytes: 9,
            },
            ToLibrary::Granted { chunk },
            ToLibrary::Memory {
                question: 8,
                free_bytes: 1,
                total_bytes: 2,
            },
            ToLibrary::Release { chunk },
            ToLibrary::Restore { chunk },
        ];
        to_library.extend(Denial::ALL.map(|reason| ToLibrary::Denied { chunk, reason }));
        for message in to_library {
            let again = ToLibrary::decode(&message.encode(), message.descriptors());
            assert_eq!(again, Ok(message));
        }
    }

    #[test]
    fn messages_that_no_library_sends_are_refused() {
        let refused = |words: Words| ToDaemon::decode(&bytes(words), 0).unwrap_err();
        assert_eq!(refused([2, 0, GRANULE_BYTES, 0]), FrameError::Number);
        assert_eq!(refused([2, 1, 0, 0]), FrameError::Bytes(0));
        assert_eq!(refused([2, 1, 4096, 0]), FrameError::Bytes(4096));
        assert_eq!(refused([2, 1, u64::MAX, 0]), FrameError::Bytes(u64::MAX));
        assert_eq!(refused([7, 10, 0, 0]), FrameError::Reason(10));
        assert_eq!(refused([4, 1, 2, 0]), FrameError::Unused(2));
        assert_eq!(refused([12, 1, 0, 0]), FrameError::Unused(1));
        assert_eq!(refused([13, 1, 0, 0]), FrameError::Bytes(0));
        assert_eq!(refused([14, 1, 0, 0]), FrameError::Kind(14));
        let made = [3, 1, GRANULE_BYTES, 0];
        let (got, expected) = (0, 1);
        assert_eq!(refused(made), FrameError::Descriptors { got, expected });
    }
}
