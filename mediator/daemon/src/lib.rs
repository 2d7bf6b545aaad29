//! The daemon: reads what tenants used of one GPU, and decides which may run next.
//!
//! The loop, in the order in which data moves:
//!
//! ```text
//!  accounting   Metering::read: what the engines did
//!      |        a meter of turnstile-accounting: GPU time of each tenant
//!      v
//!  host         Host::period_end: the ledger adds it up, the recorder keeps it
//!      |        Mediation (turnstile-mediation): usage and demand in, orders out
//!      v
//!  host::orders Order -> Suspension::carry_out, GateOrder -> GateBook -> the VMM
//!      ^
//!  kicks        Host::kicked: a tenant that was idle has work
//! ```
//!
//! Tenants come and go beside it: `control` takes connections of VMMs and launchers, `admission`
//! and `programs` make tenants of them, `host::peer` is one tenant.
//!
//! - In: a [`DaemonConfig`] (from a [`config::Config`]), a GPU behind the trait `Gpu`, a ledger.
//!   Messages of VMMs and launchers, and the state of the engines.
//! - Out: holds and gate moves; a [`HostSnapshot`], [`Event`]s and rows of the ledger.
//! - Invariants: no GPU backend is named here. Under the host's lock the daemon waits for no VM.
//!   Time that no signal covers is charged to no tenant.
//! - Locks, outermost first: the host's state (`Host::lock`), then the GPU's own. Innermost, with
//!   none taken under them: bounds, journal, silence, a VM's mapped regions. State has one owner,
//!   the host; readers get copies (`Host::try_snapshot`).
//! - Threads: `turnstile-ctl` (epoll, all connections), `turnstile-acct` (the loop), one each for a
//!   VM's mailbox and memory, `turnstile-ledg` (writes windows). `docs/ARCHITECTURE.md` has all of
//!   them, and the order of locks.
#![deny(unsafe_code)]

mod accounting;
pub mod accounts;
mod admission;
mod common;
pub mod config;
mod control;
pub mod declared;
mod error;
mod fleet;
mod fronts;
pub mod histogram;
mod host;
mod journal;
mod kicks;
pub mod limits;
pub mod memory;
mod names;
mod programs;
mod registry;
pub mod socket;
pub mod tenant;
mod untracked;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

pub use accounting::{MeterKind, Timing};
pub use control::ControlError;
pub use error::{HostError, PlacementError, UserError, chain};
pub use fleet::{DeclareError, DrainTerms, Fleet, Member, WaitingVm};
pub use fronts::{FrontError, serve_fronts};
pub use host::accounts::{AccountSnapshot, AccountsConfig, resolve, resolve_all};
pub use host::debts::KeptDebt;
pub use host::described::sent;
pub use host::memory::Homecoming;
pub use host::recorder::{LedgerConfig, LedgerHealth, LedgerStartError, SharedStore};
pub use host::settings::{MemoryLimits, Settings, SettingsError};
pub use host::snapshot::{HostSnapshot, MemorySnapshot, TenantKind, TenantSnapshot};
pub use host::{Host, HostConfig};
pub use journal::{Changed, Event, Journal, calendar};
pub use names::{NAME_BYTES_MAX, NAME_RULE, is_tenant_name};

use turnstile_accounting::record::GpuIdentity;
use turnstile_policies::place::{RULES, Rule};

use crate::declared::KeptVm;
use crate::socket::{ListenError, listen};
use turnstile_gpu::Gpu;
use turnstile_host::confine;

/// A GPU that a daemon is given.
#[derive(Debug)]
pub struct Card {
    /// As ledgers and readers name it; unique among the daemon's GPUs.
    pub identity: GpuIdentity,
    /// The GPU.
    pub gpu: Arc<dyn Gpu>,
    /// Tenants and policy.
    pub host: HostConfig,
    /// How engine state is read.
    pub meter: MeterKind,
    /// Lengths of periods.
    pub timing: Timing,
    /// Where its usage is kept.
    pub ledger: Option<LedgerConfig>,
}

/// What a daemon is started with.
#[derive(Clone, Debug)]
// FIELDS: settings, each of its own.
pub struct DaemonConfig {
    /// Where VMMs and launchers connect. A socket file without a listener is replaced.
    pub socket: PathBuf,
    /// The GPU's name, if there is one GPU.
    pub identity: GpuIdentity,
    /// Which GPU takes a VM, if there are several.
    pub placement: Rule,
    /// VMs that may wait for a place on a GPU; 0 refuses those that fit on none.
    pub queue: usize,
    /// Tenants and policy.
    pub host: HostConfig,
    /// How engine state is read.
    pub meter: MeterKind,
    /// Lengths of periods.
    pub timing: Timing,
    /// What was set of tenants before: in force from the first that connects.
    pub settings: BTreeMap<String, Settings>,
    /// Accounts, and which tenants belong to them.
    pub accounts: AccountsConfig,
    /// GPUs that are closed to further tenants.
    pub cordoned: BTreeSet<String>,
    /// GPUs that an operator has removed.
    pub removed: BTreeSet<String>,
    /// VMs that were declared before.
    pub vms: Vec<KeptVm>,
    /// What accounts and tenants were ahead by when the daemon before ended.
    pub debts: Vec<KeptDebt>,
}

impl DaemonConfig {
    /// Defaults, with the events of the engine as its state.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            identity: fleet::unnamed(),
            placement: RULES[0].rule,
            queue: 0,
            host: HostConfig::default(),
            meter: MeterKind::Events,
            timing: Timing::default(),
            settings: BTreeMap::new(),
            accounts: AccountsConfig::default(),
            cordoned: BTreeSet::new(),
            removed: BTreeSet::new(),
            vms: Vec::new(),
            debts: Vec::new(),
        }
    }
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket could not be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Something else that the kernel did not give.
    #[error("Starting the daemon's threads failed")]
    Start(#[source] io::Error),
    /// The event loop could not be made.
    #[error("Making the event loop failed")]
    Events(#[source] ControlError),
    /// The ledger could not be opened.
    #[error(transparent)]
    Ledger(#[from] LedgerStartError),
    /// The configuration is not usable.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// A running daemon; it stops when dropped.
#[derive(Debug)]
pub struct Daemon {
    fleet: Arc<Fleet>,
    stop: Arc<AtomicBool>,
    wake: EventFd,
    threads: Vec<JoinHandle<()>>,
    /// Makes and removes sockets of declared VMs.
    doors: Option<JoinHandle<()>>,
    socket: PathBuf,
    periods: Vec<Arc<AtomicU64>>,
}

impl Daemon {
    /// Starts a daemon over one GPU.
    ///
    /// # Errors
    /// When the socket or a thread cannot be had.
    pub fn start(config: DaemonConfig, gpu: Arc<dyn Gpu>) -> Result<Self, DaemonError> {
        Self::with_ledger(config, gpu, None)
    }

    /// Starts a daemon over one GPU, with a durable ledger.
    ///
    /// # Errors
    /// When the socket or a thread cannot be had, or the ledger cannot go on.
    pub fn with_ledger(
        config: DaemonConfig,
        gpu: Arc<dyn Gpu>,
        ledger: Option<LedgerConfig>,
    ) -> Result<Self, DaemonError> {
        let card = Card {
            identity: config.identity.clone(),
            gpu,
            host: config.host.clone(),
            meter: config.meter,
            timing: config.timing,
            ledger,
        };
        Self::over(config, vec![card])
    }

    /// Starts a daemon over these GPUs, at least one.
    ///
    /// # Errors
    /// When the socket or a thread cannot be had, or a ledger cannot go on.
    pub fn over(config: DaemonConfig, cards: Vec<Card>) -> Result<Self, DaemonError> {
        // Only its owner and its group may use it.
        let listener = listen(&config.socket, 0o660)?;
        let (mut gpus, mut rest) = (Vec::new(), Vec::new());
        for card in cards {
            gpus.push((card.identity, card.gpu, card.host));
            rest.push((card.meter, card.timing, card.ledger));
        }
        let fleet = Arc::new(Fleet::new(gpus, config.placement, config.queue)?);
        // Empty until here.
        let tasks = Arc::downgrade(&fleet);
        let _ = fleet.first().common.tasks.set(tasks);
        for (gpu, member) in fleet.members().iter().enumerate() {
            fleet.close(gpu, config.cordoned.contains(&member.identity.gpu));
            if config.removed.contains(&member.identity.gpu) {
                fleet.remove_gpu(gpu);
            }
        }
        fleet.restore_settings(&config.settings);
        fleet.restore_debts(config.debts);
        fleet
            .begin_accounts(&config.accounts)
            .map_err(HostError::from)?;
        let stop = Arc::new(AtomicBool::new(false));
        let wake = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(DaemonError::Start)?;
        let mut daemon = Self {
            fleet: fleet.clone(),
            stop: stop.clone(),
            wake,
            threads: Vec::new(),
            doors: None,
            socket: config.socket.clone(),
            periods: Vec::new(),
        };
        let hosts = fleet.members().iter().map(|member| &member.host);
        for (host, (_, _, ledger)) in hosts.clone().zip(&mut rest) {
            if let Some(ledger) = ledger.take() {
                host.open_ledger(ledger)?;
            }
        }
        // Before this thread has a role: the thread of the sockets has none either.
        let wake = || daemon.wake.try_clone().map_err(DaemonError::Start);
        let (control_wake, doors_wake) = (wake()?, wake()?);
        let doors = fleet.begin_declared(config.vms, &config.socket, doors_wake);
        let (changes, doors) = doors.map_err(DaemonError::Start)?;
        daemon.doors = Some(doors);
        let control_loop =
            control::ControlLoop::new(listener, changes, control_wake, fleet.clone(), stop.clone())
                .map_err(DaemonError::Events)?;
        daemon.spawn("turnstile-ctl", move || {
            confine::enter(confine::Role::Control);
            control_loop.run();
        })?;
        for (host, (meter, timing, _)) in hosts.zip(rest) {
            let (host, stop, periods) = (host.clone(), stop.clone(), Arc::<AtomicU64>::default());
            daemon.periods.push(periods.clone());
            daemon.spawn("turnstile-acct", move || {
                confine::enter(confine::Role::Accounting);
                accounting::run(&host, meter, timing, &stop, &periods);
            })?;
        }
        Ok(daemon)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), DaemonError> {
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(DaemonError::Start)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Periods that were accounted of each GPU: each rises for as long as the daemon does its work,
    /// tenants or not.
    pub fn periods(&self) -> &[Arc<AtomicU64>] {
        &self.periods
    }

    /// Ends the accounting of periods and writes the last window, so that what the host reports
    /// from then on is what the ledger has. False if the ledger lacks something of this run.
    pub fn close(&mut self) -> bool {
        // First, so that fronts among them still reach the daemon.
        self.fleet.close_doors();
        if let Some(Err(_)) = self.doors.take().map(JoinHandle::join) {
            log::error!("The thread of the VMs' sockets panicked");
        }
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.write(1);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            for member in self.fleet.members() {
                member.host.gpu().wake();
            }
            if thread.join().is_err() {
                log::error!("A thread of the daemon panicked");
            }
        }
        let hosts = self.fleet.members().iter();
        // All of them, whether one fails or not.
        let closed: Vec<bool> = hosts.map(|member| member.host.close_ledger()).collect();
        closed.iter().all(|whole| *whole)
    }

    /// The GPUs.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Tenants, shares, totals of the first GPU.
    pub fn host(&self) -> &Arc<Host> {
        self.fleet.first()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.close();
        crate::socket::remove(&self.socket);
    }
}
