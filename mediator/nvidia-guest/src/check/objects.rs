//! Files, clients and objects of a VM.

use std::collections::{BTreeMap, BTreeSet};

use super::memory::{Mappings, Memories, MemoryId};
use super::{Mapping, Usage};
use crate::abi::Node;
use crate::abi::numbers::class;

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) node: Node,
    pub(super) program: u64,
    /// The control file that it is registered to.
    pub(super) control: Option<u32>,
    pub(super) mapping: Option<Mapping>,
    /// Address spaces, of a file of unified memory.
    pub(super) spaces: Vec<Registered>,
    /// Ranges in guest RAM: base -> client and handle of the memory.
    pub(super) ranges: BTreeMap<u64, (u32, u32)>,
    /// GPU memory that it maps, of a file of unified memory.
    pub(super) mappings: Mappings,
}

/// An address space that was registered with unified memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub(super) gpu: [u8; 16],
    pub(super) control: u32,
    pub(super) client: u32,
    pub(super) vaspace: u32,
}

/// A client of the driver.
#[derive(Debug)]
pub(super) struct Client {
    /// The file that it was made on; the driver frees it with that.
    pub(super) file: u32,
    pub(super) objects: BTreeMap<u32, Object>,
}

/// An object of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// The object above it.
    pub parent: u32,
    /// Its class.
    pub class: u32,
    /// Bytes of GPU memory that was allocated under this handle.
    pub gpu_bytes: u64,
    /// The GPU memory that it refers to.
    pub(super) memory: Option<MemoryId>,
    /// Bytes of guest RAM.
    pub pinned_bytes: u64,
    /// A channel group's engine; whether a doorbell page is through BAR 1; whether GPU memory is
    /// used by more than its handle.
    pub detail: u32,
}

/// An object that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its client.
    pub client: u32,
    /// Its handle.
    pub handle: u32,
    /// What it is.
    pub object: Object,
}

/// The clients and objects of a VM, and what they take together.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) clients: BTreeMap<u32, Client>,
    pub(super) memories: Memories,
    /// Without the memory of `memories`.
    pub(super) usage: Usage,
}

/// Something that is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// An object; its guest RAM is no longer used.
    Gone {
        /// Its client.
        client: u32,
        /// Its handle.
        handle: u32,
        /// Its class.
        class: u32,
    },
    /// An object of the device process's making that it has to free.
    Object {
        /// Its client.
        client: u32,
        /// Its handle.
        handle: u32,
    },
}

impl File {
    pub(super) fn new(node: Node, program: u64) -> Self {
        Self {
            node,
            program,
            control: None,
            mapping: None,
            spaces: Vec::new(),
            ranges: BTreeMap::new(),
            mappings: Mappings::default(),
        }
    }
}

impl Usage {
    fn add(&mut self, object: &Object) {
        self.objects += 1;
        self.channels += usize::from(class::is_channel(object.class));
        self.pinned_bytes += object.pinned_bytes;
    }

    fn remove(&mut self, object: &Object) {
        self.objects -= 1;
        self.channels -= usize::from(class::is_channel(object.class));
        self.pinned_bytes -= object.pinned_bytes;
    }
}

impl Objects {
    pub(super) fn get(&self, client: u32, handle: u32) -> Option<Object> {
        self.clients.get(&client)?.objects.get(&handle).copied()
    }

    /// Notes an object. It holds the memory that it names, or memory of its own.
    pub(super) fn insert(&mut self, client: u32, handle: u32, mut object: Object) -> Made {
        if let Some(known) = self.clients.get_mut(&client) {
            object.memory = match object.memory {
                Some(memory) => self.memories.hold(memory),
                None => (object.gpu_bytes > 0).then(|| self.memories.add(object.gpu_bytes)),
            };
            // The driver never gives a handle out twice.
            let before = known.objects.insert(handle, object);
            self.usage.add(&object);
            if let Some(before) = before {
                self.removed(&before);
            }
        }
        Made {
            client,
            handle,
            object,
        }
    }

    fn removed(&mut self, object: &Object) {
        self.usage.remove(object);
        if let Some(memory) = object.memory {
            self.memories.release(memory);
        }
    }

    /// Removes an object and all below it; the client itself with its own handle.
    pub(super) fn free(&mut self, client: u32, handle: u32, freed: &mut Vec<Freed>) {
        let Some(known) = self.clients.get(&client) else {
            return;
        };
        let whole = client == handle;
        let mut gone = BTreeSet::from([handle]);
        loop {
            let below = known.objects.iter().filter(|(own, object)| {
                !gone.contains(own) && (whole || gone.contains(&object.parent))
            });
            let below: Vec<u32> = below.map(|(own, _)| *own).collect();
            if below.is_empty() {
                break;
            }
            gone.extend(below);
        }
        for handle in gone {
            let known = self.clients.get_mut(&client);
            if let Some(object) = known.and_then(|known| known.objects.remove(&handle)) {
                self.removed(&object);
                freed.push(Freed::Gone {
                    client,
                    handle,
                    class: object.class,
                });
            }
        }
        if whole {
            self.clients.remove(&client);
            self.usage.objects -= 1;
            freed.push(Freed::Gone {
                client,
                handle: client,
                class: class::ROOT,
            });
        }
    }
}
