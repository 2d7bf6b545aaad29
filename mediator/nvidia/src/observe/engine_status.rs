//! Engine status: whether the compute engine works, and the channel group on each engine.
//!
//! One page of the status register, and one for the runlist of each engine. 1.1 us a reading.
//!
//! SOURCE: measured on an H200 (580.159.04): 48 rows in the table of engines, all pages readable.

use turnstile_accounting::Moment;

use super::page::{Bar, Page, RegistersError};
use crate::rm::RmClient;
use crate::sys::abi::{ENGINES, ENGINES_CONFIG, ENGINES_MAX, STATUS_REGISTER, TIME_HIGH, TIME_LOW};

/// Two readings of the clock in different ways are of one clock if they are no further apart.
/// SOURCE: a mapping takes 0.1 ms.
const SAME_NS: u64 = 10_000_000;

/// A group of channels, as the host engine numbers them while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group(u16);

impl Group {
    /// Its number.
    pub(crate) const fn number(self) -> u16 {
        self.0
    }

    #[cfg(test)]
    pub(crate) const fn new(number: u16) -> Self {
        Self(number)
    }
}

/// What the host engine reports of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineStatus(u32);

impl EngineStatus {
    /// SOURCE: `NV_RUNLIST_ENGINE_STATUS0`, CTX_STATUS: a context is resident, and none is
    /// switched.
    const VALID: u32 = 1;

    /// The group on the engine, if it is not being switched.
    pub(crate) fn group(self) -> Option<Group> {
        // CAST: twelve bits.
        let (group, next) = (self.0 as u16 & 0xfff, (self.0 >> 16) as u16 & 0xfff);
        let state = self.0 >> 13 & 7;
        (state == Self::VALID && group == next).then_some(Group(group))
    }

    /// Whether the engine works.
    pub(crate) const fn is_busy(self) -> bool {
        self.0 >> 31 != 0
    }
}

/// An engine with its own runlist.
#[derive(Debug)]
pub(crate) struct Engine {
    row: Row,
    page: Page,
}

impl Engine {
    /// The compute engine first, then the copy engines with a runlist of their own; none where the
    /// table of engines cannot be read.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(crate) fn all(bar: &Bar<'_>) -> Result<Vec<Self>, RegistersError> {
        let rows = Row::read_all(bar)?;
        let Some(compute) = rows.iter().find(|row| row.is_compute()).copied() else {
            return Ok(Vec::new());
        };
        let copies = rows.into_iter().filter(|row| row.is_copy_beside(&compute));
        let engines = std::iter::once(compute).chain(copies);
        engines.map(|row| Self::of(row, bar)).collect()
    }

    fn of(row: Row, bar: &Bar<'_>) -> Result<Self, RegistersError> {
        let page = bar.page(row.status())?;
        Ok(Self { row, page })
    }

    /// Its status; none if it may not be read.
    pub(crate) fn status(&self) -> Option<EngineStatus> {
        self.page.read(self.row.status()).map(EngineStatus)
    }

    /// The word of its status.
    pub(crate) fn word(&self) -> Option<u32> {
        self.page.word(self.row.status())
    }

    /// A register of its runlist, by its place.
    pub(crate) fn runlist_register(&self, at: u32) -> Option<u32> {
        self.page.read(self.row.runlist + at)
    }
}

/// A row of the table of engines: its type, and the place of its runlist. SOURCE:
/// `NV_PTOP_DEVICE_INFO2`; measured on an H200: 48 rows, the compute engine the first of runlist
/// 0xc00000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    kind: u32,
    instance: u32,
    runlist: u32,
    engine: u32,
}

impl Row {
    /// The rows of the GPU's table. Its configuration is in the same page.
    fn read_all(bar: &Bar<'_>) -> Result<Vec<Self>, RegistersError> {
        let table = bar.page(ENGINES)?;
        let count = table.read(ENGINES_CONFIG).map_or(0, |config| config >> 20);
        let words = (0..count.min(ENGINES_MAX)).map_while(|index| table.read(ENGINES + 4 * index));
        Ok(Self::all(words))
    }

    /// The rows of a table with these words: up to three each. The highest bit of a word is set if
    /// another follows. Zero words between rows are no rows.
    fn all(words: impl Iterator<Item = u32>) -> Vec<Self> {
        let mut rows = Vec::new();
        let mut row: Vec<u32> = Vec::new();
        for word in words.filter(|word| *word != 0) {
            row.push(word);
            if word >> 31 != 0 {
                continue;
            }
            if let [first, _, third, ..] = row[..] {
                rows.push(Self {
                    kind: first >> 24 & 0x3f,
                    instance: first >> 16 & 0xf,
                    runlist: third & 0x00ff_fc00,
                    engine: third & 3,
                });
            }
            row.clear();
        }
        rows
    }

    /// Where the host engine reports this engine. SOURCE: `NV_RUNLIST_ENGINE_STATUS0`.
    const fn status(self) -> u32 {
        self.runlist + 0x200 + self.engine * 0x40
    }

    const fn is_compute(&self) -> bool {
        self.kind == 0 && self.instance == 0 && self.runlist != 0
    }

    /// Whether it is a copy engine with another runlist than this compute engine.
    const fn is_copy_beside(&self, compute: &Self) -> bool {
        const COPY: u32 = 0x13;
        self.kind == COPY && self.runlist != 0 && self.runlist != compute.runlist
    }
}

/// Maps the status register. The registers are this GPU's if their clock is the same as `now`.
///
/// # Errors
/// If the driver does not map them, or they are not what they should be.
pub(crate) fn self_test(
    client: &RmClient,
    now: impl FnOnce() -> Moment,
) -> Result<(), RegistersError> {
    let bar = Bar::open(client)?;
    let clock = bar.page(TIME_LOW)?;
    let read = || Some((clock.read(TIME_HIGH)?, clock.read(TIME_LOW)?));
    let (high, low) = read().ok_or(RegistersError::Unlike("the clock may not be read"))?;
    let apart = (u64::from(high) << 32 | u64::from(low)).abs_diff(now().0);
    if apart > SAME_NS {
        return Err(RegistersError::Unlike("their clock is another"));
    }
    let status = bar.page(STATUS_REGISTER)?.read(STATUS_REGISTER);
    let read = status.ok_or(RegistersError::Unlike(
        "the status register may not be read",
    ));
    read.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_context_is_on_the_engine_unless_it_is_being_switched() {
        // SOURCE: read on an H200 while two programs took turns.
        let group = |word| EngineStatus(word).group();
        assert_eq!(group(0x8007_2007), Some(Group(7)), "busy");
        assert_eq!(group(0x0008_2008), Some(Group(8)), "idle");
        for switching in [0x8007_c008, 0x8008_e007, 0x8007_a008, 0xa00c_c007] {
            assert_eq!(group(switching), None, "{switching:#x}");
        }
        assert_eq!(group(0), None, "nobody");
    }

    #[test]
    fn the_compute_engine_is_found_in_the_table_of_engines() {
        // SOURCE: rows of an H200: two compute engines, a copy engine on the runlist of the first.
        let table = [
            0x8000_0000,
            0x8040_0000,
            0x00c0_0000,
            0,
            0x8001_0000,
            0x8040_0000,
            0x00c0_2400,
            0,
            0x9300_0000,
            0x8010_4000,
            0x00c0_0001,
            0,
            0,
        ];
        let rows = Row::all(table.into_iter());
        let row = |kind, instance, runlist, engine| Row {
            kind,
            instance,
            runlist,
            engine,
        };
        assert_eq!(
            rows,
            [
                row(0, 0, 0xc0_0000, 0),
                row(0, 1, 0xc0_2400, 0),
                row(0x13, 0, 0xc0_0000, 1)
            ]
        );
        let compute = rows.iter().find(|row| row.is_compute()).unwrap();
        assert_eq!(compute.status(), 0xc0_0200);
        assert_eq!(rows[2].status(), 0xc0_0240);
    }

    proptest! {
        #[test]
        fn any_table_is_read(words in prop::collection::vec(any::<u32>(), 0..400)) {
            let rows = Row::all(words.iter().copied());
            prop_assert!(rows.len() <= words.len());
            prop_assert!(rows.iter().all(|row| row.status() < 1 << 24));
        }
    }
}
