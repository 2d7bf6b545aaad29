//! Tenants of the adversary bench: guest programs as threads, with the reference VMM's client.
//!
//! In: the daemon's socket and a program. Out: what the program returns, and the VMM's counters.
//! Called by the moves and by the bench for its victim.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context, bail};
use turnstile_abi::Platform;
use turnstile_abi::boot::BootInfo;
use turnstile_abi::{Command, CopyDirection, Dim3, QueryItem};
use turnstile_figures::spans::Span;
use turnstile_guest::{Channel, Kernel, Params};
use turnstile_images::{During, Fail, PATIENCE_NS, Session};
use turnstile_vmm::vmm::native::{self, NativePlatform};
use turnstile_vmm::vmm::{VmConfig, VmError, VmHandle, VmReport};

/// TIMEOUT: a native guest starts in milliseconds, and waits for the GPU beside 40 others.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// TIMEOUT: a guest polls for the end every 20 ms.
const END_LIMIT: Duration = Duration::from_secs(30);
/// From one poll of many channels, or of a flooded one, to the next.
const POLL_INTERVAL_NS: u64 = 300_000;
/// Longest sleep of a guest between two polls of the wish to stop.
const SLEEP_NS: u64 = 20_000_000;
/// The end of a pause is waited for awake, so that its length is exact.
const AWAKE_NS: u64 = 100_000;
/// Length of a kernel's blocks at most. The software GPU runs them one after another, and stops a
/// kernel between two of them.
const BLOCK_US: u64 = 250;
/// Entries of a flooded channel: the most that there can be.
const FLOOD_ENTRIES: u32 = 4_096;

/// Where a program reports that it has begun; later reports are dropped.
pub(super) type Started = SyncSender<()>;

/// What a tenant submits again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A kernel of this many microseconds.
    Kernel(u64),
    /// A copy of this many bytes from the guest to the GPU.
    Copy(u64),
    /// A fill of this many bytes.
    Fill(u64),
}

/// A stream of commands: how many channels, how deep, and when it pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) work: Work,
    pub(super) channels: u32,
    pub(super) depth: u32,
    /// Commands between two pauses; 0 for no pauses.
    pub(super) burst: u32,
    pub(super) pause_us: u64,
}

impl Stream {
    /// One channel without pauses.
    pub(super) const fn new(work: Work, depth: u32) -> Self {
        Self {
            work,
            channels: 1,
            depth,
            burst: 0,
            pause_us: 0,
        }
    }

    /// The same with a pause of `pause_us` after each `burst` commands.
    pub(super) const fn pausing(self, burst: u32, pause_us: u64) -> Self {
        Self {
            burst,
            pause_us,
            ..self
        }
    }

    /// The same over several channels.
    pub(super) const fn over(self, channels: u32) -> Self {
        Self { channels, ..self }
    }
}

/// A pause: its end is a doorbell write, its begin the last command's end.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// On the GPU's clock.
    begin_gpu_ns: u64,
    /// The same event as the guest noticed it, on the guest's clock.
    noticed_ns: u64,
    /// On the guest's clock.
    end_ns: u64,
}

/// What a stream did.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    pub(super) launches: u64,
    pauses: Vec<Pause>,
}

impl Streamed {
    /// The pauses on the GPU's clock. Both clocks run alike, and the least delay of a notice is
    /// taken as none.
    pub(super) fn pauses(&self) -> Vec<Span> {
        let delay =
            |pause: &Pause| pause.noticed_ns.cast_signed() - pause.begin_gpu_ns.cast_signed();
        let ahead = self.pauses.iter().map(delay).min().unwrap_or(0);
        let on_gpu = |pause: &Pause| {
            let end = pause.end_ns.saturating_add_signed(-ahead);
            Span::new(pause.begin_gpu_ns, end.max(pause.begin_gpu_ns))
        };
        self.pauses.iter().map(on_gpu).collect()
    }
}

/// What a tenant claims when it connects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) socket: &'a Path,
    pub(super) name: &'a str,
    pub(super) weight: Option<u32>,
    pub(super) gpu_bytes: u64,
}

impl<'a> Claim<'a> {
    /// A tenant with the default weight and room for a kernel's result.
    pub(super) fn new(socket: &'a Path, name: &'a str) -> Self {
        Self {
            socket,
            name,
            weight: None,
            gpu_bytes: 4 << 20,
        }
    }
}

/// A tenant that runs.
#[derive(Debug)]
pub(super) struct Tenant<T> {
    vm: VmHandle,
    ready: Receiver<()>,
    done: Receiver<Result<T, String>>,
}

/// Starts a tenant that runs `program`, which sends once when it has begun.
pub(super) fn start<T: Send + 'static>(
    claim: Claim<'_>,
    program: impl FnOnce(&mut Session<'_, NativePlatform<'_>>, &Started) -> Result<T, Fail>
    + Send
    + 'static,
) -> Result<Tenant<T>, VmError> {
    let mut files = turnstile_images::files();
    files.retain(|(name, _)| name == "spin.ptx");
    let config = VmConfig {
        weight: claim.weight,
        gpu_memory_bytes: Some(claim.gpu_bytes),
        files,
        ..VmConfig::new(claim.name, claim.socket)
    };
    let (started, ready) = sync_channel(1);
    let (end, done) = channel();
    let vm = native::spawn(config, move |platform| {
        let run = || {
            let boot = BootInfo::read(platform);
            let boot = boot.ok_or(Fail::text("The VMM left no boot information"))?;
            program(&mut Session::new(platform, boot)?, &started)
        };
        let result = run().map_err(|error| error.to_string());
        let failed = result.is_err();
        let _ = end.send(result);
        failed.into()
    })?;
    Ok(Tenant { vm, ready, done })
}

impl<T> Tenant<T> {
    /// Waits until the program has begun.
    pub(super) fn wait_ready(&self) -> anyhow::Result<()> {
        if self.ready.recv_timeout(READY_LIMIT).is_ok() {
            return Ok(());
        }
        match self.done.try_recv() {
            Ok(Err(error)) => bail!("A tenant ended early: {error}"),
            _ => bail!("A tenant has not begun after {} s", READY_LIMIT.as_secs()),
        }
    }

    /// Requests the program's end.
    pub(super) fn stop(&self) {
        self.vm.stop();
    }

    /// Waits for the program's end, and disconnects.
    pub(super) fn end(self) -> anyhow::Result<(T, VmReport)> {
        let result = self.done.recv_timeout(END_LIMIT);
        let result = result.context("A tenant does not end")?;
        let report = self.vm.join_within(END_LIMIT, END_LIMIT)?;
        Ok((result.map_err(anyhow::Error::msg)?, report))
    }
}

/// The kernel of which the first parameter is its length.
fn spin<P: Platform>(session: &Session<'_, P>) -> Result<Kernel, Fail> {
    let module = session.module("spin.ptx")?;
    session.kernel(module, "spin")
}

fn launch<P: Platform>(
    channel: &mut Channel<'_, P>,
    kernel: Kernel,
    us: u64,
    out_va: u64,
) -> Result<(), Fail> {
    let blocks = us.div_ceil(BLOCK_US);
    let block_ns = us * 1_000 / blocks;
    let params = Params::new().u64(block_ns).u64(out_va).u32(0).u32(0);
    // CAST: a kernel has at most a second.
    let (grid, block) = (Dim3::line(blocks as u32), Dim3::line(1));
    let added = channel.launch(kernel, grid, block, 0, &params);
    added.during("Adding a launch")
}

/// Waits until `fence` was reached, or the VMM requests the end.
fn await_fence<P: Platform>(
    session: &Session<'_, P>,
    channel: &Channel<'_, P>,
    fence: u64,
) -> Result<(), Fail> {
    let over = |channel: &Channel<'_, P>| channel.reached() >= fence || session.stop();
    let waited = channel.wait_until(PATIENCE_NS, SLEEP_NS, over);
    waited.during("Waiting for a command")
}

fn pause<P: Platform>(session: &Session<'_, P>, us: u64) {
    let until = session.platform.now_ns() + us * 1_000;
    while !session.stop() {
        match until.saturating_sub(session.platform.now_ns()) {
            0 => return,
            left if left > AWAKE_NS => session.platform.wait((left - AWAKE_NS).min(SLEEP_NS)),
            _ => std::thread::yield_now(),
        }
    }
}

/// A channel of a stream, and the fences added to it, one after each command.
struct Lane<'p, P> {
    channel: Channel<'p, P>,
    added: u64,
    /// Since when the guest knows that all has finished.
    dry_since_ns: Option<u64>,
}

/// Submits `stream` until the VMM requests the end.
pub(super) fn stream<P: Platform>(
    session: &mut Session<'_, P>,
    stream: Stream,
    started: &Started,
) -> Result<Streamed, Fail> {
    let (kernel, bytes) = match stream.work {
        Work::Kernel(_) => (Some(spin(session)?), 4),
        Work::Copy(bytes) | Work::Fill(bytes) => (None, bytes),
    };
    let memory = session
        .device
        .allocate(bytes)
        .during("Allocating GPU memory")?;
    let gpa = session.heap.take(bytes, 4_096).during("Setting up")?;
    let entries = (4 * stream.depth).next_power_of_two().max(64);
    let mut lanes = Vec::new();
    for _ in 0..stream.channels {
        lanes.push(Lane {
            channel: session.channel(entries, 1)?,
            added: 0,
            dry_since_ns: None,
        });
    }
    let (session, mut done, mut in_burst) = (&*session, Streamed::default(), 0);
    while !session.stop() {
        for lane in &mut lanes {
            let flying = lane.added - lane.channel.reached();
            let mut room = u64::from(stream.depth).saturating_sub(flying);
            if stream.burst > 0 {
                room = room.min(u64::from(stream.burst - in_burst));
            }
            if room == 0 {
                continue;
            }
            let now = session.platform.now_ns();
            let pause = (flying == 0 && lane.added > 0).then(|| Pause {
                begin_gpu_ns: lane.channel.reached_at_ns(),
                noticed_ns: lane.dry_since_ns.take().unwrap_or(now),
                end_ns: now,
            });
            for _ in 0..room {
                let channel = &mut lane.channel;
                match (stream.work, kernel) {
                    (Work::Kernel(us), Some(kernel)) => launch(channel, kernel, us, memory.va)?,
                    (Work::Fill(bytes), _) => {
                        channel.fill(memory.va, bytes, 7).during("Adding a fill")?;
                    }
                    _ => {
                        let to_gpu = CopyDirection::GuestToGpu;
                        let added = channel.copy(to_gpu, gpa, memory.va, bytes);
                        added.during("Adding a copy")?;
                    }
                }
                lane.added = channel.fence(true).during("Adding a fence")?;
            }
            done.launches += room;
            // CAST: at most the burst.
            in_burst += room as u32;
            lane.channel.ring();
            done.pauses.extend(pause);
        }
        let _ = started.try_send(());
        match lanes.as_mut_slice() {
            [lane] if stream.burst > 0 && in_burst == stream.burst => {
                await_fence(session, &lane.channel, lane.added)?;
                lane.dry_since_ns = Some(session.platform.now_ns());
                pause(session, stream.pause_us);
                in_burst = 0;
            }
            [lane] => {
                let half = lane.added - u64::from(stream.depth / 2);
                await_fence(session, &lane.channel, half.max(1))?;
            }
            _ => session.platform.wait(POLL_INTERVAL_NS),
        }
    }
    Ok(done)
}

/// Keeps a channel full of commands that need no engine.
pub(super) fn flood<P: Platform>(
    session: &mut Session<'_, P>,
    fences: bool,
    started: &Started,
) -> Result<u64, Fail> {
    let mut channel = session.channel(FLOOD_ENTRIES, 1)?;
    let mut added = 0;
    while !session.stop() {
        for _ in 0..channel.room() {
            let done = match fences {
                true => channel.fence(false).map(drop),
                false => channel.submit(&Command::Nop),
            };
            done.during("Adding a command")?;
            added += 1;
        }
        channel.ring();
        let _ = started.try_send(());
        session.platform.wait(POLL_INTERVAL_NS);
    }
    Ok(added)
}

/// Opens a channel for each kernel, and closes it after that.
pub(super) fn reopen<P: Platform>(
    session: &mut Session<'_, P>,
    us: u64,
    started: &Started,
) -> Result<u64, Fail> {
    let kernel = spin(session)?;
    let memory = session.device.allocate(4).during("Allocating GPU memory")?;
    let (heap, mut opened) = (session.heap, 0);
    while !session.stop() {
        let mut channel = session.channel(64, 1)?;
        launch(&mut channel, kernel, us, memory.va)?;
        let fence = channel.fence(true).during("Adding a fence")?;
        channel.ring();
        let _ = started.try_send(());
        await_fence(session, &channel, fence)?;
        let closed = session.device.close_channel(channel);
        closed.during("Closing a channel")?;
        session.heap = heap;
        opened += 1;
    }
    Ok(opened)
}

/// Runs one kernel once `go` permits it.
pub(super) fn one_kernel<P: Platform>(
    session: &mut Session<'_, P>,
    us: u64,
    go: &Receiver<()>,
    started: &Started,
) -> Result<(), Fail> {
    let kernel = spin(session)?;
    let memory = session.device.allocate(4).during("Allocating GPU memory")?;
    let mut channel = session.channel(64, 1)?;
    launch(&mut channel, kernel, us, memory.va)?;
    let fence = channel.fence(true).during("Adding a fence")?;
    let _ = started.try_send(());
    if go.recv().is_err() {
        return Ok(());
    }
    channel.ring();
    await_fence(session, &channel, fence)
}

/// Queues a wait that is never over, and a kernel behind it.
pub(super) fn wait_never<P: Platform>(
    session: &mut Session<'_, P>,
    us: u64,
    started: &Started,
) -> Result<(), Fail> {
    let kernel = spin(session)?;
    let memory = session.device.allocate(4).during("Allocating GPU memory")?;
    let gpa = session.heap.take(8, 8).during("Setting up")?;
    session.platform.write_u64(gpa, 0);
    let mut channel = session.channel(64, 1)?;
    let wait = Command::Wait { gpa, value: 1 };
    channel.submit(&wait).during("Adding a wait")?;
    launch(&mut channel, kernel, us, memory.va)?;
    channel.ring();
    let _ = started.try_send(());
    while !session.stop() {
        session.platform.wait(SLEEP_NS);
    }
    Ok(())
}

/// Writes the doorbell of a channel without work and kicks the daemon, as fast as it can.
pub(super) fn storm(
    session: &mut Session<'_, NativePlatform<'_>>,
    started: &Started,
) -> Result<u64, Fail> {
    let channel = session.channel(64, 1)?;
    let mut kicks = 0;
    while !session.stop() {
        for _ in 0..100 {
            channel.ring();
            session.platform.kick();
        }
        kicks += 100;
        let _ = started.try_send(());
    }
    Ok(kicks)
}

/// Makes mailbox requests one after another, as fast as they are answered.
pub(super) fn mailbox(
    session: &mut Session<'_, NativePlatform<'_>>,
    started: &Started,
) -> Result<u64, Fail> {
    let mut requests = 0;
    while !session.stop() {
        let answered = session.device.query(QueryItem::MemoryFreeBytes);
        answered.during("Making a request")?;
        let _ = started.try_send(());
        requests += 1;
    }
    Ok(requests)
}
