//! Common part of VMs and native guests: device, gates, the control thread, the end of the guest.

use super::boot::GuestRam;
use super::{CONSOLE_BYTES_MAX, VmError};
use crate::attach::{Attached, Control as Frames, LinkHost, Router};
use crate::device::VirtualGpu;
use crate::gate::{GateCounters, GateTrace, PageMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::signal::{Killable, SIGRTMIN};

/// Interval of kicks until the vCPU has ended: a signal that arrives just before it enters the
/// guest is lost.
const KICK_EVERY: Duration = Duration::from_millis(1);

/// How the guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEnd {
    /// It ended itself with this code.
    Exited(u8),
    /// It was ended by force.
    Killed,
    /// Its processor shut down: a triple fault.
    TripleFault,
    /// It could not go on.
    Crashed(String),
}

/// What is known of a VM after its end.
#[derive(Clone, Debug)]
pub struct VmReport {
    /// How it ended.
    pub end: VmEnd,
    /// What the guest left as its report; zeroes where it left none.
    pub report: Vec<u8>,
    /// What the guest wrote to its console, as far as it was kept.
    pub console: String,
    /// Times that the guest was left for the VMM.
    pub exits: u64,
    /// Of these, accesses to doorbells.
    pub doorbell_exits: u64,
    /// Accesses that the VMM ignored because nothing is there.
    pub ignored: u64,
    /// What happened at the gates.
    pub gates: GateCounters,
    /// Whether the daemon went away before the guest's end.
    pub lost: bool,
    /// From start to end.
    pub elapsed: Duration,
}

/// What the guest's thread counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) exits: AtomicU64,
    pub(super) doorbell_exits: AtomicU64,
    pub(super) ignored: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The shared state of one VM.
pub(super) struct Core<M, R> {
    pub(super) ram: GuestRam,
    pub(super) attached: Arc<Attached<M, R>>,
    pub(super) counters: Counters,
    pub(super) interrupts: Arc<[EventFd]>,
    console: Mutex<Vec<u8>>,
    /// The guest is to be left and not entered again.
    quit: AtomicBool,
    failure: Mutex<Option<VmError>>,
}

impl<M, R> fmt::Debug for Core<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("counters", &self.counters)
            .field("quit", &self.quit)
            .finish_non_exhaustive()
    }
}

impl<M: PageMap, R: Router> Core<M, R> {
    pub(super) fn new(
        ram: GuestRam,
        attached: Arc<Attached<M, R>>,
        interrupts: Arc<[EventFd]>,
    ) -> Self {
        Self {
            ram,
            attached,
            counters: Counters::default(),
            interrupts,
            console: Mutex::new(Vec::new()),
            quit: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    pub(super) fn gpu(&self) -> MutexGuard<'_, VirtualGpu<LinkHost<R>>> {
        self.attached.gpu()
    }

    pub(super) fn quits(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }

    /// Keeps a byte of console output, as long as there is room.
    pub(super) fn console(&self, bytes: &[u8]) {
        let mut console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        let room = CONSOLE_BYTES_MAX - console.len();
        console.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn fail(&self, error: VmError) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        self.quit.store(true, Ordering::Release);
    }

    /// The control thread: executes the daemon's frames until the connection ends.
    fn control(&self, frames: Frames<M, R>) {
        if let Err(error) = frames.run() {
            self.fail(error.into());
        }
    }
}

/// What a handle needs of a [`Core`], whatever its kind.
trait Control: Send + Sync {
    fn request_stop(&self);
    fn quit(&self);
    fn disconnect(&self);
    fn trace(&self, channel: u32) -> Option<GateTrace>;
    fn exits(&self) -> u64;
    fn is_lost(&self) -> bool;
    fn interim(&self) -> Vec<u8>;
    fn has_failed(&self) -> bool;
    fn take_failure(&self) -> Option<VmError>;
    fn report(&self, end: VmEnd, lost: bool, elapsed: Duration) -> VmReport;
}

impl<M: PageMap, R: Router> Control for Core<M, R> {
    fn request_stop(&self) {
        self.ram.request_stop();
        // Wakes a sleeping guest to check the request.
        let _ = self.interrupts[0].write(1);
    }

    fn interim(&self) -> Vec<u8> {
        self.ram.report()
    }

    fn quit(&self) {
        self.quit.store(true, Ordering::Release);
    }

    fn disconnect(&self) {
        self.attached.detach();
    }

    fn trace(&self, channel: u32) -> Option<GateTrace> {
        self.attached.gates.trace(channel)
    }

    fn exits(&self) -> u64 {
        self.counters.exits.load(Ordering::Relaxed)
    }

    fn is_lost(&self) -> bool {
        self.gpu().is_lost()
    }

    fn has_failed(&self) -> bool {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    fn take_failure(&self) -> Option<VmError> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn report(&self, end: VmEnd, lost: bool, elapsed: Duration) -> VmReport {
        let console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        let ignored = self.counters.ignored.load(Ordering::Relaxed) + self.gpu().ignored();
        VmReport {
            end,
            report: self.ram.report(),
            console: String::from_utf8_lossy(&console).into_owned(),
            exits: self.exits(),
            doorbell_exits: self.counters.doorbell_exits.load(Ordering::Relaxed),
            ignored,
            gates: self.attached.gates.counters(),
            lost,
            elapsed,
        }
    }
}

/// A VM that runs.
pub struct VmHandle {
    core: Arc<dyn Control>,
    guest: JoinHandle<VmEnd>,
    control: JoinHandle<()>,
    ended: mpsc::Receiver<()>,
    /// Whether signals end the guest's thread's stay in the guest.
    kickable: bool,
    since: Instant,
}

impl fmt::Debug for VmHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmHandle")
            .field("guest", &self.guest)
            .finish_non_exhaustive()
    }
}

/// Starts the two threads of a VM; `guest` is what its vCPU does.
pub(super) fn start<M, R>(
    name: &str,
    core: Arc<Core<M, R>>,
    frames: Frames<M, R>,
    kickable: bool,
    guest: impl FnOnce(&Core<M, R>) -> VmEnd + Send + 'static,
) -> Result<VmHandle, VmError>
where
    M: PageMap + 'static,
    R: Router + 'static,
{
    let since = Instant::now();
    let (end, ended) = mpsc::channel::<()>();
    let control = {
        let core = Arc::clone(&core);
        thread::Builder::new()
            .name(format!("control {name}"))
            .spawn(move || core.control(frames))
            .map_err(VmError::Thread)?
    };
    let guest = {
        let core = Arc::clone(&core);
        thread::Builder::new()
            .name(format!("vcpu {name}"))
            .spawn(move || {
                // Dropped when the guest ends in any way; the handle waits for that.
                let _end = end;
                guest(&core)
            })
    };
    let guest = guest.map_err(|error| {
        core.disconnect();
        VmError::Thread(error)
    })?;
    Ok(VmHandle {
        core,
        guest,
        control,
        ended,
        kickable,
        since,
    })
}

impl VmHandle {
    /// Requests the guest to end.
    pub fn stop(&self) {
        self.core.request_stop();
    }

    /// Ends the guest by force. A native guest is a thread and cannot be: its device is taken away.
    pub fn kill(&self) {
        self.core.quit();
        if self.kickable {
            self.kick();
        } else {
            self.core.request_stop();
            self.core.disconnect();
        }
    }

    /// Interrupts the guest once without ending it, to measure the cost of an exit that is no
    /// gate's. No effect on a native guest.
    pub fn nudge(&self) {
        if self.kickable {
            // Fails only for a thread that has ended.
            let _ = self.guest.kill(SIGRTMIN());
        }
    }

    /// What the gate of `channel` has seen; `None` where there is no gate.
    pub fn gate(&self, channel: u32) -> Option<GateTrace> {
        self.core.trace(channel)
    }

    /// Times that the guest was left for the VMM so far.
    pub fn exits(&self) -> u64 {
        self.core.exits()
    }

    /// What the guest has published as its report so far; it may be writing it just now.
    pub fn report(&self) -> Vec<u8> {
        self.core.interim()
    }

    /// Whether the guest has ended.
    pub fn is_finished(&self) -> bool {
        self.guest.is_finished()
    }

    /// Waits for the guest's end.
    ///
    /// # Errors
    /// When the VM failed: a gate could not be moved.
    pub fn join(self) -> Result<VmReport, VmError> {
        while !self.wait(Duration::from_millis(100)) {
            // A vCPU in the guest does not see by itself that the control thread has failed.
            if self.core.has_failed() {
                self.kill();
            }
        }
        self.finish()
    }

    /// Waits for the guest's end. Requests it after `limit`, and forces it `grace` later.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_within(self, limit: Duration, grace: Duration) -> Result<VmReport, VmError> {
        if !self.wait(limit) {
            self.stop();
            if !self.wait(grace) {
                self.kill();
            }
        }
        self.join()
    }

    /// Waits at most `limit` for the guest's end; returns whether the guest has ended.
    pub fn wait(&self, limit: Duration) -> bool {
        !matches!(
            self.ended.recv_timeout(limit),
            Err(RecvTimeoutError::Timeout)
        )
    }

    fn kick(&self) {
        while !self.guest.is_finished() {
            // Fails only for a thread that has ended.
            let _ = self.guest.kill(SIGRTMIN());
            thread::sleep(KICK_EVERY);
        }
    }

    fn finish(self) -> Result<VmReport, VmError> {
        let end = self
            .guest
            .join()
            .unwrap_or_else(|_| VmEnd::Crashed("the guest's thread panicked".into()));
        let lost = self.core.is_lost();
        self.core.disconnect();
        if self.control.join().is_err() {
            log::error!("the control thread panicked");
        }
        match self.core.take_failure() {
            Some(failure) => Err(failure),
            None => Ok(self.core.report(end, lost, self.since.elapsed())),
        }
    }
}
