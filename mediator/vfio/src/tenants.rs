//! Resources of each tenant: its pages, its memory's addresses, its vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use turnstile_abi::physical::PAGES;
use turnstile_abi::{CHUNK_BYTES, ErrorCode};
use turnstile_accounting::TenantId;
use vm_memory::GuestMemoryBackend;

use super::bus::{Bus, BusError};
use super::pages::Runs;
use turnstile_gpu::layout::Layout;
use turnstile_gpu::{GuestMemory, Refusal, TenantResources};

/// Addresses for the device, in chunks: up to the 39 bits of the narrowest common IOMMU, less their
/// beginning.
const IOVA_CHUNKS: usize = ((1 << 39) - turnstile_abi::GPU_VA_BASE as usize) / CHUNK_BYTES as usize;
/// Maximum number of windows of all tenants.
const WINDOWS_MAX: usize = 4096;

/// A tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    /// First doorbell page.
    pub(super) first: u32,
    /// Its channels that are open.
    pub(super) open: BTreeSet<u32>,
    /// The device's vector for each of its own.
    vectors: BTreeMap<u16, u16>,
    eventfds: Vec<OwnedFd>,
}

/// A tenant's memory as the device accesses it, which this value keeps.
#[derive(Debug)]
pub(super) struct Windows {
    /// gpa, address, bytes.
    pub(super) list: Vec<[u64; 3]>,
    _guest: Arc<GuestMemory>,
}

/// All tenants, and the free resources.
#[derive(Debug)]
pub(super) struct Tenants {
    pub(super) known: BTreeMap<TenantId, Tenant>,
    windows: BTreeMap<TenantId, Windows>,
    /// Pages that are promised to new tenants.
    promised: BTreeMap<TenantId, u32>,
    runs: Runs,
    iovas: Layout,
    vectors: Vec<u16>,
}

impl Tenants {
    /// No tenants, for a device with `vectors` vectors for them.
    pub(super) fn new(vectors: u16) -> Self {
        Self {
            known: BTreeMap::new(),
            windows: BTreeMap::new(),
            promised: BTreeMap::new(),
            runs: Runs::new(PAGES),
            iovas: Layout::new(IOVA_CHUNKS, WINDOWS_MAX),
            vectors: (0..vectors).rev().collect(),
        }
    }

    /// Address and bytes of each window.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (u64, u64)> {
        let windows = self.windows.values().flat_map(|windows| &windows.list);
        windows.map(|[_, iova, bytes]| (*iova, *bytes))
    }

    pub(super) fn tenant(&mut self, tenant: TenantId) -> Result<&mut Tenant, Refusal> {
        self.known.get_mut(&tenant).ok_or_else(|| Refusal {
            code: ErrorCode::BadArgument,
            detail: format!("{tenant} has no context"),
        })
    }

    /// Promises doorbell pages; returns the first.
    pub(super) fn promise(&mut self, tenant: TenantId, count: u32) -> Result<u32, Refusal> {
        if self.promised.contains_key(&tenant) || self.known.contains_key(&tenant) {
            return Err(ErrorCode::BadArgument.into());
        }
        let first = self.runs.take(count).ok_or_else(|| Refusal {
            code: ErrorCode::HostLimit,
            detail: format!("the GPU has no {count} doorbell pages left in a row"),
        })?;
        self.promised.insert(tenant, first);
        Ok(first)
    }

    /// The pages that were promised.
    pub(super) fn promised(&self, tenant: TenantId) -> Result<u32, Refusal> {
        self.promised.get(&tenant).copied().ok_or_else(|| Refusal {
            code: ErrorCode::BadArgument,
            detail: format!("{tenant} was promised no doorbell pages"),
        })
    }

    /// Finds addresses for a tenant's memory.
    pub(super) fn place(
        &mut self,
        tenant: TenantId,
        guest: &Arc<GuestMemory>,
    ) -> Result<Vec<[u64; 3]>, Refusal> {
        let mut list = Vec::new();
        for region in guest.now().iter() {
            use vm_memory::GuestMemoryRegion;
            let bytes = region.len();
            let pages = match self.iovas.find(bytes) {
                Ok(pages) => pages,
                Err(code) => {
                    self.forget(&list);
                    return Err(code.into());
                }
            };
            let given = self.iovas.insert(&pages);
            list.push([region.start_addr().0, given.va, bytes]);
        }
        let windows = Windows {
            list: list.clone(),
            _guest: guest.clone(),
        };
        self.windows.insert(tenant, windows);
        Ok(list)
    }

    fn forget(&mut self, windows: &[[u64; 3]]) {
        for [_, iova, _] in windows {
            // The range came from `place`.
            let _ = self.iovas.remove(*iova);
        }
    }

    /// Adds a tenant that the device has accepted.
    pub(super) fn insert(&mut self, id: TenantId, first: u32, resources: &TenantResources) {
        self.promised.remove(&id);
        let eventfds = resources.interrupts.descriptors();
        let tenant = Tenant {
            first,
            open: BTreeSet::new(),
            vectors: BTreeMap::new(),
            // A VM without vectors polls.
            eventfds: eventfds.unwrap_or_default(),
        };
        self.known.insert(id, tenant);
    }

    /// The device's vector that raises the tenant's `vector`; connects one if there is none yet.
    pub(super) fn vector(
        &mut self,
        bus: &dyn Bus,
        id: TenantId,
        vector: u16,
    ) -> Result<u16, Refusal> {
        let tenant = self.tenant(id)?;
        if let Some(known) = tenant.vectors.get(&vector) {
            return Ok(*known);
        }
        if usize::from(vector) >= tenant.eventfds.len() {
            // It stays silent, like a vector that the VM does not have.
            return Ok(u16::MAX);
        }
        let device = self.vectors.pop().ok_or_else(|| Refusal {
            code: ErrorCode::HostLimit,
            detail: "the GPU's interrupt vectors are used up".into(),
        })?;
        let tenant = self.known.get_mut(&id);
        let connected = tenant.map(|tenant| {
            let eventfd = tenant.eventfds[usize::from(vector)].as_fd();
            let connected = bus.connect(device, Some(eventfd));
            connected.map(|()| tenant.vectors.insert(vector, device))
        });
        match connected {
            Some(Ok(_)) => Ok(device),
            failed => {
                self.vectors.push(device);
                Err(failed.and_then(Result::err).map_or_else(
                    || ErrorCode::BadArgument.into(),
                    |error: BusError| error.into(),
                ))
            }
        }
    }

    /// Removes a tenant that the device has removed, and disconnects its vectors. The caller has to
    /// unmap its memory.
    pub(super) fn remove(&mut self, bus: &dyn Bus, id: TenantId) -> Option<Windows> {
        let promised = self.promised.remove(&id);
        let tenant = self.known.remove(&id);
        let first = promised.or(tenant.as_ref().map(|tenant| tenant.first));
        if let Some(first) = first {
            self.runs.give_back(first);
        }
        for device in tenant
            .into_iter()
            .flat_map(|tenant| tenant.vectors.into_values())
        {
            // A vector that could not be disconnected is never used again.
            if bus.connect(device, None).is_ok() {
                self.vectors.push(device);
            }
        }
        self.windows.remove(&id)
    }

    /// Frees addresses where nothing is mapped.
    pub(super) fn unplace(&mut self, windows: &Windows) {
        self.forget(&windows.list);
    }
}
