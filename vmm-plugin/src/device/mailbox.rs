//! The mailbox: one request at a time, answered later.
//!
//! ```text
//!   Idle --start--> Busy --finish--> Done | Refused --start--> Busy
//! ```

use turnstile_abi::regs::{self, mailbox_status};
use turnstile_abi::{ErrorCode, MAILBOX_ARGS, MAILBOX_RESULTS};

const ARGS_END: u64 = regs::MAILBOX_ARG + 8 * MAILBOX_ARGS as u64;
const RESULTS_END: u64 = regs::MAILBOX_RESULT + 8 * MAILBOX_RESULTS as u64;
const TEXT_BYTES: usize = regs::MAILBOX_TEXT_BYTES as usize;
const TEXT_END: u64 = regs::MAILBOX_TEXT + regs::MAILBOX_TEXT_BYTES;

#[derive(Debug)]
pub(super) struct Mailbox {
    /// Number of the last request started.
    id: u64,
    op: u32,
    status: u32,
    error: ErrorCode,
    args: [u64; MAILBOX_ARGS],
    results: [u64; MAILBOX_RESULTS],
    text: [u8; TEXT_BYTES],
    text_len: usize,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            id: 0,
            op: 0,
            status: mailbox_status::IDLE,
            error: ErrorCode::None,
            args: [0; MAILBOX_ARGS],
            results: [0; MAILBOX_RESULTS],
            text: [0; TEXT_BYTES],
            text_len: 0,
        }
    }
}

impl Mailbox {
    /// Takes the arguments for a request; returns its number and the arguments. `None` while
    /// another request is in progress: that one continues, and the error register reads
    /// [`ErrorCode::Busy`] until it is finished.
    pub(super) fn start(&mut self, op: u32) -> Option<(u64, [u64; MAILBOX_ARGS])> {
        if self.status == mailbox_status::BUSY {
            self.error = ErrorCode::Busy;
            return None;
        }
        self.id += 1;
        self.op = op;
        self.status = mailbox_status::BUSY;
        self.error = ErrorCode::None;
        Some((self.id, self.args))
    }

    /// Latches an answer. Returns whether it was for the request under way.
    pub(super) fn finish(
        &mut self,
        id: u64,
        error: ErrorCode,
        text: &str,
        results: [u64; MAILBOX_RESULTS],
    ) -> bool {
        if self.status != mailbox_status::BUSY || id != self.id {
            return false;
        }
        let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
        self.text = [0; TEXT_BYTES];
        self.text[..text.len()].copy_from_slice(text.as_bytes());
        self.text_len = text.len();
        self.error = error;
        (self.status, self.results) = match error {
            ErrorCode::None => (mailbox_status::DONE, results),
            _ => (mailbox_status::REFUSED, [0; MAILBOX_RESULTS]),
        };
        true
    }

    /// Answers the request under way with [`ErrorCode::DeviceLost`]. Returns whether there was one.
    pub(super) fn lose(&mut self) -> bool {
        let lost = ErrorCode::DeviceLost;
        self.finish(self.id, lost, lost.text(), [0; MAILBOX_RESULTS])
    }

    pub(super) fn word(&self, offset: u64) -> u32 {
        let half = |words: &[u64], at: u64| (words[at as usize / 8] >> (at % 8 * 8)) as u32;
        match offset {
            regs::MAILBOX_OP => self.op,
            regs::MAILBOX_STATUS => self.status,
            regs::MAILBOX_ERROR => self.error as u32,
            regs::MAILBOX_TEXT_LEN => self.text_len as u32,
            regs::MAILBOX_ARG..ARGS_END => half(&self.args, offset - regs::MAILBOX_ARG),
            regs::MAILBOX_RESULT..RESULTS_END => half(&self.results, offset - regs::MAILBOX_RESULT),
            regs::MAILBOX_TEXT..TEXT_END => {
                let at = (offset - regs::MAILBOX_TEXT) as usize;
                self.text[at..]
                    .first_chunk()
                    .map_or(0, |bytes| u32::from_le_bytes(*bytes))
            }
            _ => 0,
        }
    }

    /// Sets half of an argument. Returns whether `offset` is one.
    pub(super) fn set_arg(&mut self, offset: u64, value: u32) -> bool {
        if !(regs::MAILBOX_ARG..ARGS_END).contains(&offset) {
            return false;
        }
        let at = offset - regs::MAILBOX_ARG;
        let (word, shift) = (&mut self.args[at as usize / 8], at % 8 * 8);
        *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
        true
    }
}
