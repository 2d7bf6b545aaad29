//! Admission of a tenant: its first message is checked, then it gets a context, pages and a place.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::regs::features;
use turnstile_abi::{CHUNK_BYTES, pci};
use turnstile_accounting::{AccountId, TenantId};
use turnstile_policies::Weight;
use turnstile_vmm::wire::{FrameWriter, Protocols, ToDaemon, ToVmm};

use super::error::HostError;
use super::host::Host;
use super::host::described::checked;
use super::host::dma::{MemoryDesk, guest_memory};
use super::host::mailbox::Mailbox;
use super::host::peer::{Kind, Peer, Tenant, Vm, refuse};
use super::host::settings::Brought;
use crate::accounts::Claim;
use crate::limits::{Holder, is_trusted};
use crate::names::{NAME_BYTES_MAX, is_tenant_name};
use crate::tenant::gates::GateBook;
use crate::tenant::pages::{StatusPage, doorbell_pages};
use turnstile_gpu::TenantResources;
use turnstile_gpu::interrupts::PassedInterrupts;
use turnstile_host::room::has_room;

/// Takes a VM in: checks its Hello, makes its context and pages, answers Welcome. `uid` is the
/// user of its VMM.
/// Returns its number, its account and the kick that its VMM signals.
pub(super) fn admit(
    host: &Arc<Host>,
    hello: ToDaemon,
    mut fds: Vec<OwnedFd>,
    stream: UnixStream,
    uid: u32,
) -> Result<(TenantId, AccountId, File), HostError> {
    let mut writer = FrameWriter::new();
    let taken = take_in(host, hello, &mut fds, &stream, uid, &mut writer);
    if let Err(error) = &taken {
        refuse(error, &stream);
    }
    taken
}

/// Checks that there is memory for one more tenant, and what every tenant sends first. Returns
/// the weight that it claims.
pub(super) fn permitted(
    protocol: u32,
    name: &str,
    weight: Option<u32>,
) -> Result<Option<Weight>, HostError> {
    // A peer that offered no range speaks the version of its greeting alone.
    Protocols::SPOKEN.choose(Protocols::only(protocol))?;
    if !is_tenant_name(name) {
        let name = name.chars().take(NAME_BYTES_MAX).collect();
        return Err(HostError::BadName { name });
    }
    if !has_room(0) {
        return Err(HostError::NoMemory);
    }
    Ok(weight.map(Weight::new).transpose()?)
}

fn take_in(
    host: &Arc<Host>,
    hello: ToDaemon,
    fds: &mut Vec<OwnedFd>,
    stream: &UnixStream,
    uid: u32,
    writer: &mut FrameWriter,
) -> Result<(TenantId, AccountId, File), HostError> {
    let ToDaemon::Hello {
        protocol,
        name,
        weight,
        gpu_memory_bytes,
        regions,
        metadata,
    } = hello
    else {
        return Err(HostError::NoHello);
    };
    let weight = permitted(protocol, &name, weight)?;
    let metadata = checked(metadata)?;
    let memory_bytes = gpu_memory_bytes.unwrap_or(host.config.gpu_memory_bytes);
    let max = host.gpu.capabilities().memory_bytes;
    if memory_bytes == 0 || memory_bytes > max || !memory_bytes.is_multiple_of(CHUNK_BYTES) {
        return Err(HostError::GpuMemory {
            bytes: memory_bytes,
            max,
        });
    }
    let vectors = 1..=usize::from(pci::VECTORS);
    let memory_fds = fds.len().min(usize::from(!regions.is_empty()));
    if !vectors.contains(&(fds.len() - memory_fds)) {
        return Err(HostError::Descriptors { got: fds.len() });
    }
    let interrupts = Arc::new(PassedInterrupts::new(fds.split_off(memory_fds))?);
    let status = StatusPage::new()?;
    let kick = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|errno| HostError::Host(errno.into()))?;
    let kick = File::from(kick);
    let duplicate = |file: &File| file.try_clone().map(OwnedFd::from).map_err(HostError::Host);

    let (tenant, account, granted) = {
        let state = &mut *host.lock();
        host.room(state, &name)?;
        let claim = Claim {
            weight,
            default_weight: host.default_weight(),
            memory_bytes: Some(memory_bytes),
        };
        let granted = state
            .accounts
            .join(&mut state.mediation, &name, uid, claim)?;
        let tenant = host.common.number();
        state.starting.insert(name.clone(), tenant);
        // Before the GPU executes for it: each of its records has them.
        state.described.connect(tenant, metadata);
        let set = state.set_of(&name).metadata;
        state.described.set(tenant, &set);
        (tenant, state.accounts.of(&name).0, granted)
    };
    // A GPU may take long for this; the lock is free meanwhile.
    let _starting = Starting::of(host, &name, tenant);
    let holder = Holder {
        account: granted.account.clone(),
        tenant: Some(tenant),
        trusted: is_trusted(uid),
    };
    let mapped = guest_memory(host, fds.pop(), &regions, holder.clone())?;
    let guest = mapped.guest().clone();
    let desk = MemoryDesk::new(mapped);
    let mailbox = Mailbox::start(host, tenant, guest.clone(), holder.clone());
    let mailbox = mailbox.map_err(HostError::Host)?;
    let own = host.gpu.doorbells(tenant, host.config.channels);
    let doorbells = match own.map_err(HostError::Gpu)? {
        Some(own) => own,
        None => Arc::new(doorbell_pages(host.config.channels)?),
    };
    let resources = TenantResources {
        account,
        guest,
        doorbells: doorbells.clone(),
        interrupts,
        memory_bytes,
        channels: host.config.channels,
    };
    let aperture = host
        .gpu
        .create_context(tenant, resources)
        .map_err(HostError::Gpu)?;
    let capability = host.gpu.capabilities();
    let mut feature_bits = features::PTX | features::STATUS_PAGE;
    if capability.aperture {
        feature_bits |= features::APERTURE;
    }
    if capability.software {
        feature_bits |= features::SOFTWARE;
    }
    let welcome = ToVmm::Welcome {
        tenant: tenant.0,
        channels: host.config.channels,
        gpu_memory_bytes: memory_bytes,
        features: feature_bits,
        doorbells_offset: doorbells.offset(),
    };
    let answered = (|| {
        let pages = doorbells.file().ok_or(io::ErrorKind::Unsupported);
        let fds = vec![
            duplicate(pages.map_err(|kind| HostError::Host(kind.into()))?)?,
            duplicate(status.file())?,
            OwnedFd::from(aperture),
            duplicate(&kick)?,
        ];
        writer.push(&welcome, fds)?;
        writer.flush(stream)?;
        stream.try_clone().map_err(HostError::Host)
    })();
    let stream = match answered {
        Ok(stream) => stream,
        Err(error) => {
            host.gpu.destroy_context(tenant);
            return Err(error);
        }
    };
    let writer = std::mem::take(writer);
    let vm = Vm {
        mailbox,
        gates: GateBook::default(),
        status,
        desk,
    };
    let peer = Peer { stream, writer };
    let mut state = host.lock();
    let brought = Brought {
        weight: granted.weight,
        memory_bytes,
        min_bytes: 0,
        high_bytes: None,
    };
    state.connects(host.journal(), tenant, &name);
    let entry = Tenant {
        account: state.accounts.of(&name),
        name,
        peer,
        kind: Kind::Vm(Box::new(vm)),
        brought,
        holder,
    };
    state.insert(&*host.gpu, host.limits(), tenant, entry);
    host.end_idle();
    Ok((tenant, account, kick))
}

/// A name that is reserved for a tenant during its admission.
pub(super) struct Starting<'a> {
    pub(super) host: &'a Host,
    name: String,
    pub(super) tenant: TenantId,
}

impl<'a> Starting<'a> {
    /// After the name was reserved, and without the host's lock.
    pub(super) fn of(host: &'a Host, name: &str, tenant: TenantId) -> Self {
        Self {
            host,
            name: name.to_owned(),
            tenant,
        }
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut state = self.host.lock();
        state.starting.remove(&self.name);
        if !state.tenants.contains_key(&self.tenant) {
            state.accounts.book.leave(&self.name);
            state.described.leave(self.tenant);
        }
    }
}
