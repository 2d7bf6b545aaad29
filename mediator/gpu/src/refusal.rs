//! What a GPU refuses, and the limit that an operator sets.

use turnstile_abi::{CHUNK_BYTES, ErrorCode};

/// A refusal for the guest: the code, and a text where the code's own is not enough.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{detail}", code.text(), if detail.is_empty() { "" } else { ": " })]
pub struct Refusal {
    /// The code that the guest sees.
    pub code: ErrorCode,
    /// More of it, or empty.
    pub detail: String,
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            detail: String::new(),
        }
    }
}

/// Refuses an allocation beyond the limit that an operator set. Memory that the tenant already has
/// is left to it.
pub fn within_limit(held_bytes: u64, bytes: u64, max_bytes: Option<u64>) -> Result<(), Refusal> {
    // As the GPU rounds it up.
    let chunks = bytes.div_ceil(CHUNK_BYTES).saturating_mul(CHUNK_BYTES);
    match max_bytes {
        Some(max) if held_bytes.saturating_add(chunks) > max => Err(Refusal {
            code: ErrorCode::OutOfGpuMemory,
            detail: format!("{} bytes are left", max.saturating_sub(held_bytes)),
        }),
        _ => Ok(()),
    }
}

/// Why a GPU does not take a program as a tenant, or its memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramRefusal {
    /// It takes none.
    #[error(
        "this GPU is shared by VMs alone: programs need an NVIDIA GPU (turnstile serve --gpu nvidia; turnstile doctor says what is missing)"
    )]
    Unsupported,
    /// Memory of programs does not move.
    #[error("this GPU does not move memory of programs")]
    Immovable,
    /// It does not take this one, or none now.
    #[error("{0}")]
    Refused(String),
}
