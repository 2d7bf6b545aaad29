//! The GPU's own log of context switches.
//!
//! The driver writes a ring of records and a header (`get`, `put`, counts) into memory that is
//! mapped here for reading. A control reports to the driver up to where the ring was read. With the
//! policy "keep the oldest" it never overwrites a record between `get` and `put`, so these do not
//! change while they are read. Records that find no room are dropped and counted.
//!
//! # Losses
//! Records carry a 16-bit number that counts up by one per record, dropped ones included (SOURCE:
//! `fecs_event_list.c`: `seqNo++` per record, `+= dropCount` for records that the GPU itself lost).
//! A jump is a loss; its length is known modulo 65,536. A ring that is found full has lost records
//! after its last one, which no number shows before the next record: [`EventLog::read`] reports
//! this. The header's own count of drops stays zero under this policy (measured).

use turnstile_accounting::Moment;

use super::rm::{Handle, RmClient, RmError};
use super::sys::SharedPages;
use super::sys::abi;
use super::version::DriverAbi;

/// Bytes from one record to the next, chosen here: room for a header of 8 bytes and
/// [`PAYLOAD_BYTES`] (measured with 40).
pub const RECORD_BYTES: usize = 40;
/// NV_EVENT_BUFFER_FECS_RECORD_V2. SOURCE: `class/cl90cdfecs.h`.
const PAYLOAD_BYTES: u32 = 24;

/// Records in the ring: at 25,000 switches a second (two records each) it lasts 1.3 s between two
/// reads.
const RECORDS: u32 = 65_536;

/// Records that are read before that is reported to the driver, which saves a call of 10 us for
/// each reading (measured).
const UNREPORTED_MAX: u32 = RECORDS / 16;

const HEADER_BYTES: u64 = 4096;

/// What happened to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was scheduled in: it runs as soon as its state is restored.
    Active,
    /// It was scheduled out, and its state is in memory. It did not run while that was saved.
    Saved,
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRecord {
    /// Number in the log; a jump is a loss of records.
    pub seq: u64,
    /// Time in nanoseconds of the wall clock.
    pub at: Moment,
    /// Process that owns the context.
    pub pid: u32,
    /// The context, unique in its GPU for as long as it lives.
    pub context: u32,
    /// What happened.
    pub change: Change,
}

/// Why bytes are not a record that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Another type of record.
    #[error("Record type {0} is not a context switch of version 2")]
    Type(u16),
    /// A tag that was not requested.
    #[error("Tag {0} is neither active nor saved")]
    Tag(u8),
}

/// A record as it is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// Low bits of the number.
    pub seq: u16,
    /// Time of the switch.
    pub at: Moment,
    /// Process that owns the context.
    pub pid: u32,
    /// The context.
    pub context: u32,
    /// What happened, or why the record is not used.
    pub change: Result<Change, DecodeError>,
}

/// SOURCE: `cl90cdtypes.h`: NV_EVENT_BUFFER_RECORD_TYPE_FECS_CTX_SWITCH_V2.
const TYPE_SWITCH_V2: u16 = 2;
/// SOURCE: `cl90cdfecs.h`: NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START; measured.
const TAG_ACTIVE: u8 = 6;
/// SOURCE: `cl90cdfecs.h`: NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_END; measured.
const TAG_SAVED: u8 = 7;

impl RawRecord {
    /// Reads the fields. Every record of the ring has a number, including records that are not
    /// used.
    ///
    /// SOURCE: facts of `cl90cdtypes.h`, `cl90cdfecs.h`: type u16 at 0; tag u8 at 8, vmid u8, seqno
    /// u16 at 10, context u32 at 12; pid u32 at 16, reserved u16, two MIG ids, time stamp u64 at
    /// 24.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let change = match (u16_at(0), bytes[8]) {
            (TYPE_SWITCH_V2, TAG_ACTIVE) => Ok(Change::Active),
            (TYPE_SWITCH_V2, TAG_SAVED) => Ok(Change::Saved),
            (TYPE_SWITCH_V2, tag) => Err(DecodeError::Tag(tag)),
            (other, _) => Err(DecodeError::Type(other)),
        };
        Self {
            seq: u16_at(10),
            at: Moment(u64_at(24)),
            pid: u32_at(16),
            context: u32_at(12),
            change,
        }
    }
}

/// Counts of records that were lost or not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that were numbered and did not arrive, at least.
    pub missing: u64,
    /// Records that are not used; they are numbered like the others.
    pub unused: u64,
}

/// Restores the high bits of the records' numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequence {
    /// Low bits that the next record should have.
    expected: Option<u16>,
    /// Number of the next record that is used; the others get none.
    next: u64,
    losses: Losses,
}

impl Sequence {
    /// Takes the next record of the ring. Returns its switch with the full number, if it is used.
    pub fn take(&mut self, raw: &RawRecord) -> Option<SwitchRecord> {
        let expected = *self.expected.get_or_insert(raw.seq);
        let missing = u64::from(raw.seq.wrapping_sub(expected));
        self.expected = Some(raw.seq.wrapping_add(1));
        self.losses.missing += missing;
        self.next += missing;
        let Ok(change) = raw.change else {
            self.losses.unused += 1;
            return None;
        };
        let seq = self.next;
        self.next += 1;
        Some(SwitchRecord {
            seq,
            at: raw.at,
            pid: raw.pid,
            context: raw.context,
            change,
        })
    }

    /// What was lost so far.
    pub const fn losses(&self) -> Losses {
        self.losses
    }
}

/// Header of the ring. SOURCE: `cl90cdtypes.h`: NV_EVENT_BUFFER_HEADER.
mod header {
    pub(super) const PUT: usize = 4;
    pub(super) const DROPPED: usize = 16;
}

/// The context-switch log of one GPU, of all users' processes.
#[derive(Debug)]
pub struct EventLog {
    buffer: Handle,
    header: SharedPages,
    records: SharedPages,
    get: u32,
    /// Position up to which the driver counts records as read.
    reported: u32,
    sequence: Sequence,
}

impl EventLog {
    /// Makes a log and starts it. Needs root. The log is freed with the client, or by
    /// [`Self::close`].
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn start(client: &RmClient, driver: &DriverAbi) -> Result<Self, RmError> {
        let record_bytes = u64::from(RECORDS) * RECORD_BYTES as u64;
        let owner = client.client();
        let mut params = abi::MemoryParams::read_only(HEADER_BYTES);
        let header_memory = client.alloc("make the log's header", owner, &mut params)?;
        let mut params = abi::MemoryParams::read_only(record_bytes);
        let record_memory = client.alloc("make the log's ring", owner, &mut params)?;
        let mut params = abi::EventBufferParams {
            record_size: RECORD_BYTES as u32,
            record_count: RECORDS,
            subdevice: client.subdevice().0,
            header_memory: header_memory.0,
            record_memory: record_memory.0,
            ..Default::default()
        };
        let buffer = client.alloc("make an event buffer", owner, &mut params)?;
        let header = client.map(owner, header_memory, HEADER_BYTES)?;
        let records = client.map(owner, record_memory, record_bytes)?;
        let mut bind = abi::BindEventsParams {
            event_buffer: buffer.0,
            record_size: PAYLOAD_BYTES,
            // NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD_SIMPLE: contexts active and saved. SOURCE:
            // `ctrl2080gr.h`. The driver gives more to kernel clients alone (`fecs_event_list.c`:
            // `bSelectLOD = bKernel`; measured: the same tags at all levels).
            level_of_detail: 1,
            event_filter: u32::MAX,
            all_users: 1,
            ..Default::default()
        };
        client.control(
            "bind context switches",
            client.subdevice(),
            driver.bind_events,
            &mut bind,
        )?;
        // NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_OLDEST. SOURCE: `ctrl90cd.h`.
        let mut enable = abi::EnableEventsParams {
            enable: 1,
            flags: 1,
            ..Default::default()
        };
        client.control("enable events", buffer, abi::EVENTS_ENABLE, &mut enable)?;
        Ok(Self {
            buffer,
            header,
            records,
            get: 0,
            reported: 0,
            sequence: Sequence::default(),
        })
    }

    /// Appends all records until now to `records`, oldest first. Returns whether that is all of
    /// them: if not, the log has a hole after the last one.
    ///
    /// # Errors
    /// If the driver refuses the calls.
    pub fn read(
        &mut self,
        client: &RmClient,
        records: &mut Vec<SwitchRecord>,
    ) -> Result<bool, RmError> {
        // Without this the driver moves records from the GPU's buffer 30 times a second. SOURCE:
        // `fecs_event_list.c`.
        client.control_empty("flush events", self.buffer, abi::EVENTS_FLUSH)?;
        self.read_shown(client, records)
    }

    /// The same for records that the driver has moved to the ring by itself, which takes 30 ms at
    /// most. Saves the call that flushes.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub(crate) fn read_shown(
        &mut self,
        client: &RmClient,
        records: &mut Vec<SwitchRecord>,
    ) -> Result<bool, RmError> {
        let put = self.shown();
        if put == self.get {
            return Ok(true);
        }
        // SOURCE: `ctrl90cd.h`: "when GET==PUT+1, the fifo is full".
        let full = (put + 1) % RECORDS == self.reported;
        while self.get != put {
            let at = self.get as usize * RECORD_BYTES;
            // PANIC: `get` < RECORDS, and the mapping holds them all.
            let bytes = self.records.read(at).expect("a record of the ring");
            records.extend(self.sequence.take(&RawRecord::decode(&bytes)));
            self.get = (self.get + 1) % RECORDS;
        }
        if full || self.unreported() >= UNREPORTED_MAX {
            let mut params = abi::UpdateGetParams {
                record_get: self.get,
                vardata_get: 0,
            };
            let command = abi::EVENTS_UPDATE_GET;
            client.control("consume events", self.buffer, command, &mut params)?;
            self.reported = self.get;
        }
        Ok(!full)
    }

    /// Where the driver writes next, by the records in the ring.
    fn shown(&self) -> u32 {
        self.word(header::PUT) % RECORDS
    }

    /// Records that were read and not yet reported to the driver.
    const fn unreported(&self) -> u32 {
        (self.get + RECORDS - self.reported) % RECORDS
    }

    /// Records that found no room, by the driver's count.
    pub fn dropped(&self) -> u64 {
        // PANIC: the header has 4096 bytes.
        u64::from_le_bytes(self.header.read(header::DROPPED).expect("the header"))
    }

    /// Records that were lost so far, by their numbers.
    pub const fn losses(&self) -> Losses {
        self.sequence.losses()
    }

    fn word(&self, at: usize) -> u32 {
        // PANIC: the header has 4096 bytes.
        u32::from_le_bytes(self.header.read(at).expect("the header"))
    }

    /// Ends the log.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn close(self, client: &RmClient) -> Result<(), RmError> {
        client.free(self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(seq: u16, tag: u8) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = 2;
        bytes[8] = tag;
        bytes[10..12].copy_from_slice(&seq.to_le_bytes());
        bytes[12..16].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&4242u32.to_le_bytes());
        bytes[24..32].copy_from_slice(&1_763_000_000_123_456_789u64.to_le_bytes());
        bytes
    }

    fn feed(sequence: &mut Sequence, seq: u16) -> u64 {
        sequence
            .take(&RawRecord::decode(&bytes(seq, TAG_ACTIVE)))
            .unwrap()
            .seq
    }

    #[test]
    fn a_record_is_decoded_field_by_field() {
        let raw = RawRecord::decode(&bytes(7, TAG_SAVED));
        let expected = RawRecord {
            seq: 7,
            at: Moment(1_763_000_000_123_456_789),
            pid: 4242,
            context: 0x1234_5678,
            change: Ok(Change::Saved),
        };
        assert_eq!(raw, expected);
    }

    #[test]
    fn other_records_are_counted_and_are_no_loss() {
        let mut sequence = Sequence::default();
        let first = feed(&mut sequence, 5);
        assert_eq!(sequence.take(&RawRecord::decode(&bytes(6, 3))), None);
        let mut foreign = bytes(7, TAG_ACTIVE);
        foreign[0] = 9;
        assert_eq!(
            RawRecord::decode(&foreign).change,
            Err(DecodeError::Type(9))
        );
        assert_eq!(sequence.take(&RawRecord::decode(&foreign)), None);
        assert_eq!(feed(&mut sequence, 8), first + 1);
        assert_eq!(
            sequence.losses(),
            Losses {
                missing: 0,
                unused: 2
            }
        );
    }

    #[test]
    fn a_jump_is_a_loss_also_across_the_wrap() {
        let mut sequence = Sequence::default();
        let first = feed(&mut sequence, 65_534);
        assert_eq!(feed(&mut sequence, 2), first + 4);
        assert_eq!(sequence.losses().missing, 3);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_and_numbers_only_grow(rows in prop::collection::vec(any::<[u8; RECORD_BYTES]>(), 1..50)) {
            let mut sequence = Sequence::default();
            let mut last = None;
            for row in &rows {
                if let Some(record) = sequence.take(&RawRecord::decode(row)) {
                    prop_assert!(last.is_none_or(|last| record.seq > last));
                    last = Some(record.seq);
                }
            }
        }

        #[test]
        fn what_is_lost_is_counted(losses in prop::collection::vec(0u64..1000, 1..100)) {
            let mut sequence = Sequence::default();
            let mut at = 0u64;
            feed(&mut sequence, 0);
            for lost in &losses {
                at += 1 + lost;
                feed(&mut sequence, at as u16);
            }
            prop_assert_eq!(sequence.losses().missing, losses.iter().sum::<u64>());
        }
    }
}
