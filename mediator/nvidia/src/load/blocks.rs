//! Blocks of kernels that are launched and waited for, alternating with those of other sides.
//!
//! The filter that observes a tenant's calls costs less than the constant difference between two
//! processes. That comes from the place of their memory (1 % of 20 us). So two threads of one
//! process alternate with the same context, stream and memory: one as it is, one under the filter.
//! Neither is the process's first thread, which takes 0.5 % longer. SOURCE: measured on an H200.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use super::super::sys::notify::{self, RawListener};
use super::rig::Rig;
use super::{LoadError, ordered, tell, warm_up};
use turnstile_figures::load::{Block, LoadMessage, LoadSpec};
use turnstile_figures::matrix::Length;
use turnstile_figures::pairs::order;
use turnstile_figures::percentile::Percentiles;

/// Kernels of a block before those that are timed: afterwards the context is resident again, and
/// its data are in the processor's caches.
const BLOCK_LEAD: u64 = 30;
/// Maximum number of kernels of a block.
pub(super) const BLOCK_MAX: u64 = 1 << 20;

/// Reports that it is ready. Then, for each line of `orders`, launches and waits for that number of
/// kernels, and reports how long they took as a block. With `filtered`, it reports two blocks: of a
/// thread as it is, and of a thread under the filter that `turnstile run` installs. Each of them is
/// the average of two blocks, and the threads alternate.
///
/// # Errors
/// As [`super::run`].
pub fn blocks(
    spec: &LoadSpec,
    filtered: bool,
    mut orders: impl BufRead,
    mut say: impl Write,
) -> Result<(), LoadError> {
    let Length::Us(us) = spec.kernel else {
        return Err(LoadError::Block);
    };
    let mut rig = Rig::open(spec)?;
    let calibration = warm_up(&mut rig, spec)?;
    let turns = calibration.turns(us * 1_000);
    let threads = if filtered {
        Some([
            Launcher::start("load-plain", turns, || Ok(()))?,
            Launcher::start("load-filtered", turns, listen)?,
        ])
    } else {
        None
    };
    let (pid, calibration) = (std::process::id(), Some(calibration));
    tell(&mut say, &LoadMessage::Ready { pid, calibration })?;
    let mut round = 0;
    while let Some(count) = ordered(&mut orders)? {
        if !(1..=BLOCK_MAX).contains(&count) {
            return Err(LoadError::Block);
        }
        let Some(threads) = &threads else {
            tell(
                &mut say,
                &LoadMessage::Block(block(&mut rig, turns, count)?),
            )?;
            continue;
        };
        let mut both = [Block::default(); 2];
        for half in 0..2 {
            for side in order(2, 2 * round + half) {
                let done;
                (rig, done) = threads[side].block(rig, count)?;
                both[side].add_half(done);
            }
        }
        round += 1;
        for done in both {
            tell(&mut say, &LoadMessage::Block(done))?;
        }
    }
    Ok(())
}

fn block(rig: &mut Rig, turns: u64, count: u64) -> Result<Block, LoadError> {
    // CAST: at most BLOCK_MAX.
    let mut lengths_ns = Vec::with_capacity(count as usize);
    let mut at = Instant::now();
    for launch in 0..BLOCK_LEAD + count {
        rig.launch(turns)?;
        rig.wait()?;
        let end = Instant::now();
        if launch >= BLOCK_LEAD {
            // CAST: 584 years.
            lengths_ns.push(end.duration_since(at).as_nanos() as u64);
        }
        at = end;
    }
    let lengths = Percentiles::of(lengths_ns);
    Ok(Block {
        median_ns: lengths.p50_ns as f64,
        mean_ns: lengths.mean_ns,
    })
}

type Done = (Rig, Result<Block, LoadError>);

/// A thread that runs blocks for the first thread.
struct Launcher {
    order: SyncSender<(Rig, u64)>,
    done: Receiver<Done>,
}

impl Launcher {
    /// Starts the thread, which runs `prepare` first.
    fn start(
        name: &str,
        turns: u64,
        prepare: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<Self, LoadError> {
        let (order, orders) = sync_channel::<(Rig, u64)>(1);
        let (say, done) = sync_channel::<Done>(1);
        let (ready, prepared) = sync_channel(1);
        thread::Builder::new().name(name.into()).spawn(move || {
            if ready.send(prepare()).is_err() {
                return;
            }
            for (mut rig, count) in orders {
                let done = block(&mut rig, turns, count);
                if say.send((rig, done)).is_err() {
                    return;
                }
            }
        })?;
        let prepared = prepared.recv().unwrap_or_else(|_| Err(gone()));
        prepared.map_err(LoadError::Filter)?;
        Ok(Self { order, done })
    }

    fn block(&self, rig: Rig, count: u64) -> Result<(Rig, Block), LoadError> {
        self.order.send((rig, count)).map_err(|_| gone())?;
        let (rig, done) = self.done.recv().map_err(|_| gone())?;
        Ok((rig, done?))
    }
}

fn gone() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

/// Filters the calling thread from now on; another thread lets its calls proceed until the process
/// ends.
fn listen() -> io::Result<()> {
    let listener = notify::filter_this_thread()?;
    thread::Builder::new()
        .name("load-listener".into())
        .spawn(move || let_pass(listener))?;
    Ok(())
}

/// Lets every call proceed.
fn let_pass(mut listener: RawListener) {
    while let Ok(call) = listener.receive() {
        let passed = call.map_or(Ok(true), |call| listener.proceed(call.id));
        if passed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn one_thread_is_filtered_and_no_other() {
        if !notify::available() {
            eprintln!("SKIPPED: this kernel has no user notification");
            return;
        }
        let filters = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("Seccomp:"));
            line.unwrap().to_owned()
        };
        let before = filters();
        let within = thread::spawn(move || {
            listen().unwrap();
            filters()
        });
        assert!(within.join().unwrap().ends_with('2'));
        assert_eq!(filters(), before);
    }
}
