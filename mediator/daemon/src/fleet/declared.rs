//! Declared VMs of a fleet: their places, their tenants and their ends.
//!
//! In: declarations, greetings at their sockets, tenants that leave. Out: moves of the life cycle,
//! with an event for each. VMs that no GPU has room for wait in the
//! order of their declaration. All of it is under the lock of places.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{MutexGuard, PoisonError};
use std::thread::JoinHandle;

use turnstile_accounting::TenantId;
use turnstile_policies::Weight;
use turnstile_policies::place::{self, Job, Placed};
use turnstile_vmm::wire::ToDaemon;
use uuid::Uuid;
use vmm_sys_util::eventfd::EventFd;

use super::{Fleet, Places};
use crate::declared::doors::{DoorChange, DoorError, Doors};
use crate::declared::{DECLARED_MAX, Declaration, DeclaredVm, Entry, KeptVm, Life, Move};
use crate::error::{HostError, PlacementError, chain};
use crate::host::described::sent;
use crate::host::settings::SettingsError;

/// Why a VM is not declared, drained or removed.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// Other things were declared of the instance.
    #[error("Instance {0} is declared, and with another body; delete it first")]
    Other(Uuid),
    /// The name is in use.
    #[error("A VM named {0} is declared or connected already")]
    Name(String),
    /// There is no such GPU.
    #[error("This daemon has no GPU {0:?}")]
    NoGpu(String),
    /// No GPU can ever take it.
    #[error(transparent)]
    Place(#[from] PlacementError),
    /// Too many.
    #[error("{DECLARED_MAX} VMs are declared, which is the limit")]
    TooMany,
    /// What is set of it does not fit.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Its socket could not be made.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// No VM of this name is connected or declared.
    #[error("No VM named {0} is connected")]
    NoVm(String),
}

impl Fleet {
    /// Begins to make sockets of declared VMs, and takes over those of a state file.
    pub(crate) fn begin_declared(
        &self,
        kept: Vec<KeptVm>,
        daemon: &Path,
        wake: EventFd,
    ) -> io::Result<(Receiver<DoorChange>, JoinHandle<()>)> {
        let (changes, received) = channel();
        let instances: BTreeSet<Uuid> = kept.iter().map(|vm| vm.declared.instance).collect();
        let rung = wake.try_clone()?;
        let (doors, thread) = Doors::start(daemon, &instances, changes, rung)?;
        let mut places = self.places();
        places.wake = Some(wake);
        for vm in kept {
            if let Err(error) = doors.open(vm.declared.clone()) {
                let name = &vm.declared.name;
                log::error!("VM {name} has no socket: {}", chain(&error));
            }
            self.set_declared_account(&vm.declared, true);
            let mut entry = Entry::new(vm.declared);
            let gpu = vm.placed.and_then(|gpu| self.place_of(&gpu));
            if let Some(gpu) = gpu
                && let Ok(Some(placed)) =
                    self.find_place(&mut places.gpus, &entry.declared, Some(gpu))
            {
                entry.placed = Some(placed);
                entry.make(Move::Place);
                if vm.attached {
                    // Its VMM was connected to the daemon before.
                    entry.make(Move::Attach);
                    entry.make(Move::Detach);
                    entry.was_attached = true;
                }
            }
            places.declared.push(entry);
        }
        self.place_waiting(&mut places);
        drop(places);
        *self.doors_lock() = Some(doors);
        Ok((received, thread))
    }

    /// Ends the thread of the sockets, which removes them. Their VMs stay declared.
    pub(crate) fn close_doors(&self) {
        *self.doors_lock() = None;
    }

    /// An innermost lock: held for a copy.
    fn doors_lock(&self) -> MutexGuard<'_, Option<Doors>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a declared VM belongs to the account that was declared, on all GPUs.
    fn set_declared_account(&self, declared: &Declaration, is_declared: bool) {
        let account = declared.account.as_ref().filter(|_| is_declared);
        for host in self.hosts() {
            host.lock().accounts.declare(&declared.name, account);
        }
    }

    pub(super) fn place_of(&self, gpu: &str) -> Option<usize> {
        let mut members = self.members.iter();
        members.position(|member| member.identity.gpu == gpu)
    }

    pub(super) fn bytes_of(&self, declared: &Declaration) -> u64 {
        let default = self.first().config.gpu_memory_bytes;
        declared.gpu_memory_bytes.unwrap_or(default)
    }

    /// A place for a VM: on `kept`, which may be closed, else where it was declared or the rule
    /// chooses. None if it has to wait.
    fn find_place(
        &self,
        gpus: &mut place::Fleet,
        declared: &Declaration,
        kept: Option<usize>,
    ) -> Result<Option<Placed>, DeclareError> {
        let job = Job {
            memory_bytes: self.bytes_of(declared),
            blocks: 1,
            threads: 32,
        };
        let only = match (&declared.gpu, kept) {
            (_, Some(gpu)) => Some(gpu),
            (Some(gpu), None) => {
                let place = self.place_of(gpu);
                Some(place.ok_or_else(|| DeclareError::NoGpu(gpu.clone()))?)
            }
            (None, None) => None,
        };
        let closed: Vec<bool> = (0..self.members.len())
            .map(|gpu| gpus.is_closed(gpu))
            .collect();
        if let Some(only) = only {
            for (gpu, closed) in closed.iter().enumerate() {
                let open = gpu == only && (kept.is_some() || !closed);
                gpus.close(gpu, !open);
            }
        }
        let placed = gpus.place(self.rule, job);
        for (gpu, closed) in closed.into_iter().enumerate() {
            gpus.close(gpu, closed);
        }
        Ok(placed.map_err(PlacementError::from)?)
    }

    /// Places VMs that wait, the first declared first, and then those of the queue. One that does
    /// not fit delays no other.
    pub(super) fn place_waiting(&self, places: &mut Places) {
        for index in 0..places.declared.len() {
            if places.declared[index].life != Life::Waiting {
                continue;
            }
            let declared = places.declared[index].declared.clone();
            if let Ok(Some(placed)) = self.find_place(&mut places.gpus, &declared, None) {
                let entry = &mut places.declared[index];
                entry.placed = Some(placed);
                self.make(entry, Move::Place);
            }
        }
        if places.queue.place(&mut places.gpus, self.rule)
            && let Some(wake) = &places.wake
        {
            let _ = wake.write(1);
        }
    }

    /// Makes a move, with its event.
    pub(super) fn make(&self, entry: &mut Entry, by: Move) -> Option<Life> {
        let life = entry.make(by)?;
        let kind = match (by, life) {
            (Move::Resume, _) => "vm_drain_failed",
            (_, Life::Waiting) => "vm_waiting",
            (_, Life::Ready) => "vm_ready",
            (_, Life::Attached) => "vm_attached",
            (_, Life::Lost) => "vm_lost",
            (_, Life::Draining | Life::Ending) => "vm_draining",
            (_, Life::Ended) => "vm_deleted",
        };
        let declared = &entry.declared;
        self.journal()
            .vm(kind, &declared.name, &declared.settings.metadata);
        self.changed();
        Some(life)
    }

    fn changed(&self) {
        self.declared_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Declared VMs, in the order of their declaration.
    pub fn declared(&self) -> Vec<DeclaredVm> {
        let doors = self.doors_lock().clone();
        let socket = |declared: &Declaration| Some(doors.as_ref()?.socket(declared));
        let places = self.places();
        let vm = |entry: &Entry| DeclaredVm {
            socket: socket(&entry.declared).unwrap_or_default(),
            declared: entry.declared.clone(),
            life: entry.life,
            placed: self.gpu_of(entry),
        };
        places.declared.iter().map(vm).collect()
    }

    fn gpu_of(&self, entry: &Entry) -> Option<String> {
        let gpu = entry.placed.as_ref()?.gpu;
        Some(self.members[gpu].identity.gpu.clone())
    }

    /// What a state file keeps of declared VMs. One that is ending is not kept.
    pub fn kept_vms(&self) -> Vec<KeptVm> {
        let places = self.places();
        let kept = places.declared.iter();
        kept.filter(|entry| entry.life != Life::Ending)
            .map(|entry| KeptVm {
                declared: entry.declared.clone(),
                // After a restart it is placed anew, as after its drain.
                placed: self.gpu_of(entry).filter(|_| entry.life != Life::Draining),
                attached: entry.was_attached && entry.life != Life::Draining,
            })
            .collect()
    }

    /// Whether [`Self::declare`] would take this: true, or false if the same is declared.
    ///
    /// # Errors
    /// Why not.
    pub fn check_declaration(&self, declared: &Declaration) -> Result<bool, DeclareError> {
        let places = self.places();
        let mut all = places.declared.iter();
        if let Some(known) = all.find(|one| one.declared.instance == declared.instance) {
            let ends = known.life == Life::Ending;
            return if known.declared == *declared && !ends {
                Ok(false)
            } else {
                Err(DeclareError::Other(declared.instance))
            };
        }
        let name = &declared.name;
        if places.finds(name).is_some() || self.hosts().any(|host| host.has(name)) {
            return Err(DeclareError::Name(name.clone()));
        }
        if places.declared.len() >= DECLARED_MAX {
            return Err(DeclareError::TooMany);
        }
        self.check_settings(name, Some(&declared.settings))?;
        // On a copy: a rule that takes GPUs in turn has its turns.
        self.find_place(&mut places.gpus.clone(), declared, None)?;
        Ok(true)
    }

    /// Declares a VM: makes its socket, and places it or has it wait.
    ///
    /// # Errors
    /// As [`Self::check_declaration`], and if the socket cannot be made; then nothing is changed.
    pub fn declare(&self, declared: Declaration) -> Result<(), DeclareError> {
        self.check_declaration(&declared)?;
        let doors = self.doors_lock().clone();
        doors.ok_or(DoorError::Ends)?.open(declared.clone())?;
        let (name, settings) = (declared.name.clone(), declared.settings.clone());
        if let Err(error) = self.set_settings(&name, Some(settings)) {
            self.close_door(declared.instance);
            return Err(error.into());
        }
        self.set_declared_account(&declared, true);
        let mut places = self.places();
        places.declared.push(Entry::new(declared));
        self.changed();
        self.place_waiting(&mut places);
        Ok(())
    }

    fn close_door(&self, instance: Uuid) {
        if let Some(doors) = &*self.doors_lock() {
            doors.close(instance);
        }
    }

    /// Whether a name is that of a declared VM.
    pub(crate) fn is_declared(&self, name: &str) -> bool {
        self.places().finds(name).is_some()
    }

    /// What the greeting at a VM's socket may claim: the identity that was declared, and at most
    /// the memory. Returns the GPU and the name.
    pub(super) fn bound(
        &self,
        places: &Places,
        instance: Uuid,
        hello: &mut ToDaemon,
    ) -> Result<(usize, String), HostError> {
        let ToDaemon::Hello {
            name,
            weight,
            gpu_memory_bytes,
            metadata,
            ..
        } = hello
        else {
            return Err(HostError::NoHello);
        };
        let mut all = places.declared.iter();
        let entry = all.find(|entry| entry.declared.instance == instance);
        let entry = entry.ok_or(HostError::Removed)?;
        let declared = &entry.declared;
        *name = declared.name.clone();
        let placed = entry.placed.as_ref();
        let placed = placed.filter(|_| entry.life.after(Move::Attach).is_some());
        let Some(placed) = placed else {
            let (name, state) = (declared.name.clone(), entry.life.name());
            return Err(HostError::NotNow { name, state });
        };
        let most = self.bytes_of(declared);
        let claimed = gpu_memory_bytes.unwrap_or(most);
        if claimed > most {
            return Err(HostError::Beyond { claimed, most });
        }
        *gpu_memory_bytes = Some(claimed);
        *weight = declared.settings.weight.map(Weight::get);
        *metadata = sent(&declared.settings.metadata);
        Ok((placed.gpu, declared.name.clone()))
    }

    /// A VM's VMM was admitted; false if the VM has ended or moved meanwhile.
    pub(super) fn attached(&self, instance: Uuid, gpu: usize, tenant: TenantId) -> bool {
        let mut places = self.places();
        let mut all = places.declared.iter_mut();
        let entry = all.find(|entry| entry.declared.instance == instance);
        let removed = self.members[gpu].host.is_removed();
        let is_there =
            |entry: &&mut Entry| !removed && entry.placed.as_ref().map(|one| one.gpu) == Some(gpu);
        let Some(entry) = entry.filter(is_there) else {
            return false;
        };
        let attached = self.make(entry, Move::Attach).is_some();
        entry.tenant = attached.then_some(tenant);
        attached
    }

    /// A tenant is gone: moves its VM, if it was declared.
    pub(super) fn detached(&self, places: &mut Places, tenant: TenantId) {
        places.drains.remove(&tenant);
        let mut all = places.declared.iter_mut();
        let Some(entry) = all.find(|entry| entry.tenant == Some(tenant)) else {
            return;
        };
        entry.tenant = None;
        let name = entry.declared.name.clone();
        match self.make(entry, Move::Detach) {
            Some(Life::Waiting) => {
                if let Some(placed) = entry.placed.take() {
                    places.gpus.release(&placed);
                }
            }
            Some(Life::Ended) => self.finish(places, &name),
            _ => {}
        }
    }

    /// Removes a VM that has ended: its place, its socket, and what is set of it.
    pub(super) fn finish(&self, places: &mut Places, name: &str) {
        let mut all = places.declared.iter();
        let Some(index) = all.position(|entry| entry.declared.name == name) else {
            return;
        };
        let entry = places.declared.remove(index);
        if let Some(placed) = &entry.placed {
            places.gpus.release(placed);
        }
        self.close_door(entry.declared.instance);
        self.set_declared_account(&entry.declared, false);
        if let Err(error) = self.set_settings(name, None) {
            log::error!("Settings of {name} stay: {error}");
        }
        self.forget_name(name);
        self.place_waiting(places);
    }
}

impl Places {
    pub(super) fn finds(&self, name: &str) -> Option<&Entry> {
        let mut all = self.declared.iter();
        all.find(|entry| entry.declared.name == name)
    }
}
