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

/// Calls of a guest, as the device process checks them: none that names another VM's client
/// reaches the driver, and the VM's limits hold.
///
/// # Panics
/// If one does.
pub fn guest_calls(bytes: &[u8]) {
    turnstile_nvidia_guest::check::trial::calls(bytes);
}

/// Messages of a guest side: what decodes encodes to the same bytes.
///
/// # Panics
/// If it does not.
pub fn guest_messages(bytes: &[u8]) {
    use turnstile_nvidia_guest::proto::{HEADER_BYTES, Message};
    if let Ok(message) = Message::decode(bytes) {
        let encoded = message.encode();
        // The last word of a header is not used.
        assert_eq!(encoded[..HEADER_BYTES - 4], bytes[..HEADER_BYTES - 4]);
        assert_eq!(encoded[HEADER_BYTES..], bytes[HEADER_BYTES..]);
    }
}
