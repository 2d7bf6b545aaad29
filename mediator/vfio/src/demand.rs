//! The reader of the demand area: what the device logs of contexts' demand, checked.
//!
//! In: records of the device's log, and after a loss the word of each context. Out: changes of
//! demand in order of time. Invariant: each change names an engine that exists, and a time between
//! that of the change before and the near future.
//!
//! A change costs 16 bytes of cached memory to read, and no change costs one load of 8 bytes. No
//! register is read.

use turnstile_abi::physical::demand;
use turnstile_accounting::{Demand, DemandEvent, EngineId, Moment, Nanos, TenantId};

use super::area::HostArea;

/// How far a record may be ahead of the clock. The mediator's clock is behind the device's by some
/// microseconds, and by the time that a reading of the register took.
const AHEAD_MAX: Nanos = Nanos::from_ms(1_000);

/// A record as the device wrote it.
#[derive(Clone, Copy, Debug)]
struct Record([u64; 2]);

/// What a record may name.
#[derive(Clone, Copy, Debug)]
struct Limits {
    engines: u8,
    /// Time of the change before.
    from: Moment,
    /// Added to the device's times.
    shift_ns: u64,
    now: Moment,
}

impl Record {
    /// The change that it records. One that seems to be before the change before it, by a clock
    /// that is not the device's, happened with that.
    fn check(self, limits: Limits) -> Option<DemandEvent> {
        let [at, rest] = self.0;
        let at = at.saturating_add(limits.shift_ns);
        // CAST: fields of 32 and 16 bits.
        let (context, engine) = (rest as u32, (rest >> 32) as u16);
        let demand = demand_of(rest >> 48)?;
        let engine = u8::try_from(engine).ok().filter(|e| *e < limits.engines)?;
        (at <= limits.now.0.saturating_add(AHEAD_MAX.0)).then(|| DemandEvent {
            at: Moment(at).max(limits.from),
            engine: EngineId(engine),
            tenant: TenantId(context),
            demand,
        })
    }
}

fn demand_of(code: u64) -> Option<Demand> {
    // CAST: codes are below 4 or refused.
    match u32::try_from(code).ok()? {
        demand::NOTHING => Some(Demand::Nothing),
        demand::EXECUTES => Some(Demand::Executes),
        demand::QUEUED => Some(Demand::Queued),
        _ => None,
    }
}

/// How far the log was read.
#[derive(Debug)]
pub(super) struct DemandReader {
    engines: u8,
    get: u64,
    last: Moment,
    /// Reused between calls.
    records: Vec<[u64; 2]>,
    /// Times at which records were lost or made no sense.
    losses: u64,
    shift_ns: u64,
}

impl DemandReader {
    /// A reader of an empty log of a device with so many engines.
    pub(super) fn new(engines: u8) -> Self {
        Self {
            engines,
            get: 0,
            last: Moment(0),
            records: Vec::new(),
            losses: 0,
            shift_ns: 0,
        }
    }

    /// The device was reset: its log begins anew, with times that are `shift_ns` behind the clock.
    pub(super) fn begin_anew(&mut self, shift_ns: u64) {
        self.get = 0;
        self.shift_ns = shift_ns;
    }

    /// Times at which the present state was read instead of changes.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Moves the changes since the last call to the end of `events`. After a loss the present
    /// state of each of `tenants`, which are contexts with their first doorbell pages, follows.
    pub(super) fn read(
        &mut self,
        area: &HostArea,
        now: Moment,
        tenants: impl Iterator<Item = (TenantId, u32)>,
        events: &mut Vec<DemandEvent>,
    ) {
        let mut lost = area.read_demand(&mut self.get, &mut self.records);
        for record in self.records.drain(..) {
            let limits = Limits {
                engines: self.engines,
                from: self.last,
                shift_ns: self.shift_ns,
                now,
            };
            match Record(record).check(limits) {
                Some(event) => {
                    self.last = event.at;
                    events.push(event);
                }
                None => lost = true,
            }
        }
        if lost {
            self.losses += 1;
            self.last = self.last.max(now);
            for (tenant, first) in tenants {
                let word = area.demand(first, tenant.0);
                events.extend((0..self.engines).map(|engine| DemandEvent {
                    at: self.last,
                    engine: EngineId(engine),
                    tenant,
                    demand: demand_of(word >> demand::shift(engine) & 3).unwrap_or_default(),
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(7);
    const FIRST: u32 = 3;

    struct Rig {
        area: HostArea,
        reader: DemandReader,
        put: u64,
    }

    impl Rig {
        fn new() -> Self {
            Self {
                area: HostArea::new().unwrap(),
                reader: DemandReader::new(3),
                put: 0,
            }
        }

        /// The device logs a change of context 7.
        fn log(&mut self, at: u64, engine: u64, demand: u64) {
            let offset = demand::LOG + self.put % demand::LOG_ENTRIES * demand::RECORD_BYTES;
            self.area.leave_demand(offset, at);
            let rest = 7 | engine << 32 | demand << 48;
            self.area.leave_demand(offset + 8, rest);
            self.put += 1;
            self.area.leave_demand(demand::LOG_PUT, self.put);
        }

        fn show(&self, word: u64) {
            let at = demand::CONTEXTS + u64::from(FIRST) * demand::CONTEXT_BYTES;
            self.area.leave_demand(at, word);
        }

        /// Time, engine and demand of what is read at time 1,000.
        fn read(&mut self) -> Vec<(u64, u8, Demand)> {
            let mut events = Vec::new();
            let tenants = [(A, FIRST)].into_iter();
            self.reader
                .read(&self.area, Moment(1_000), tenants, &mut events);
            let seen = |event: &DemandEvent| (event.at.0, event.engine.0, event.demand);
            assert!(events.iter().all(|event| event.tenant == A));
            events.iter().map(seen).collect()
        }
    }

    #[test]
    fn changes_are_read_once_and_in_order() {
        let mut rig = Rig::new();
        rig.log(10, 0, 2);
        rig.log(20, 0, 1);
        rig.log(20, 2, 2);
        let first = [
            (10, 0, Demand::Queued),
            (20, 0, Demand::Executes),
            (20, 2, Demand::Queued),
        ];
        assert_eq!(rig.read(), first);
        assert_eq!(rig.read(), []);
        rig.log(15, 0, 0);
        assert_eq!(rig.read(), [(20, 0, Demand::Nothing)], "time never falls");
        assert_eq!(rig.reader.losses(), 0);
    }

    #[test]
    fn a_record_that_makes_no_sense_is_replaced_by_the_present_state() {
        let ahead = 1_001 + AHEAD_MAX.0;
        for (at, engine, demand) in [
            (5, 3, 1),
            (5, 0xffff, 1),
            (5, 0x100, 1),
            (5, 0, 3),
            (5, 0, 0xffff),
            (ahead, 0, 1),
            (u64::MAX, 0, 1),
        ] {
            let mut rig = Rig::new();
            rig.show(7 | 2 << 32 | 1 << 36);
            rig.log(at, engine, demand);
            rig.log(6, 1, 2);
            let present = [
                (6, 1, Demand::Queued),
                (1_000, 0, Demand::Queued),
                (1_000, 1, Demand::Nothing),
                (1_000, 2, Demand::Executes),
            ];
            assert_eq!(rig.read(), present, "{at} {engine} {demand}");
            assert_eq!((rig.read(), rig.reader.losses()), (vec![], 1));
        }
    }

    #[test]
    fn after_an_overflow_the_present_state_follows_what_is_left() {
        let mut rig = Rig::new();
        rig.show(7 | 1 << 32);
        for at in 0..demand::LOG_ENTRIES + 50 {
            rig.log(at.min(900), 0, 1 + at % 2);
        }
        let read = rig.read();
        let (left, present) = read.split_at(read.len() - 3);
        assert!(left.len() > 16_000 && left.is_sorted_by_key(|(at, ..)| *at));
        assert_eq!(present[0], (1_000, 0, Demand::Executes));
        assert_eq!(rig.reader.losses(), 1);
    }

    #[test]
    fn the_word_of_another_context_and_codes_that_do_not_exist_are_no_demand() {
        for word in [8 | 2 << 32, 7 | 3 << 32, 2 << 32, 0] {
            let mut rig = Rig::new();
            rig.show(word);
            rig.log(5, 3, 0);
            assert_eq!(rig.read()[0], (1_000, 0, Demand::Nothing), "{word:#x}");
        }
    }
}
