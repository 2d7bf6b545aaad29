//! A stream of launches of a given length, each of which leaves a token that is checked.

use crate::args::Load;
use crate::filled::{Filled, SUMS_BYTES};
use crate::report::Report;
use crate::session::{During, Fail, PATIENCE_NS, Session};
use turnstile_abi::Platform;
use turnstile_abi::{CopyDirection, Dim3};
use turnstile_guest::{Channel, Kernel, Params};

/// Tokens that are copied back and checked together. There are two such groups: one is checked
/// while the launches of the other are in progress.
const GROUP: u64 = 64;
/// Fences in flight at most: one per launch, and one per group.
const FENCES_MAX: usize = 512;

fn token(launch: u64) -> u32 {
    (launch as u32).wrapping_add(1).wrapping_mul(0x9e37_79b1)
}

/// A fence on its way.
#[derive(Clone, Copy, Default)]
struct Fence {
    value: u64,
    /// Launches before it.
    launches: u64,
    rung_at_ns: u64,
}

/// A group on its way back.
#[derive(Clone, Copy)]
struct Group {
    fence: u64,
    first: u64,
    tokens: u64,
    /// Expected sum of the check of a random block.
    sum: Option<u32>,
}

/// Where sums go in the allocation of the tokens, and on their way back.
const SUMS_AT: u64 = 8 * GROUP;

// FIELDS: the state of a stream and its counters.
struct Stream<'s, 'p, P> {
    session: &'s Session<'p, P>,
    channel: Channel<'p, P>,
    kernel: Kernel,
    load: Load,
    out_va: u64,
    back_gpa: u64,
    fences: [Fence; FENCES_MAX],
    /// Fences added and reached, ever.
    added: usize,
    seen: usize,
    launched: u64,
    finished: u64,
    groups: [Option<Group>; 2],
    filled: Option<Filled>,
}

/// Launches until the time is over or the VMM requests the end, then checks what is left. With
/// `fill`, all available GPU memory is in use meanwhile.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    load: Load,
    fill: bool,
    report: &mut Report,
) -> Result<(), Fail> {
    let module = session.module("spin.ptx")?;
    let kernel = session.kernel(module, "spin")?;
    let entries = (2 * load.depth + 16).next_power_of_two();
    let mut channel = session.channel(entries, 1)?;
    let memory = session.device.allocate(1).during("Allocating GPU memory")?;
    let back_gpa = session
        .heap
        .take(SUMS_AT + SUMS_BYTES, 64)
        .during("Setting up the tokens' way back")?;
    let session = &*session;
    let filled = fill.then(|| Filled::new(session)).transpose()?;
    if let Some(filled) = &filled {
        filled.fill(&mut channel)?;
    }
    let mut stream = Stream {
        session,
        channel,
        kernel,
        load,
        out_va: memory.va,
        back_gpa,
        fences: [Fence::default(); FENCES_MAX],
        added: 0,
        seen: 0,
        launched: 0,
        finished: 0,
        groups: [None; 2],
        filled,
    };
    let since = session.platform.now_ns();
    let over = || {
        let elapsed_ns = session.platform.now_ns().saturating_sub(since);
        session.stop() || load.duration_ns != 0 && elapsed_ns >= load.duration_ns
    };
    while !over() {
        stream.launch(report)?;
        if load.burst != 0 && stream.launched.is_multiple_of(load.burst.into()) {
            stream.drain(report)?;
            pause(session, load.pause_ns);
        }
        report.elapsed_ns = session.platform.now_ns().saturating_sub(since);
    }
    stream.drain(report)?;
    stream.end_group(report)?;
    stream.drain(report)?;
    for half in 0..2 {
        stream.check(half, report)?;
    }
    let (mut channel, filled) = (stream.channel, stream.filled);
    if let Some(filled) = filled {
        let (out, back) = (memory.va + SUMS_AT, back_gpa + SUMS_AT);
        filled.verify(session.platform, &mut channel, out, back, report)?;
        filled.free(session)?;
    }
    let device = &session.device;
    device
        .close_channel(channel)
        .during("Closing the channel")?;
    device.free(memory).during("Freeing GPU memory")?;
    device.unload_module(module).during("Unloading the module")
}

fn pause<P: Platform>(session: &Session<'_, P>, ns: u64) {
    let since = session.platform.now_ns();
    loop {
        let elapsed_ns = session.platform.now_ns().saturating_sub(since);
        if elapsed_ns >= ns || session.stop() {
            return;
        }
        session.platform.wait(ns - elapsed_ns);
    }
}

impl<P: Platform> Stream<'_, '_, P> {
    /// Adds a launch, as soon as the queue has room for it.
    fn launch(&mut self, report: &mut Report) -> Result<(), Fail> {
        while self.launched - self.finished >= self.load.depth.into() {
            self.await_oldest(report)?;
        }
        self.reap(report);
        // Room for the launch, its fence, the check of a block, and the group's copies and fence.
        self.channel
            .wait_room(10, PATIENCE_NS)
            .during("Waiting for room in the ring")?;
        let params = Params::new()
            .u64(self.load.kernel_ns)
            .u64(self.out_va)
            .u32((self.launched % (2 * GROUP)) as u32)
            .u32(token(self.launched));
        let (grid, block) = (Dim3::line(self.load.blocks), Dim3::line(32));
        self.channel
            .launch(self.kernel, grid, block, 0, &params)
            .during("Adding a launch")?;
        self.launched += 1;
        report.launches = self.launched;
        let burst_ends =
            self.load.burst != 0 && self.launched.is_multiple_of(self.load.burst.into());
        if burst_ends || self.launched.is_multiple_of(self.load.fence_every.into()) {
            self.fence()?;
        }
        if self.launched.is_multiple_of(GROUP) {
            self.end_group(report)?;
            report.publish(self.session.platform, &self.session.boot);
        }
        self.channel.ring();
        report.doorbells += 1;
        Ok(())
    }

    fn fence(&mut self) -> Result<u64, Fail> {
        let value = self.channel.fence(true).during("Adding a fence")?;
        self.fences[self.added % FENCES_MAX] = Fence {
            value,
            launches: self.launched,
            rung_at_ns: self.session.platform.now_ns(),
        };
        self.added += 1;
        Ok(value)
    }

    /// Sends the group that the last launch belongs to on its way back.
    fn end_group(&mut self, report: &mut Report) -> Result<(), Fail> {
        let tokens = match self.launched % GROUP {
            0 if self.launched == 0 => return Ok(()),
            0 => GROUP,
            tokens => tokens,
        };
        let first = self.launched - tokens;
        let half = first / GROUP % 2;
        if self.groups[half as usize].is_some_and(|group| group.first == first) {
            return Ok(());
        }
        self.check(half as usize, report)?;
        let at = 4 * GROUP * half;
        self.channel
            .copy(
                CopyDirection::GpuToGuest,
                self.out_va + at,
                self.back_gpa + at,
                4 * tokens,
            )
            .during("Adding a copy")?;
        let sum = self.add_check(half)?;
        let fence = self.fence()?;
        self.channel.ring();
        self.groups[half as usize] = Some(Group {
            fence,
            first,
            tokens,
            sum,
        });
        Ok(())
    }

    /// Adds a check of a block, if there are blocks, and copies the sum back.
    fn add_check(&mut self, half: u64) -> Result<Option<u32>, Fail> {
        let Some(filled) = &mut self.filled else {
            return Ok(None);
        };
        let at = SUMS_AT + 4 * half;
        let sum = filled.check(&mut self.channel, self.out_va + at)?;
        let (from, to) = (self.out_va + at, self.back_gpa + at);
        self.channel
            .copy(CopyDirection::GpuToGuest, from, to, 4)
            .during("Adding a copy")?;
        Ok(Some(sum))
    }

    /// Waits for a half's group, if one is on its way, and checks its tokens.
    fn check(&mut self, half: usize, report: &mut Report) -> Result<(), Fail> {
        let Some(group) = self.groups[half].take() else {
            return Ok(());
        };
        self.channel
            .wait_fence(group.fence, PATIENCE_NS)
            .during("Waiting for tokens")?;
        for i in 0..group.tokens {
            let at = self.back_gpa + 4 * (GROUP * half as u64 + i);
            let right = self.session.platform.read_u32(at) == token(group.first + i);
            report.count(right);
        }
        if let Some(sum) = group.sum {
            let at = self.back_gpa + SUMS_AT + 4 * half as u64;
            report.count(self.session.platform.read_u32(at) == sum);
        }
        Ok(())
    }

    /// Takes note of the fences that were reached.
    fn reap(&mut self, report: &mut Report) {
        let reached = self.channel.reached();
        while self.seen < self.added {
            let fence = self.fences[self.seen % FENCES_MAX];
            if fence.value > reached {
                break;
            }
            let now = self.session.platform.now_ns();
            report.turnaround(now.saturating_sub(fence.rung_at_ns));
            self.finished = fence.launches;
            self.seen += 1;
        }
    }

    fn await_oldest(&mut self, report: &mut Report) -> Result<(), Fail> {
        if self.seen < self.added {
            let value = self.fences[self.seen % FENCES_MAX].value;
            self.channel
                .wait_fence(value, PATIENCE_NS)
                .during("Waiting for a launch")?;
        }
        self.reap(report);
        Ok(())
    }

    /// Waits until all launches have finished.
    fn drain(&mut self, report: &mut Report) -> Result<(), Fail> {
        if self.finished < self.launched {
            let fenced = self.added > self.seen
                && self.fences[(self.added - 1) % FENCES_MAX].launches == self.launched;
            if !fenced {
                self.fence()?;
                self.channel.ring();
            }
        }
        while self.seen < self.added {
            self.await_oldest(report)?;
        }
        Ok(())
    }
}
