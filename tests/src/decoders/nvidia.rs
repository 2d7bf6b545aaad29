//! Entries of a ring that the vendor's driver writes: context-switch records, numbered.

use turnstile_nvidia::events::{RECORD_BYTES, RawRecord, Sequence};

/// Decodes records one after the other. For any content, numbers of switches only rise, and each
/// record is used or counted as unused.
///
/// # Panics
/// If a number does not rise, or a record is lost without being counted.
pub fn switch_records(bytes: &[u8]) {
    let (mut sequence, mut before, mut used) = (Sequence::default(), None, 0);
    let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
    for record in records {
        if let Some(switch) = sequence.take(&RawRecord::decode(record)) {
            assert!(before < Some(switch.seq));
            before = Some(switch.seq);
            used += 1;
        }
    }
    assert_eq!(used + sequence.losses().unused, records.len() as u64);
}
