//! Decides about each call of a guest, on the one copy of its parameters. Pure.
//!
//! In: a call with buffers of the table's lengths ([`crate::abi::parts`]). Out: what to do with it
//! ([`Action`]), or an error number. After the driver's answer, [`Vm::settle`] updates what the
//! VM has, and names what it no longer has.
//!
//! Invariants: each client that a forwarded call names is the VM's own; each descriptor is a file
//! of the VM; nothing that is not in the table is forwarded; the bounds of [`Limits`] hold, with
//! calls in flight counted.

mod calls;
mod memory;
mod objects;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod trial;
mod uvm;

use std::collections::BTreeMap;

pub use objects::{Freed, Made, Object};

use crate::abi::{Layout, Node, Parts, Release};
use memory::MemoryId;
use objects::{File, Objects};

/// What a VM may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients of the driver.
    pub clients: usize,
    /// Objects of all clients.
    pub objects: usize,
    /// Channels.
    pub channels: usize,
    /// Open files.
    pub files: usize,
    /// Ranges of unified memory in guest RAM.
    pub ranges: usize,
    /// Other ranges of a file of unified memory, and mappings of GPU memory in them.
    pub mappings: usize,
    /// Guest RAM that the driver has pinned.
    pub pinned_bytes: u64,
    /// GPU memory; `None` is no quota.
    pub gpu_bytes: Option<u64>,
}

impl Default for Limits {
    /// Room for 16 programs of PyTorch with one GPU each (20 channels, 250 objects, 60 files).
    fn default() -> Self {
        Self {
            clients: 64,
            objects: 65_536,
            channels: 1_024,
            files: 2_048,
            ranges: 4_096,
            mappings: 65_536,
            pinned_bytes: 1 << 40,
            gpu_bytes: None,
        }
    }
}

/// What a VM has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects, clients among them.
    pub objects: usize,
    /// Channels.
    pub channels: usize,
    /// Pinned guest RAM, and what calls in flight pin.
    pub pinned_bytes: u64,
    /// GPU memory, and what calls in flight allocate.
    pub gpu_bytes: u64,
}

/// Calls that were not forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Named a client of another VM, or of none.
    pub foreign: u64,
    /// Had a form or a descriptor that the table does not have.
    pub malformed: u64,
    /// Controls and classes that are not in the table, answered with "not supported".
    pub unknown: u64,
    /// The control or class that was last unknown.
    pub last_unknown: u32,
    /// Beyond a limit.
    pub limited: u64,
}

/// Why a call is not forwarded. The guest gets the error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// EPERM: it names a client that is not the VM's.
    #[error("A call names a client of another VM")]
    Foreign,
    /// EINVAL: its form is not the table's.
    #[error("A call has another form")]
    Malformed,
    /// EBADF: it names a file that is not the VM's.
    #[error("A call names a file that is not open")]
    NoFile,
    /// ENOMEM: beyond a limit that has no status.
    #[error("The VM has as many files as it may have")]
    Limit,
}

impl Refusal {
    /// The error number.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Foreign => libc::EPERM,
            Self::Malformed => libc::EINVAL,
            Self::NoFile => libc::EBADF,
            Self::Limit => libc::ENOMEM,
        }
    }
}

/// What to do with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Issue it as it is.
    Forward,
    /// Answer with this status, without the driver.
    Answer(u32),
    /// Answer with success and parameters of zero: an empty list.
    Nothing,
    /// Register the guest RAM of the call under the handle that it names (RM_ALLOC_MEMORY).
    Register,
    /// The same instead of a memory object of the driver (RM_ALLOC).
    Replace {
        /// Bytes of the object.
        bytes: u64,
    },
    /// Register the guest RAM of the call instead of GPU memory that the program maps, and that
    /// nothing else uses yet (RM_MAP_MEMORY). libcuda maps the memory of USERD and GPFIFO alone.
    Exchange {
        /// Bytes of the object.
        bytes: u64,
    },
    /// Map the guest RAM of the call for the GPUs, as a range of unified memory.
    Range {
        /// First address.
        base: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Initialise unified memory, for several processes.
    Initialize,
}

/// A call that was checked. Given back to [`Vm::settle`] once it has ended, in any way.
#[derive(Debug)]
#[must_use]
pub struct Checked {
    /// What to do.
    pub action: Action,
    gpu_bytes: u64,
    pinned_bytes: u64,
    objects: usize,
    channels: usize,
    /// GPU memory that the call names: it stays while the call is in flight.
    memory: Option<MemoryId>,
}

impl Checked {
    const fn of(action: Action) -> Self {
        Self {
            action,
            gpu_bytes: 0,
            pinned_bytes: 0,
            objects: 0,
            channels: 0,
            memory: None,
        }
    }
}

/// A call of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The file.
    pub file: u32,
    /// The request.
    pub request: u32,
    /// Its buffers. Descriptors in them are numbers of files.
    pub parts: &'a Parts,
    /// Bytes of guest RAM that come with it.
    pub ram_bytes: u64,
}

/// A mapping that a file was given by RM_MAP_MEMORY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// A doorbell window; whether it is the one through BAR 1.
    Window {
        /// Through BAR 1.
        bar1: bool,
    },
    /// The driver's shared page.
    Page,
}

/// What the device process needs to map guest RAM for GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The GPU.
    pub gpu: [u8; 16],
    /// The file of the client, a control node.
    pub control: u32,
    /// The client.
    pub client: u32,
    /// Its device.
    pub device: u32,
}

/// What a VM has of the driver.
#[derive(Debug)]
pub struct Vm {
    release: &'static Release,
    limits: Limits,
    files: BTreeMap<u32, File>,
    last_file: u32,
    objects: Objects,
    ranges: usize,
    refusals: Refusals,
}

impl Vm {
    /// A VM without anything.
    pub fn new(release: &'static Release, limits: Limits) -> Self {
        Self {
            release,
            limits,
            files: BTreeMap::new(),
            last_file: 0,
            objects: Objects::default(),
            ranges: 0,
            refusals: Refusals::default(),
        }
    }

    /// The table of its calls.
    pub const fn release(&self) -> &'static Release {
        self.release
    }

    /// What it has.
    pub const fn usage(&self) -> Usage {
        let in_flight = self.objects.usage;
        Usage {
            gpu_bytes: in_flight.gpu_bytes + self.objects.memories.bytes(),
            ..in_flight
        }
    }

    /// What was refused.
    pub const fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// The node of a file.
    ///
    /// # Errors
    /// [`Refusal::NoFile`].
    pub fn node(&self, file: u32) -> Result<Node, Refusal> {
        self.files
            .get(&file)
            .map(|file| file.node)
            .ok_or(Refusal::NoFile)
    }

    /// Adds an open file of a program; returns its number.
    ///
    /// # Errors
    /// [`Refusal::Limit`].
    pub fn open(&mut self, node: Node, program: u64) -> Result<u32, Refusal> {
        if self.files.len() >= self.limits.files || self.last_file == u32::MAX >> 1 {
            self.refusals.limited += 1;
            return Err(Refusal::Limit);
        }
        self.last_file += 1;
        self.files.insert(self.last_file, File::new(node, program));
        Ok(self.last_file)
    }

    /// Removes a file, and what the driver frees with it: the clients that were made on it.
    pub fn close(&mut self, file: u32) -> Vec<Freed> {
        let mut freed = Vec::new();
        if let Some(gone) = self.files.remove(&file) {
            self.ranges -= gone.ranges.len();
            let owned = gone
                .ranges
                .into_values()
                .map(|(client, handle)| Freed::Object { client, handle });
            freed.extend(owned);
            gone.mappings.close(&mut self.objects.memories);
        }
        let clients = self
            .objects
            .clients
            .iter()
            .filter(|(_, client)| client.file == file);
        let clients: Vec<u32> = clients.map(|(handle, _)| *handle).collect();
        for client in clients {
            self.free(client, client, &mut freed);
        }
        freed
    }

    /// Files of a program.
    pub(crate) fn files_of(&self, program: u64) -> Vec<u32> {
        let files = self
            .files
            .iter()
            .filter(|(_, file)| file.program == program);
        files.map(|(number, _)| *number).collect()
    }

    /// What a file maps.
    pub fn mapping(&self, file: u32) -> Option<Mapping> {
        self.files.get(&file)?.mapping
    }

    /// A file of a GPU that is registered to a control file.
    pub(crate) fn gpu_file_of(&self, control: u32) -> Option<u32> {
        let registered =
            |file: &File| file.control == Some(control) && matches!(file.node, Node::Gpu(_));
        self.files
            .iter()
            .find(|(_, file)| registered(file))
            .map(|(number, _)| *number)
    }

    /// An object, if the VM has it.
    pub fn object(&self, client: u32, handle: u32) -> Option<Object> {
        self.objects.get(client, handle)
    }

    /// Removes an object and all below it.
    fn free(&mut self, client: u32, handle: u32, freed: &mut Vec<Freed>) {
        let whole = client == handle && self.objects.clients.contains_key(&client);
        self.objects.free(client, handle, freed);
        if whole {
            for file in self.files.values_mut() {
                file.spaces.retain(|space| space.client != client);
            }
        }
    }

    /// The file that a client was made on.
    pub(crate) fn client_file(&self, client: u32) -> Option<u32> {
        self.objects.clients.get(&client).map(|client| client.file)
    }

    /// Address spaces of a file of unified memory.
    pub fn spaces(&self, file: u32) -> Vec<Space> {
        let Some(file) = self.files.get(&file) else {
            return Vec::new();
        };
        let space = |space: &objects::Registered| {
            let object = self.object(space.client, space.vaspace)?;
            Some(Space {
                gpu: space.gpu,
                control: space.control,
                client: space.client,
                device: object.parent,
            })
        };
        file.spaces.iter().filter_map(space).collect()
    }

    /// Counts a call with buffers of another form than the table's.
    pub fn malformed(&mut self) -> Refusal {
        self.refusals.malformed += 1;
        Refusal::Malformed
    }

    /// Guest RAM that a mapping of GPU memory needs, and that the call does not have.
    pub fn wanted(&self, call: &Call<'_>) -> Option<u64> {
        let is_map =
            crate::abi::number(call.request)?.0 == crate::abi::numbers::escape::RM_MAP_MEMORY;
        let node = self.node(call.file).ok()?;
        let top = call.parts.buffers.first()?;
        let object = self.object(crate::abi::read_u32(top, 0), crate::abi::read_u32(top, 8))?;
        let exchanged =
            object.class == crate::abi::numbers::class::GPU_MEMORY && object.detail == 0;
        (is_map && node != Node::Uvm && exchanged && call.ram_bytes == 0)
            .then_some(object.gpu_bytes)
    }

    /// Decides about a call.
    ///
    /// # Errors
    /// Why it is not made.
    pub fn check(&mut self, call: &Call<'_>) -> Result<Checked, Refusal> {
        let checked = self.decide(call);
        self.count(checked)
    }

    /// Decides about a range of unified memory that shall be guest RAM.
    ///
    /// # Errors
    /// If its bounds are not whole pages, its RAM has another length, or there are too many.
    pub fn range(
        &mut self,
        file: u32,
        base: u64,
        bytes: u64,
        ram_bytes: u64,
    ) -> Result<Checked, Refusal> {
        let checked = match uvm::check_range(self, file, base, bytes, ram_bytes) {
            Ok(checked) if matches!(checked.action, Action::Answer(_)) => Err(Refusal::Limit),
            checked => checked,
        };
        self.count(checked)
    }

    fn count(&mut self, checked: Result<Checked, Refusal>) -> Result<Checked, Refusal> {
        match checked {
            Err(Refusal::Foreign) => self.refusals.foreign += 1,
            Err(Refusal::Malformed | Refusal::NoFile) => self.refusals.malformed += 1,
            Err(Refusal::Limit) => self.refusals.limited += 1,
            Ok(ref checked) => {
                self.objects.usage.gpu_bytes += checked.gpu_bytes;
                self.objects.usage.pinned_bytes += checked.pinned_bytes;
                self.objects.usage.objects += checked.objects;
                self.objects.usage.channels += checked.channels;
                if let Some(memory) = checked.memory {
                    self.objects.memories.hold(memory);
                }
            }
        }
        checked
    }

    /// Takes in the driver's answer: `done` if the call was issued, and had the status success.
    /// Returns what was made, and all that was freed.
    pub fn settle(
        &mut self,
        call: &Call<'_>,
        checked: &Checked,
        done: bool,
    ) -> (Option<Made>, Vec<Freed>) {
        self.objects.usage.gpu_bytes -= checked.gpu_bytes;
        self.objects.usage.pinned_bytes -= checked.pinned_bytes;
        self.objects.usage.objects -= checked.objects;
        self.objects.usage.channels -= checked.channels;
        let mut freed = Vec::new();
        let made = if done {
            self.apply(call, checked, &mut freed)
        } else {
            None
        };
        if let Some(memory) = checked.memory {
            self.objects.memories.release(memory);
        }
        (made, freed)
    }

    /// Whether memory of this size fits beside what is there.
    fn pins(&self, bytes: u64) -> bool {
        let sum = self.objects.usage.pinned_bytes.checked_add(bytes);
        sum.is_some_and(|sum| sum <= self.limits.pinned_bytes)
    }

    fn fits_quota(&self, bytes: u64) -> bool {
        let sum = self.usage().gpu_bytes.checked_add(bytes);
        sum.is_some_and(|sum| self.limits.gpu_bytes.is_none_or(|quota| sum <= quota))
    }

    fn unknown(&mut self, number: u32) {
        self.refusals.unknown += 1;
        self.refusals.last_unknown = number;
    }

    fn own(&self, client: u32) -> Result<(), Refusal> {
        if self.objects.clients.contains_key(&client) {
            Ok(())
        } else {
            Err(Refusal::Foreign)
        }
    }

    /// Clients that parameters name: none, or the VM's own.
    fn own_all(&self, layout: &Layout, buffer: &[u8]) -> Result<(), Refusal> {
        for at in &layout.clients {
            match crate::abi::read_u32(buffer, *at) {
                0 => {}
                client => self.own(client)?,
            }
        }
        Ok(())
    }
}
