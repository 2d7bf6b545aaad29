//! GPUs of a host under one daemon: one [`Host`] each, and the placement of tenants on them.
//!
//! - In: greetings of VMMs and launchers, settings of an operator.
//! - Out: the host that takes a tenant, or a refusal with its reason.
//! - Invariants: a tenant's name and number are unique over all GPUs; a program on several GPUs has
//!   one name and one number on all of them. A name belongs to the same account on each of them.
//!   What an operator sets is set on each of them, or on none.
//! - Locks: `places` is taken before the state of a host, and never under one.

mod declared;
mod drains;
pub(crate) mod programs;
mod queue;
mod settings;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_accounting::record::GpuIdentity;
use turnstile_accounting::{AccountId, TenantId};
use turnstile_policies::place::{self, GpuSize, Job, Placed, Rule};
use turnstile_vmm::wire::ToDaemon;
use uuid::Uuid;
use vmm_sys_util::eventfd::EventFd;

use super::admission;
use super::common::Common;
use super::declared::doors::Doors;
use super::declared::{Entry, Life};
use super::error::{HostError, PlacementError};

use super::host::{Host, HostConfig, refuse};
use super::journal::Journal;
use super::limits::Limits;
use crate::journal::Changed;
pub use declared::DeclareError;
pub use drains::DrainTerms;
use drains::Draining;
use queue::Queue;
pub(crate) use queue::Waiter;
pub use queue::WaitingVm;
use turnstile_gpu::Gpu;

/// Blocks and warps that an SM holds, for rules that count them.
/// SOURCE: CUDA C Programming Guide, technical specifications per compute capability, 9.0
const SM_BLOCKS: u32 = 32;
const SM_WARPS: u32 = 64;

/// The name of a GPU that has none.
pub(crate) fn unnamed() -> GpuIdentity {
    GpuIdentity {
        node: "host".into(),
        gpu: "gpu-0".into(),
        model: "GPU".into(),
    }
}

/// A GPU and its tenants.
#[derive(Debug)]
pub struct Member {
    /// The GPU, as ledgers and readers name it.
    pub identity: GpuIdentity,
    /// Its tenants, gates, policy and ledger.
    pub host: Arc<Host>,
}

/// Which tenants are on which GPUs.
#[derive(Debug)]
struct Places {
    gpus: place::Fleet,
    /// One for each GPU that a tenant is on.
    placed: BTreeMap<TenantId, Vec<Placed>>,
    /// Names of tenants that are being admitted.
    arriving: BTreeSet<String>,
    /// Declared VMs, in the order of their declaration.
    declared: Vec<Entry>,
    /// VMs that wait for a place, beside those that are declared.
    queue: Queue,
    /// Tenants that end once they have no work.
    drains: BTreeMap<TenantId, Draining>,
    /// Tasks that VMs have begun.
    tasks: BTreeMap<TenantId, tasks::Tasks>,
    /// Wakes the control loop, which polls drains and admits VMs of the queue.
    wake: Option<EventFd>,
}

/// GPUs of a host.
#[derive(Debug)]
pub struct Fleet {
    members: Vec<Member>,
    rule: Rule,
    places: Mutex<Places>,
    /// Sockets of declared VMs, while the daemon runs.
    doors: Mutex<Option<Doors>>,
    /// Counts up when [`Self::kept_vms`] changes.
    declared_changes: AtomicU64,
}

/// A tenant that was taken in.
pub(super) struct Taken {
    pub(super) host: Arc<Host>,
    pub(super) gpu: usize,
    pub(super) tenant: TenantId,
    pub(super) account: AccountId,
    pub(super) kick: File,
}

/// What became of a VM's greeting.
pub(super) enum Admission {
    /// It is a tenant.
    Taken(Taken),
    /// It waits in the queue; its greeting is for later.
    Waits(Greeting),
}

/// A greeting with its descriptors.
pub(super) struct Greeting {
    pub(super) hello: ToDaemon,
    pub(super) fds: Vec<OwnedFd>,
}

/// Where a VM may go now.
enum Seated<'a> {
    Seat(Seat<'a>),
    Waits,
}

impl Fleet {
    /// Hosts for these GPUs, without tenants, and a queue of so many places.
    ///
    /// # Errors
    /// If a policy is not known.
    pub(crate) fn new(
        gpus: Vec<(GpuIdentity, Arc<dyn Gpu>, HostConfig)>,
        rule: Rule,
        queue: usize,
    ) -> Result<Self, HostError> {
        let tenants_max = gpus.iter().map(|(_, _, config)| config.tenants_max).max();
        let common = Common::new(gpus.len(), tenants_max.unwrap_or(0));
        let member = |(identity, gpu, config)| {
            let host = Arc::new(Host::with(gpu, config, common.clone())?);
            Ok(Member { identity, host })
        };
        let members: Result<Vec<Member>, HostError> = gpus.into_iter().map(member).collect();
        Ok(Self::of(members?, rule, queue))
    }

    /// A fleet of one GPU.
    pub fn of_one(identity: GpuIdentity, host: Arc<Host>) -> Self {
        Self::of(vec![Member { identity, host }], Rule::Spread, 0)
    }

    fn of(members: Vec<Member>, rule: Rule, queue: usize) -> Self {
        let sizes = members.iter().map(|member| size_of(&**member.host.gpu()));
        let places = Places {
            gpus: place::Fleet::new(&sizes.collect::<Vec<GpuSize>>()),
            placed: BTreeMap::new(),
            arriving: BTreeSet::new(),
            declared: Vec::new(),
            queue: Queue::of(queue),
            drains: BTreeMap::new(),
            tasks: BTreeMap::new(),
            wake: None,
        };
        Self {
            members,
            rule,
            places: Mutex::new(places),
            doors: Mutex::default(),
            declared_changes: AtomicU64::new(0),
        }
    }

    /// The GPUs, at least one.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The first GPU, which notes changes of settings.
    pub fn first(&self) -> &Arc<Host> {
        // PANIC: none; a fleet has a GPU
        &self.members[0].host
    }

    /// What tenants, accounts and clients hold, on all GPUs together.
    pub fn limits(&self) -> &Arc<Limits> {
        self.first().limits()
    }

    /// What happened lately, on all GPUs.
    pub fn journal(&self) -> &Arc<Journal> {
        self.first().journal()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.members.iter().map(|member| &member.host)
    }

    /// Closes a GPU, by its place, to further tenants, or opens it again.
    pub fn close(&self, gpu: usize, closed: bool) {
        let mut places = self.places();
        places.gpus.close(gpu, closed);
        self.place_waiting(&mut places);
    }

    /// Identities of the GPUs that are removed.
    pub fn removed(&self) -> impl Iterator<Item = &str> {
        let removed = self
            .members
            .iter()
            .filter(|member| member.host.is_removed());
        removed.map(|member| member.identity.gpu.as_str())
    }

    /// Identities of the GPUs that are closed.
    pub fn closed(&self) -> impl Iterator<Item = &str> {
        let places = (0..).zip(&self.members);
        let closed = places.filter(|(gpu, _)| self.is_closed(*gpu));
        closed.map(|(_, member)| member.identity.gpu.as_str())
    }

    /// Whether a GPU is closed to further tenants.
    pub fn is_closed(&self, gpu: usize) -> bool {
        self.places().gpus.is_closed(gpu)
    }

    /// Places a VM on a GPU and takes it in there; see [`Host::admit`]. `door` is the instance of
    /// the declared VM that owns the socket where it connected.
    pub(super) fn admit(
        &self,
        greeting: Greeting,
        stream: UnixStream,
        uid: u32,
        door: Option<Uuid>,
        waiter: &Waiter,
    ) -> Result<Admission, HostError> {
        let Greeting { mut hello, fds } = greeting;
        let seated = match door {
            None => self.seat(&hello, waiter),
            Some(instance) => self.seat_declared(&mut hello, instance),
        };
        let seat = match seated {
            Ok(Seated::Seat(seat)) => seat,
            Ok(Seated::Waits) => return Ok(Admission::Waits(Greeting { hello, fds })),
            Err(error) => {
                refuse(&error, &stream);
                return Err(error);
            }
        };
        let gpu = seat.gpu;
        let host = self.members[gpu].host.clone();
        let (tenant, account, kick) = admission::admit(&host, hello, fds, stream, uid)?;
        if !seat.taken(tenant) {
            host.leave(tenant);
            return Err(HostError::Removed);
        }
        Ok(Admission::Taken(Taken {
            host,
            gpu,
            tenant,
            account,
            kick,
        }))
    }

    /// The place of a declared VM.
    fn seat_declared(&self, hello: &mut ToDaemon, instance: Uuid) -> Result<Seated<'_>, HostError> {
        let mut places = self.places();
        let (gpu, name) = self.bound(&places, instance, hello)?;
        if !places.arriving.insert(name.clone()) {
            return Err(HostError::NameTaken { name });
        }
        drop(places);
        Ok(Seated::Seat(Seat {
            fleet: self,
            name,
            gpu,
            placed: None,
            declared: Some(instance),
        }))
    }

    /// A place for a VM, or one in the queue. With one GPU and no queue that GPU alone decides.
    fn seat(&self, hello: &ToDaemon, waiter: &Waiter) -> Result<Seated<'_>, HostError> {
        let mut seat = Seat {
            fleet: self,
            name: String::new(),
            gpu: 0,
            placed: None,
            declared: None,
        };
        let ToDaemon::Hello {
            name,
            gpu_memory_bytes,
            ..
        } = hello
        else {
            return Ok(Seated::Seat(seat));
        };
        let mut places = self.places();
        if places.queue.has(waiter.session) {
            // Its name is reserved. Its place may have been taken back.
            let Some((name, placed)) = places.queue.take_placed(waiter.session) else {
                return Ok(Seated::Waits);
            };
            (seat.name, seat.gpu, seat.placed) = (name, placed.gpu, Some(placed));
            return Ok(Seated::Seat(seat));
        }
        if places.finds(name).is_some() {
            return Err(HostError::Declared { name: name.clone() });
        }
        if self.members.len() == 1 && !places.queue.is_on() && !places.gpus.is_closed(0) {
            return Ok(Seated::Seat(seat));
        }
        if places.arriving.contains(name) || self.hosts().any(|host| host.has(name)) {
            return Err(HostError::NameTaken { name: name.clone() });
        }
        let bytes = gpu_memory_bytes.unwrap_or(self.first().config.gpu_memory_bytes);
        let job = Job {
            memory_bytes: bytes,
            blocks: 1,
            threads: 32,
        };
        let placed = places.gpus.place(self.rule, job);
        let placed = placed.map_err(PlacementError::from)?;
        let Some(placed) = placed else {
            if places.queue.add(waiter, name, job) {
                places.arriving.insert(name.clone());
                self.journal().add("vm_waiting", name, None);
                return Ok(Seated::Waits);
            }
            return Err(self.full(&places, bytes).into());
        };
        places.arriving.insert(name.clone());
        drop(places);
        seat.name.clone_from(name);
        seat.gpu = placed.gpu;
        seat.placed = Some(placed);
        Ok(Seated::Seat(seat))
    }

    /// Why no GPU takes this much memory now.
    fn full(&self, places: &Places, bytes: u64) -> PlacementError {
        let free = |(gpu, member): (usize, &Member)| {
            let closed = if places.gpus.is_closed(gpu) {
                ", closed"
            } else {
                ""
            };
            format!(
                "{}: {} free{closed}",
                member.identity.gpu,
                places.gpus.free_bytes(gpu)
            )
        };
        let gpus: Vec<String> = self.members.iter().enumerate().map(free).collect();
        let gpus = gpus.join("; ");
        PlacementError::Full { bytes, gpus }
    }

    /// Connections of VMs of the queue that have a place now, and are to be admitted.
    pub(super) fn placed_waiters(&self) -> Vec<u32> {
        self.places().queue.placed()
    }

    /// A connection has ended that may be one of a VM in the queue.
    pub(super) fn leave_queue(&self, session: u32) {
        let mut places = self.places();
        let Some((name, placed)) = places.queue.take(session) else {
            return;
        };
        places.arriving.remove(&name);
        self.journal().add("vm_left", &name, None);
        if let Some(placed) = placed {
            places.gpus.release(&placed);
            self.place_waiting(&mut places);
        }
    }

    /// VMs without a place, in the order in which they are placed: those that are declared, and
    /// then those of the queue.
    pub fn waiting(&self) -> Vec<WaitingVm> {
        let places = self.places();
        let waits = places
            .declared
            .iter()
            .filter(|one| one.life == Life::Waiting);
        let declared = waits.map(|one| {
            let declared = &one.declared;
            let bytes = self.bytes_of(declared);
            (declared.name.clone(), declared.account.clone(), bytes)
        });
        let queued = places.queue.waiting();
        let queued =
            queued.map(|(name, account, bytes)| (name.to_owned(), Some(account.to_owned()), bytes));
        let vm = |(place, (name, account, bytes))| WaitingVm {
            name,
            account,
            gpu_memory_bytes: bytes,
            place,
            reason: self.full(&places, bytes).to_string(),
        };
        (1..).zip(declared.chain(queued)).map(vm).collect()
    }

    /// A tenant is gone from the GPUs that it was on.
    pub(super) fn leave(&self, hosts: &[Arc<Host>], tenant: TenantId) {
        hosts.iter().for_each(|host| host.leave(tenant));
        let mut places = self.places();
        tasks::end_all(&mut places, tenant);
        for placed in places.placed.remove(&tenant).unwrap_or_default() {
            places.gpus.release(&placed);
        }
        self.detached(&mut places, tenant);
        self.place_waiting(&mut places);
    }

    /// Why nothing is known of a GPU now, with the GPU's identity; none while all answer.
    pub fn silence(&self) -> Option<(&GpuIdentity, String)> {
        let silent = |member: &'_ Member| member.host.silence();
        self.members
            .iter()
            .find_map(|member| Some((&member.identity, silent(member)?)))
    }

    /// Notes a change that was made: see [`Host::note`].
    pub fn note(&self, kind: &str, name: &str, changed: Changed) {
        self.first().note(kind, name, changed);
    }
}

/// How large a GPU is for placement. Memory at the host counts where memory moves.
fn size_of(gpu: &dyn Gpu) -> GpuSize {
    let capability = gpu.capabilities();
    GpuSize {
        sms: capability.multiprocessors.max(1),
        blocks: SM_BLOCKS,
        warps: SM_WARPS,
        memory_bytes: capability.memory_bytes + capability.host_pool_bytes,
    }
}

/// A place during an admission, given back unless the tenant is taken in.
struct Seat<'a> {
    fleet: &'a Fleet,
    name: String,
    gpu: usize,
    placed: Option<Placed>,
    /// The declared VM, which has its place.
    declared: Option<Uuid>,
}

impl Seat<'_> {
    /// The tenant is there: its name belongs to its account on all GPUs. False if it may not stay.
    fn taken(mut self, tenant: TenantId) -> bool {
        let own = self.gpu;
        if let Some(instance) = self.declared {
            if !self.fleet.attached(instance, own, tenant) {
                return false;
            }
        } else {
            // A GPU is removed under this lock, and tenants that are there then are ended.
            let mut places = self.fleet.places();
            if self.fleet.members[own].host.is_removed() {
                return false;
            }
            if let Some(placed) = self.placed.take() {
                places.placed.entry(tenant).or_default().push(placed);
            }
        }
        if let Some(account) = self.fleet.members[own].host.owner(&self.name) {
            let others = self.fleet.members.iter().enumerate();
            for (_, other) in others.filter(|(gpu, _)| *gpu != own) {
                other.host.lock().accounts.book.learn(&self.name, &account);
            }
        }
        true
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut places = self.fleet.places();
        places.arriving.remove(&self.name);
        if let Some(placed) = self.placed.take() {
            places.gpus.release(&placed);
        }
    }
}
