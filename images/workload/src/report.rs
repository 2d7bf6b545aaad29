//! What the guest found: little-endian words, then a text.

use crate::session::Fail;
use core::fmt::{self, Write};
use turnstile_abi::Platform;
use turnstile_abi::boot::BootInfo;

const WORDS: usize = 16;
const TEXT_BYTES: usize = 256;
/// Bytes of a report.
pub const REPORT_BYTES: usize = 8 * WORDS + TEXT_BYTES;

/// How it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet.
    #[default]
    Running = 0,
    /// All was as expected.
    Passed = 1,
    /// A result was wrong or an error occurred; the text has the details.
    Failed = 2,
}

/// The guest's results. Written at intervals, and at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
// FIELDS: a report: one figure each.
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Results compared and found right.
    pub verified: u64,
    /// Results compared and found wrong.
    pub failed: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Tests passed, one bit for each [`crate::Test`].
    pub passed: u64,
    /// The device's error code that ended it, or that a misbehaviour was answered with; 0 for none.
    pub error: u64,
    /// Doorbells written.
    pub doorbells: u64,
    /// Length of the run, in nanoseconds of the guest's clock.
    pub elapsed_ns: u64,
    /// Fences with a measured turnaround: from the doorbell to the guest's observation of the
    /// fence.
    pub fences: u64,
    /// Sum of turnarounds in nanoseconds.
    pub turnaround_ns_sum: u64,
    /// Longest turnaround in nanoseconds.
    pub turnaround_ns_max: u64,
    text: [u8; TEXT_BYTES],
    text_len: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            outcome: Outcome::Running,
            verified: 0,
            failed: 0,
            launches: 0,
            passed: 0,
            error: 0,
            doorbells: 0,
            elapsed_ns: 0,
            fences: 0,
            turnaround_ns_sum: 0,
            turnaround_ns_max: 0,
            text: [0; TEXT_BYTES],
            text_len: 0,
        }
    }
}

impl Report {
    /// What went wrong, empty where nothing did.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.text[..self.text_len]).unwrap_or("(not UTF-8)")
    }

    /// Notes a comparison.
    pub(crate) fn count(&mut self, right: bool) {
        if right {
            self.verified += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Notes a turnaround.
    pub(crate) fn turnaround(&mut self, ns: u64) {
        self.fences += 1;
        self.turnaround_ns_sum += ns;
        self.turnaround_ns_max = self.turnaround_ns_max.max(ns);
    }

    pub(crate) fn end(&mut self, result: &Result<(), Fail>) {
        self.outcome = match result {
            Ok(()) if self.failed == 0 => Outcome::Passed,
            _ => Outcome::Failed,
        };
        if let Err(fail) = result {
            if let Some(code) = fail.code() {
                self.error = u64::from(code);
            }
            // What does not fit is cut off.
            let _ = write!(self, "{fail}");
        }
    }

    pub(crate) fn publish<P: Platform>(&self, platform: &P, boot: &BootInfo) {
        let bytes = self.encode();
        let room = boot.report_bytes.min(REPORT_BYTES as u64) as usize;
        platform.write_bytes(boot.report_gpa, &bytes[..room]);
    }

    /// The bytes that [`Self::decode`] takes.
    pub fn encode(&self) -> [u8; REPORT_BYTES] {
        let words = [
            self.outcome as u64,
            self.verified,
            self.failed,
            self.launches,
            self.passed,
            self.error,
            self.doorbells,
            self.elapsed_ns,
            self.fences,
            self.turnaround_ns_sum,
            self.turnaround_ns_max,
            self.text_len as u64,
        ];
        let mut bytes = [0; REPORT_BYTES];
        for (room, word) in bytes.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        bytes[8 * WORDS..].copy_from_slice(&self.text);
        bytes
    }

    /// Reads a report; `None` for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPORT_BYTES] = bytes.first_chunk()?;
        let word = |i: usize| {
            bytes[8 * i..]
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word))
        };
        let mut text = [0; TEXT_BYTES];
        text.copy_from_slice(&bytes[8 * WORDS..]);
        Some(Self {
            outcome: match word(0) {
                0 => Outcome::Running,
                1 => Outcome::Passed,
                2 => Outcome::Failed,
                _ => return None,
            },
            verified: word(1),
            failed: word(2),
            launches: word(3),
            passed: word(4),
            error: word(5),
            doorbells: word(6),
            elapsed_ns: word(7),
            fences: word(8),
            turnaround_ns_sum: word(9),
            turnaround_ns_max: word(10),
            text,
            text_len: word(11).min(TEXT_BYTES as u64) as usize,
        })
    }
}

impl Write for Report {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.text_len + character.len_utf8();
            let room = self.text.get_mut(self.text_len..end).ok_or(fmt::Error)?;
            character.encode_utf8(room);
            self.text_len = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_encoding() {
        let mut report = Report {
            verified: 7,
            turnaround_ns_max: u64::MAX,
            ..Report::default()
        };
        report.end(&Err(Fail::text("wröng")));
        assert_eq!(report.text(), "wröng");
        assert_eq!(Report::decode(&report.encode()), Some(report));
        assert_eq!(Report::decode(&[0; 8]), None);
        assert_eq!(Report::decode(&[9; REPORT_BYTES]), None);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let mut report = Report::default();
        for _ in 0..100 {
            let _ = report.write_str("äöü");
        }
        assert_eq!(report.text().len(), TEXT_BYTES);
    }
}
