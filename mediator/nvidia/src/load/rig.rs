//! Kernels that record, and their records.

use std::time::{Duration, Instant};

use turnstile_images::TRUTH_PTX;

use super::{LoadError, wall_ns};
use crate::sys::{Context, Cuda, DeviceBuffer, Event, Function, HostBuffer, LaunchShape, Stream};
use turnstile_figures::load::LoadSpec;
use turnstile_figures::matrix::Length;
use turnstile_figures::spans::{Reading, Span};

/// Threads of a block, and blocks of a processor: one wave that fills the GPU. SOURCE: 2,048
/// threads are resident on a processor of compute capability 7.0 to 9.0 (CUDA programming guide,
/// technical specifications).
const THREADS: u32 = 256;
const BLOCKS_PER_PROCESSOR: u32 = 8;
/// Turns between two readings of the clock. SOURCE: measured on an H200: about 2 us.
pub(super) const STEP_TURNS: u32 = 16;
/// A jump of the clock that counts as a gap: ten steps, a quarter of the fastest switch to another
/// context and back.
const GAP_NS: u32 = 20_000;
/// Maximum number of recorded gaps. A context switch every 100 us reaches it in 100 s.
const GAPS_MAX: u32 = 1 << 20;
/// Maximum number of recorded launches: a minute of the fastest loop.
const LAUNCHES_MAX: u64 = 6 << 20;
/// TIMEOUT: for an answer of the device when its clock is read: a context that is held is off the
/// engine for at most half a second at a time.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Readings of the clock; the one with the fastest answer is used.
const CLOCK_ROUNDS: u32 = 200;

/// Bytes of a record: see `Launch` and `Gap` in `truth.cu`.
const LAUNCH_BYTES: u64 = 24;
const GAP_BYTES: u64 = 16;
/// Bytes copied at once.
const COPY_BYTES: usize = 4 << 20;

/// Words of the memory that is shared with the device.
const ASK: usize = 0;
const TIME: usize = 1;
const ANSWER: usize = 2;
const STOP: usize = 3;
/// Length of that memory.
const SHARED_BYTES: usize = 4096;

/// Records of the kernels.
#[derive(Debug)]
pub(super) struct Records {
    /// In order of time.
    pub(super) launches: Vec<Span>,
    /// In order of time.
    pub(super) gaps: Vec<Span>,
    pub(super) launches_unrecorded: u64,
    pub(super) gaps_unrecorded: u64,
}

impl Records {
    /// Gaps that begin within a launch.
    pub(super) fn gaps_within(&self, launch: &Span) -> &[Span] {
        let from = self
            .gaps
            .partition_point(|gap| gap.begin_ns < launch.begin_ns);
        let to = self
            .gaps
            .partition_point(|gap| gap.begin_ns < launch.end_ns);
        &self.gaps[from..to.max(from)]
    }
}

/// Kernel parameters in the order and alignment of the PTX.
#[derive(Debug, Default)]
struct Params(Vec<u8>);

impl Params {
    fn word(mut self, word: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(word.to_le_bytes());
        self
    }

    fn half(mut self, half: u32) -> Self {
        self.0.extend(half.to_le_bytes());
        self
    }
}

/// Copies to the GPU, one after another, each between two stamps.
#[derive(Debug)]
struct Copier {
    stream: Stream,
    from: HostBuffer,
    to: DeviceBuffer,
    begin: Event,
    end: Event,
    /// When the copy under way was ordered, by the wall clock.
    ordered_ns: Option<u64>,
    /// Copies that have ended, from their order on, as long as the GPU took.
    ended: Vec<Span>,
}

impl Copier {
    fn new(context: &Context, bytes: usize) -> Result<Self, LoadError> {
        Ok(Self {
            stream: context.stream()?,
            from: context.host_buffer(bytes)?,
            to: context.buffer(bytes)?,
            begin: context.event(true)?,
            end: context.event(true)?,
            ordered_ns: None,
            ended: Vec::new(),
        })
    }

    /// Takes note of the copy under way, if it has ended.
    fn settle(&mut self) -> Result<(), LoadError> {
        if let Some(begin_ns) = self.ordered_ns
            && self.end.is_reached()?
        {
            let ms = self.end.ms_since(&self.begin)?;
            // CAST: a copy takes milliseconds.
            let length_ns = (f64::from(ms) * 1e6) as u64;
            self.ended.push(Span::new(begin_ns, begin_ns + length_ns));
            self.ordered_ns = None;
        }
        Ok(())
    }

    /// Orders the next copy, unless one is under way.
    fn order(&mut self, context: &Context) -> Result<(), LoadError> {
        self.settle()?;
        if self.ordered_ns.is_none() {
            self.begin.record(&self.stream)?;
            let (to, bytes) = (self.to.address(), self.to.bytes());
            context.copy_in(&self.stream, &self.from, 0, to, bytes)?;
            self.end.record(&self.stream)?;
            self.ordered_ns = Some(wall_ns());
        }
        Ok(())
    }
}

/// A context with the load's kernels, and the memory of their records.
#[derive(Debug)]
// FIELDS: functions and buffers in one context of the driver.
pub(super) struct Rig {
    context: Context,
    stream: Stream,
    work: Function,
    endless: Function,
    clock: Function,
    resolution: Function,
    shape: LaunchShape,
    launches: DeviceBuffer,
    room: u64,
    launched: u64,
    gaps: DeviceBuffer,
    /// Count of gaps, relay of the stop word, sink of results: a word each.
    words: DeviceBuffer,
    shared: HostBuffer,
    copies: HostBuffer,
    copier: Option<Copier>,
}

impl Rig {
    pub(super) fn open(spec: &LoadSpec) -> Result<Self, LoadError> {
        /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
        const PROCESSORS: i32 = 16;
        let cuda = Cuda::load()?;
        let processors = cuda.attribute(spec.gpu, PROCESSORS)?;
        let context = cuda.context(spec.gpu)?;
        let module = context
            .load_module(TRUTH_PTX)
            .map_err(|failure| LoadError::Module(failure.to_string()))?;
        let blocks = match spec.blocks {
            0 => BLOCKS_PER_PROCESSOR * u32::try_from(processors).unwrap_or(1),
            blocks => blocks,
        };
        // A launch and its wait take some microseconds at least. SOURCE: measured: 10.3 us for an
        // empty kernel.
        let kernel_ns = match spec.kernel {
            Length::Us(us) => (us * 1_000).max(8_000),
            Length::Endless => u64::MAX,
        };
        let room = (spec.length_ns / kernel_ns * 5 / 4 + 1_000).min(LAUNCHES_MAX);
        let stream = context.stream()?;
        let launches = context.buffer((room * LAUNCH_BYTES) as usize)?;
        let gaps = context.buffer((u64::from(GAPS_MAX) * GAP_BYTES) as usize)?;
        let words = context.buffer(SHARED_BYTES)?;
        stream.fill(launches.address(), 0, launches.bytes() / 4)?;
        stream.fill(words.address(), 0, words.bytes() / 4)?;
        stream.synchronize()?;
        let copier = (spec.copy_bytes > 0)
            .then(|| Copier::new(&context, spec.copy_bytes))
            .transpose()?;
        Ok(Self {
            copier,
            work: module.function("truth_work")?,
            endless: module.function("truth_endless")?,
            clock: module.function("truth_clock")?,
            resolution: module.function("truth_resolution")?,
            shape: LaunchShape {
                grid: [blocks.max(1), 1, 1],
                block: [THREADS, 1, 1],
                shared_bytes: 0,
            },
            shared: context.host_buffer(SHARED_BYTES)?,
            copies: context.host_buffer(COPY_BYTES)?,
            stream,
            context,
            launches,
            room,
            launched: 0,
            gaps,
            words,
        })
    }

    /// Record of the next launch. Launches without room share one record, which is counted and not
    /// read.
    fn next_slot(&mut self) -> (u64, u64) {
        let slot = self.launched.min(self.room - 1);
        self.launched += 1;
        (slot, self.launches.address() + slot * LAUNCH_BYTES)
    }

    fn gaps_params(&self, params: Params) -> Params {
        params
            .word(self.gaps.address())
            .word(self.words.address())
            .half(GAPS_MAX)
            .half(GAP_NS)
    }

    /// Address for results that the kernels never write.
    fn sink(&self) -> u64 {
        self.words.address() + 16
    }

    /// Launches a kernel of `turns` turns, and returns the number of its record.
    pub(super) fn launch(&mut self, turns: u64) -> Result<u64, LoadError> {
        let (slot, record) = self.next_slot();
        let params = Params::default().word(turns).half(STEP_TURNS).word(record);
        let params = self.gaps_params(params).word(self.sink());
        self.stream.launch(&self.work, self.shape, &params.0)?;
        Ok(slot)
    }

    /// Launches a kernel that runs until [`Rig::stop`].
    pub(super) fn launch_endless(&mut self) -> Result<(), LoadError> {
        self.shared.store(STOP, 0);
        let (_, record) = self.next_slot();
        let stop = self.shared.address() + 8 * STOP as u64;
        let relay = self.words.address() + 8;
        let params = Params::default().word(stop).word(relay).half(STEP_TURNS);
        let params = self.gaps_params(params.word(record)).word(self.sink());
        Ok(self.stream.launch(&self.endless, self.shape, &params.0)?)
    }

    /// Ends the endless kernel.
    pub(super) fn stop(&self) {
        self.shared.store(STOP, 1);
    }

    /// Waits for everything launched.
    pub(super) fn wait(&self) -> Result<(), LoadError> {
        Ok(self.stream.synchronize()?)
    }

    /// Keeps a copy under way beside the kernels, if the load copies.
    pub(super) fn keep_copying(&mut self) -> Result<(), LoadError> {
        match &mut self.copier {
            Some(copier) => copier.order(&self.context),
            None => Ok(()),
        }
    }

    /// All copies on the wall clock, once the last has ended.
    pub(super) fn copied(&mut self) -> Result<Vec<Span>, LoadError> {
        let Some(copier) = &mut self.copier else {
            return Ok(Vec::new());
        };
        copier.stream.synchronize()?;
        copier.settle()?;
        Ok(std::mem::take(&mut copier.ended))
    }

    /// Marks what was launched last as number `index`.
    pub(super) fn mark(&self, marks: &mut Vec<Event>, index: usize) -> Result<(), LoadError> {
        if index >= marks.len() {
            marks.push(self.context.event(false)?);
        }
        if let Some(mark) = marks.get(index) {
            mark.record(&self.stream)?;
        }
        Ok(())
    }

    /// Waits for mark number `index`, if there is one.
    pub(super) fn wait_mark(&self, marks: &mut [Event], index: usize) -> Result<(), LoadError> {
        match marks.get(index) {
            Some(mark) => Ok(mark.synchronize()?),
            None => Ok(()),
        }
    }

    /// The smallest step of the device's clock.
    pub(super) fn clock_step_ns(&self) -> Result<u64, LoadError> {
        const ROUNDS: u32 = 1_000;
        let address = self.shared.address() + 8 * TIME as u64;
        let params = Params::default().half(ROUNDS).word(address);
        self.stream
            .launch(&self.resolution, ONE_THREAD, &params.0)?;
        self.wait()?;
        Ok(self.shared.load(TIME))
    }

    /// Reads the device's clock against the wall clock.
    pub(super) fn read_clock(&mut self) -> Result<Reading, LoadError> {
        let (_, record) = self.next_slot();
        self.shared.store(ASK, 0);
        self.shared.store(ANSWER, 0);
        let word = |index: usize| self.shared.address() + 8 * index as u64;
        let params = Params::default()
            .word(word(ASK))
            .word(word(TIME))
            .word(word(ANSWER))
            .half(CLOCK_ROUNDS)
            // CAST: seconds.
            .word(SILENCE.as_nanos() as u64)
            .word(record);
        let params = self.gaps_params(params);
        self.stream.launch(&self.clock, ONE_THREAD, &params.0)?;
        let begin = Instant::now();
        let mut best: Option<Reading> = None;
        for round in 1..=u64::from(CLOCK_ROUNDS) {
            let begin_ns = wall_ns();
            self.shared.store(ASK, round);
            while self.shared.load(ANSWER) < round {
                if begin.elapsed() > SILENCE {
                    return Err(LoadError::Clock);
                }
                std::hint::spin_loop();
            }
            let answered_ns = wall_ns();
            let error_ns = answered_ns.saturating_sub(begin_ns) / 2;
            let reading = Reading {
                device_ns: self.shared.load(TIME),
                wall_ns: begin_ns + error_ns,
                error_ns,
            };
            if best.is_none_or(|best| error_ns < best.error_ns) {
                best = Some(reading);
            }
        }
        self.wait()?;
        best.ok_or(LoadError::Clock)
    }

    fn copy(&self, address: u64, bytes: usize) -> Result<Vec<u8>, LoadError> {
        let mut data = vec![0; bytes];
        for (index, piece) in data.chunks_mut(COPY_BYTES).enumerate() {
            let from = address + (index * COPY_BYTES) as u64;
            let length = piece.len();
            self.context
                .copy_out(&self.stream, from, &self.copies, 0, length)?;
            self.stream.synchronize()?;
            self.copies.read(0, piece)?;
        }
        Ok(data)
    }

    /// The record of a launch that has ended.
    pub(super) fn launch_record(&self, slot: u64) -> Result<Span, LoadError> {
        let address = self.launches.address() + slot * LAUNCH_BYTES;
        let words = words(&self.copy(address, LAUNCH_BYTES as usize)?);
        Ok(launch(&words))
    }

    /// All records, once everything has ended.
    pub(super) fn records(&self) -> Result<Records, LoadError> {
        // The last slot is shared by all launches without room.
        let recorded = self.launched.min(self.room - 1);
        let bytes = (recorded * LAUNCH_BYTES) as usize;
        let launches = words(&self.copy(self.launches.address(), bytes)?);
        let gap_count = words(&self.copy(self.words.address(), 8)?)[0] & u64::from(u32::MAX);
        let gaps_recorded = gap_count.min(GAPS_MAX.into());
        let bytes = (gaps_recorded * GAP_BYTES) as usize;
        let gaps = words(&self.copy(self.gaps.address(), bytes)?);
        Ok(Records {
            launches: launches.chunks_exact(3).map(launch).collect(),
            gaps: gaps
                .chunks_exact(2)
                .map(|pair| Span::new(pair[0], pair[1]))
                .collect(),
            launches_unrecorded: self.launched - recorded,
            gaps_unrecorded: gap_count - gaps_recorded,
        })
    }
}

const ONE_THREAD: LaunchShape = LaunchShape {
    grid: [1, 1, 1],
    block: [1, 1, 1],
    shared_bytes: 0,
};

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        // PANIC: the chunk has eight bytes.
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect()
}

/// A launch's record: the complement of its beginning, its end.
fn launch(words: &[u64]) -> Span {
    Span::new(!words[0], words[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_where_the_kernels_read_them() {
        // truth_work: turns @0, step @8, launch @16, gaps @24, @32, @40, @44, sink @48.
        let params = Params::default()
            .word(1)
            .half(2)
            .word(3)
            .word(4)
            .word(5)
            .half(6)
            .half(7)
            .word(8);
        assert_eq!(params.0.len(), 56);
        for (at, value) in [
            (0, 1),
            (8, 2),
            (16, 3),
            (24, 4),
            (32, 5),
            (40, 6),
            (44, 7),
            (48, 8),
        ] {
            assert_eq!(params.0[at], value, "{at}");
        }
    }

    #[test]
    fn zeroed_memory_is_a_launch_that_never_ran() {
        assert_eq!(launch(&[0, 0, 0]), Span::UNTOUCHED);
        assert_eq!(launch(&[!5, 9, 1]), Span::new(5, 9));
    }

    #[test]
    fn gaps_are_found_by_their_launch() {
        let records = Records {
            launches: Vec::new(),
            gaps: vec![Span::new(5, 8), Span::new(12, 14), Span::new(15, 30)],
            launches_unrecorded: 0,
            gaps_unrecorded: 0,
        };
        assert_eq!(records.gaps_within(&Span::new(10, 31)), &records.gaps[1..]);
        assert!(records.gaps_within(&Span::new(31, 40)).is_empty());
    }
}
