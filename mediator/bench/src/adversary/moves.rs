//! The attacks: one row each, and how their tenants are run.
//!
//! In: an attack, the daemon's socket, a flag. Out: a note for the table once the flag is raised.
//! Called by the bench, one attack at a time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use turnstile_vmm::attach::AttachError;
use turnstile_vmm::vmm::VmError;

use super::tenant::{self, Claim, Stream, Tenant, Work};

/// The largest weight that a tenant of the attacker's account may claim.
pub(super) const WEIGHT_MAX: u32 = 1_000;
/// From one read of the flag to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// TIMEOUT: a name is free milliseconds after its tenant left.
const NAME_LIMIT: Duration = Duration::from_secs(10);

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// Tenants of one account submit a stream each.
    Streams(u32, Stream),
    /// Claims this weight, then the largest one permitted, and saturates.
    Claim(u32),
    /// Leaves after each kernel of this length, in microseconds, and returns under the same name.
    Return(u64),
    /// The same under a new name, connected while the kernel before runs.
    Rename(u64),
    /// Opens a channel for each kernel of this length, in microseconds.
    Reopen(u64),
    /// Queues a wait that is never over.
    Wait,
    /// Tenants of one account keep a channel each full of NOPs, or of fences.
    Flood { tenants: u32, fences: bool },
    /// Writes doorbells and kicks without work.
    Storm,
    /// Makes mailbox requests.
    Mailbox,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Its longest kernel; 0 where it runs none.
    pub(super) longest_us: u64,
    by: Move,
}

const fn kernels(name: &'static str, what: &'static str, us: u64, depth: u32) -> Attack {
    let stream = Stream::new(Work::Kernel(us), depth);
    Attack {
        name,
        what,
        longest_us: us,
        by: Move::Streams(1, stream),
    }
}

/// Launches a kernel of 1 ms, waits for it, and pauses.
const fn pauses(name: &'static str, what: &'static str, us: u64) -> Attack {
    let stream = Stream::new(Work::Kernel(1_000), 1).pausing(1, us);
    Attack {
        name,
        what,
        longest_us: 1_000,
        by: Move::Streams(1, stream),
    }
}

const fn other(name: &'static str, what: &'static str, longest_us: u64, by: Move) -> Attack {
    Attack {
        name,
        what,
        longest_us,
        by,
    }
}

const fn crowd(tenants: u32) -> Move {
    Move::Streams(tenants, Stream::new(Work::Kernel(1_000), 4))
}

const MANY: Stream = Stream::new(Work::Kernel(200), 8).over(60);
const COPIES_64K: Stream = Stream::new(Work::Copy(64 << 10), 6);
const COPIES_8M: Stream = Stream::new(Work::Copy(8 << 20), 6);
const FILLS: Stream = Stream::new(Work::Fill(8 << 20), 6);

/// All of them.
#[rustfmt::skip]
pub(super) const ATTACKS: &[Attack] = &[
    kernels("saturate", "kernels of 1 ms, 4 deep", 1_000, 4),
    kernels("long-10", "kernels of 10 ms, 2 deep", 10_000, 2),
    kernels("long-200", "kernels of 200 ms, 2 deep", 200_000, 2),
    kernels("long-1000", "kernels of 1 s, 2 deep", 1_000_000, 2),
    other("many-channels", "kernels of 200 us, 8 deep on each of 60 channels", 200, Move::Streams(1, MANY)),
    other("weight", "claims a weight of 10,000, then the limit", 1_000, Move::Claim(10_000)),
    other("return-50", "leaves after each kernel of 50 ms, same name", 50_000, Move::Return(50_000)),
    other("rename-50", "the same, another name each time", 50_000, Move::Rename(50_000)),
    other("rename-200", "the same, kernels of 200 ms", 200_000, Move::Rename(200_000)),
    other("reopen", "a channel for each kernel of 10 ms", 10_000, Move::Reopen(10_000)),
    other("tenants-4", "4 tenants of one account, kernels of 1 ms", 1_000, crowd(4)),
    other("tenants-40", "40 tenants of one account, kernels of 1 ms", 1_000, crowd(40)),
    pauses("pause-0.1", "1 ms in flight, pauses of 0.1 ms", 100),
    pauses("pause-0.9", "1 ms in flight, pauses just below the patience", 900),
    pauses("pause-1", "1 ms in flight, pauses of 1 ms", 1_000),
    pauses("pause-5", "1 ms in flight, pauses of 5 ms", 5_000),
    pauses("pause-30", "1 ms in flight, pauses of 30 ms", 30_000),
    other("wait", "a WAIT that is never over", 0, Move::Wait),
    other("copies-64k", "copies of 64 KiB", 0, Move::Streams(1, COPIES_64K)),
    other("copies-8m", "copies of 8 MiB", 0, Move::Streams(1, COPIES_8M)),
    other("fills", "fills of 8 MiB", 0, Move::Streams(1, FILLS)),
    other("nops", "a ring full of NOPs", 0, Move::Flood { tenants: 1, fences: false }),
    other("nops-8", "the same of 8 tenants of one account", 0, Move::Flood { tenants: 8, fences: false }),
    other("fences", "a ring full of fences", 0, Move::Flood { tenants: 1, fences: true }),
    other("doorbells", "doorbell writes and kicks without work", 0, Move::Storm),
    other("mailbox", "mailbox requests", 0, Move::Mailbox),
];

/// An attack under way.
struct Scene<'a> {
    socket: &'a Path,
    over: &'a AtomicBool,
    started: &'a SyncSender<()>,
}

impl Attack {
    /// Attacks until `over` is raised; sends to `started` once all its tenants have begun.
    pub(super) fn run(
        &self,
        socket: &Path,
        over: &AtomicBool,
        started: &SyncSender<()>,
    ) -> anyhow::Result<String> {
        let scene = Scene {
            socket,
            over,
            started,
        };
        match self.by {
            Move::Streams(tenants, stream) => scene.streams(tenants, stream, None),
            Move::Claim(weight) => scene.claim(weight),
            Move::Return(us) => scene.leave(us, false),
            Move::Rename(us) => scene.leave(us, true),
            Move::Reopen(us) => {
                let run = tenant::start(scene.attacker("attacker"), move |session, started| {
                    tenant::reopen(session, us, started)
                });
                scene.counted(vec![run?], "channels opened")
            }
            Move::Wait => {
                let run = tenant::start(scene.attacker("attacker"), move |session, started| {
                    tenant::wait_never(session, 1_000, started)
                });
                scene.hold(&[run?])?;
                Ok(String::new())
            }
            Move::Flood { tenants, fences } => {
                let start = |index: u32| {
                    let name = format!("attacker{index}");
                    tenant::start(scene.attacker(&name), move |session, started| {
                        tenant::flood(session, fences, started)
                    })
                };
                let tenants: Result<_, _> = (0..tenants).map(start).collect();
                scene.counted(tenants?, "commands submitted")
            }
            Move::Storm => {
                let run = tenant::start(scene.attacker("attacker"), tenant::storm);
                scene.counted(vec![run?], "kicks")
            }
            Move::Mailbox => {
                let run = tenant::start(scene.attacker("attacker"), tenant::mailbox);
                scene.counted(vec![run?], "requests answered")
            }
        }
    }
}

impl Scene<'_> {
    fn attacker<'b>(&'b self, name: &'b str) -> Claim<'b> {
        Claim::new(self.socket, name)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Lets tenants run until the attack is over, and stops them.
    fn hold<T>(&self, tenants: &[Tenant<T>]) -> anyhow::Result<()> {
        for tenant in tenants {
            tenant.wait_ready()?;
        }
        let _ = self.started.try_send(());
        while !self.is_over() {
            thread::sleep(POLL_INTERVAL);
        }
        tenants.iter().for_each(Tenant::stop);
        Ok(())
    }

    /// The same for tenants that count something.
    fn counted(&self, tenants: Vec<Tenant<u64>>, what: &str) -> anyhow::Result<String> {
        self.hold(&tenants)?;
        let mut count = 0;
        for tenant in tenants {
            count += tenant.end()?.0;
        }
        Ok(format!("{count} {what}"))
    }

    fn streams(&self, tenants: u32, stream: Stream, weight: Option<u32>) -> anyhow::Result<String> {
        let bytes = match stream.work {
            Work::Kernel(_) => 4,
            Work::Copy(bytes) | Work::Fill(bytes) => bytes,
        };
        let start = |index: u32| {
            let name = format!("attacker{index}");
            let claim = Claim {
                weight,
                gpu_bytes: bytes.max(4 << 20),
                ..self.attacker(&name)
            };
            tenant::start(claim, move |session, started| {
                tenant::stream(session, stream, started)
            })
        };
        let tenants: Vec<_> = (0..tenants).map(start).collect::<Result<_, _>>()?;
        self.hold(&tenants)?;
        let mut launches = 0;
        for tenant in tenants {
            launches += tenant.end()?.0.launches;
        }
        Ok(format!("{launches} commands submitted"))
    }

    fn claim(&self, weight: u32) -> anyhow::Result<String> {
        let claim = Claim {
            weight: Some(weight),
            ..self.attacker("attacker0")
        };
        let reason = match tenant::start(claim, |_, _| Ok(())) {
            Err(VmError::Attach(AttachError::Refused(reason))) => reason,
            Err(error) => return Err(error.into()),
            Ok(_) => bail!("A weight of {weight} was granted; the limit is {WEIGHT_MAX}"),
        };
        let saturate = Stream::new(Work::Kernel(1_000), 4);
        self.streams(1, saturate, Some(WEIGHT_MAX))?;
        Ok(format!("refused: {reason}"))
    }

    /// Connects under `name`, as soon as that is free.
    fn connect(&self, name: &str, us: u64) -> anyhow::Result<(Tenant<()>, Sender<()>)> {
        let deadline = Instant::now() + NAME_LIMIT;
        loop {
            let (go, may_go) = channel();
            let run = tenant::start(self.attacker(name), move |session, started| {
                tenant::one_kernel(session, us, &may_go, started)
            });
            match run {
                Ok(tenant) => {
                    tenant.wait_ready()?;
                    return Ok((tenant, go));
                }
                Err(VmError::Attach(AttachError::Refused(_))) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn leave(&self, us: u64, rename: bool) -> anyhow::Result<String> {
        let mut left = 0;
        let name = |left: u64| match rename {
            true => format!("attacker{left}"),
            false => "attacker".to_owned(),
        };
        let mut next = Some(self.connect(&name(0), us)?);
        while !self.is_over() {
            let (tenant, go) = next.take().context("There is no next tenant")?;
            let _ = go.send(());
            let _ = self.started.try_send(());
            left += 1;
            if rename {
                next = Some(self.connect(&name(left), us)?);
            }
            tenant.end()?;
            if !rename {
                next = Some(self.connect(&name(left), us)?);
            }
        }
        if let Some((tenant, go)) = next {
            drop(go);
            tenant.end()?;
        }
        Ok(format!("{left} returns"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn attacks_have_names_of_their_own() {
        let names: BTreeSet<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), ATTACKS.len());
        let kernel = |attack: &&Attack| match attack.by {
            Move::Streams(_, stream) => {
                matches!(stream.work, Work::Kernel(us) if us == attack.longest_us)
            }
            _ => true,
        };
        let streams = ATTACKS.iter().filter(|attack| attack.longest_us > 0);
        assert!(streams.clone().all(|attack| kernel(&attack)));
    }
}
