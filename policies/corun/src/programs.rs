//! The programs: their steps, as operations of the host.

use crate::{MS, Ns, SEC, US};

/// The hardware's slice.
pub(crate) const SLICE: Ns = 2_048 * US;

/// One operation of a host.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// The host computes.
    Host(Ns),
    /// Launches a kernel of this length.
    Launch(Ns),
    /// Launches one that starts after the copies queued so far.
    LaunchAfterCopies(Ns),
    /// Queues a copy.
    QueueCopy(Ns),
    /// Waits until all but this number of launches are done.
    Sync(u64),
    /// Waits for the next multiple of a period (open loop).
    Due(Ns),
    /// Launches a kernel that polls until this time has passed since its launch.
    Poll(Ns),
    /// Attack: a kernel of the first length while others are held, else of the second.
    Spy(Ns, Ns),
    /// A step is done.
    Done,
    /// Disconnects for this time.
    Leave(Ns),
    /// Connects again; true: under a new name.
    Return(bool),
}
use Op::{Done, Due, Host, Launch, LaunchAfterCopies, Leave, Poll, QueueCopy, Return, Spy, Sync};

/// A program, its account, weight, target and quota.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name in the tables.
    pub name: &'static str,
    /// Its steps, over and over.
    pub ops: Vec<Op>,
    /// Weight within its account, or of its account if it is the only program of it.
    pub weight: u32,
    /// Variation of each host operation.
    pub jitter: f64,
    /// Variation of all host operations of a step.
    pub step_jitter: f64,
    /// When it begins.
    pub start: Ns,
    /// None: an account of its own.
    pub account: Option<u32>,
    /// It has a latency target.
    pub target: bool,
    /// A fraction of the engine in each period.
    pub quota: Option<(f64, Ns)>,
}

/// Launches `count` kernels one after the other, then waits.
fn step(count: usize, host: Ns, kernel: Ns, before: Ns) -> Vec<Op> {
    let launches = (0..count).flat_map(|_| [Host(host), Launch(kernel)]);
    let ops = [Host(before)].into_iter().chain(launches);
    ops.chain([Sync(0), Done]).collect()
}

fn launch_and_wait(kernel: Ns, gap: Ns) -> Vec<Op> {
    vec![Launch(kernel + 2_400), Sync(0), Done, Host(gap)]
}

fn deep(kernel: Ns) -> Vec<Op> {
    vec![Launch(kernel + 2_400), Sync(7), Done, Host(3 * US)]
}

fn training() -> Vec<Op> {
    let mut ops = vec![Host(250 * US)];
    ops.extend([Host(30 * US), Launch(10 * US)].repeat(8));
    ops.extend([Host(12 * US), Launch(43_800)].repeat(52));
    ops.extend([Sync(0), Done]);
    ops
}

fn inference() -> Vec<Op> {
    let mut ops = vec![Due(33_333_333)];
    ops.extend(step(160, 29 * US, 8_450, 150 * US));
    ops
}

fn ops(name: &str) -> Vec<Op> {
    match name {
        "train" | "train2" => training(),
        "decode" => step(400, 26 * US, 5_250, 600 * US),
        "small" => step(350, 23 * US, 2_920, 400 * US),
        "infer" => inference(),
        "copy" => vec![
            Sync(1),
            Host(20 * US),
            QueueCopy(1_205 * US),
            LaunchAfterCopies(13 * US),
            Done,
        ],
        "loader" => step(40, 12 * US, 75 * US, 9 * MS),
        "graph" => step(1, 20 * US, 1_900 * US, 380 * US),
        "memory" => step(20, 12 * US, 300 * US, 140 * US),
        "50us" => launch_and_wait(50 * US, 7_000),
        "200us" => launch_and_wait(200 * US, 7_500),
        "2ms" => launch_and_wait(2 * MS, 11 * US),
        "50ms" => launch_and_wait(50 * MS, 20 * US),
        "50us-deep" => deep(50 * US),
        "200us-deep" => deep(200 * US),
        "2ms-deep" => deep(2 * MS),
        "50ms-deep" => deep(50 * MS),
        other => attack(other),
    }
}

/// Programs that try to take more than their part.
fn attack(name: &str) -> Vec<Op> {
    match name {
        "waits" => vec![
            QueueCopy(1_000 * SEC),
            LaunchAfterCopies(5 * US),
            Sync(0),
            Done,
        ],
        "polls" => vec![Poll(40 * MS), Sync(0), Done, Host(5 * US)],
        "tiny-deep" => vec![Launch(5 * US), Sync(200), Done, Host(5 * US)],
        "tickle" => vec![Launch(5 * US), Sync(0), Done, Host(20 * US)],
        "tickle-3ms" => vec![Launch(5 * US), Sync(0), Host(3 * MS), Done],
        "stretched" => step(4, 5 * US, 4 * MS, 50 * US),
        // Pauses just shorter and just longer than the one that ends an own turn.
        "rests-0.4" => vec![Launch(MS), Sync(0), Host(400 * US), Done],
        "rests-0.6" => vec![Launch(MS), Sync(0), Host(600 * US), Done],
        "spy-forces-turns" => vec![Spy(2 * MS, 5 * US), Sync(0), Done, Host(200 * US)],
        "spy-forces-together" => vec![Spy(5 * US, 50 * MS), Sync(0), Done, Host(20 * US)],
        "flicker" => [
            launch_and_wait(5 * US, 20 * US).repeat(20_000),
            vec![Host(400 * MS)],
        ]
        .concat(),
        "flicker-fast" => [
            launch_and_wait(5 * US, 20 * US).repeat(4_000),
            vec![Host(120 * MS)],
        ]
        .concat(),
        "bursts" => [
            [Launch(MS), Sync(4), Done].repeat(1_000),
            vec![Host(1_500 * MS)],
        ]
        .concat(),
        other => panic!("no program is named {other}"),
    }
}

/// A program by its name, with weight 1 and an account of its own.
pub fn program(name: &'static str) -> Program {
    let (jitter, step_jitter) = match name {
        "infer" => (0.05, 0.20),
        "decode" | "small" => (0.05, 0.04),
        "train" | "train2" | "memory" | "loader" | "graph" => (0.05, 0.02),
        _ => (0.15, 0.0),
    };
    Program {
        name,
        ops: ops(name),
        weight: 1,
        jitter,
        step_jitter,
        start: 0,
        account: None,
        target: false,
        quota: None,
    }
}

impl Program {
    /// The same with a weight.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The same with a beginning.
    pub fn start(mut self, at: Ns) -> Self {
        self.start = at;
        self
    }

    /// The same in an account.
    pub fn account(mut self, account: u32) -> Self {
        self.account = Some(account);
        self
    }

    /// The same with a latency target.
    pub fn target(mut self) -> Self {
        self.target = true;
        self
    }

    /// The same with a quota: a fraction of the engine in each period.
    pub fn quota(mut self, fraction: f64, period: Ns) -> Self {
        self.quota = Some((fraction, period));
        self
    }

    /// Works `steps` steps, leaves for `away`, and returns, under a new name or the same.
    pub fn leaving(mut self, steps: usize, away: Ns, new_name: bool) -> Self {
        self.ops = self.ops.repeat(steps);
        self.ops.extend([Sync(0), Leave(away), Return(new_name)]);
        self
    }

    /// Waits for so long, with something queued, before it works `steps` steps.
    pub fn waiting_first(mut self, wait: Ns, steps: usize) -> Self {
        let waits = [QueueCopy(wait), LaunchAfterCopies(5 * US), Sync(0)];
        self.ops = [waits.to_vec(), self.ops.repeat(steps)].concat();
        self
    }

    /// It works at a fixed rate, and is measured by its latency.
    pub fn is_open_loop(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Due(_)))
    }
}
