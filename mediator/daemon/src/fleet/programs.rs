//! The GPUs of a program: one that placement chooses, or those that its launcher names.
//!
//! In: a launcher's greeting. Out: a tenant with an entity on each GPU, and the launcher's answer
//! with their identities; or a refusal, and then the program is on none of them.

use std::os::unix::net::UnixStream;

use turnstile_policies::place::{Job, Placed};
use turnstile_vmm::wire::{FrameWriter, GPUS_SINCE, Gpus, ToDaemon, ToVmm, peer_pid};

use super::{Fleet, Member, Places, Seat};
use crate::admission::permitted;
use crate::error::{HostError, PlacementError};
use crate::host::described::checked;
use crate::host::refuse;
use crate::programs::{Claimed, Entering, Program, gone};
use turnstile_host::process::Identity;

/// Characters of a GPU's name in a refusal.
const NAME_CHARACTERS_MAX: usize = 64;

/// Takes a program in: the tenant is what descends from the process at the other end, a process
/// of `uid`.
pub(crate) fn admit(
    fleet: &Fleet,
    program: ToDaemon,
    stream: &UnixStream,
    uid: u32,
) -> Result<Program, HostError> {
    let taken = take(fleet, program, stream, uid);
    if let Err(error) = &taken {
        refuse(error, stream);
    }
    taken
}

fn take(
    fleet: &Fleet,
    program: ToDaemon,
    stream: &UnixStream,
    uid: u32,
) -> Result<Program, HostError> {
    let ToDaemon::Program {
        protocol,
        name,
        weight,
        memory_max_bytes,
        movable,
        memory_min_bytes,
        memory_high_bytes,
        gpus,
        metadata,
    } = program
    else {
        return Err(HostError::NoHello);
    };
    if fleet.is_declared(&name) {
        return Err(HostError::Declared { name });
    }
    let first = fleet.first();
    let weight = permitted(protocol, &name, weight)?;
    let metadata = checked(metadata)?;
    let pid = peer_pid(stream).map_err(HostError::Peer)?;
    let root = Identity::of(pid).ok_or_else(|| HostError::Peer(gone()))?;
    if let Some(name) = fleet
        .hosts()
        .find_map(|host| host.lock().program_around(pid))
    {
        return Err(HostError::Nested { name });
    }
    let claimed = Claimed {
        name,
        weight,
        memory_max_bytes,
        movable,
        memory_min_bytes,
        memory_high_bytes,
        metadata,
        root,
        uid,
    };
    // A launcher that names no GPUs leaves them to its program, which takes the first.
    let gpus = match protocol < GPUS_SINCE {
        true => Gpus::Kept(vec![fleet.members[0].identity.gpu.clone()]),
        false => gpus,
    };
    let seats = seats(fleet, &claimed, &gpus)?;
    let members = || seats.iter().map(|seat| &fleet.members[seat.gpu]);
    let tenant = first.common.number();
    let entering = members().map(|member| {
        let stream = stream.try_clone().map_err(HostError::Host)?;
        Ok((Entering::prepare(&member.host, &claimed, tenant)?, stream))
    });
    let entering: Vec<(Entering<'_>, UnixStream)> = entering.collect::<Result<_, HostError>>()?;
    let named = (protocol >= GPUS_SINCE).then(|| members().map(|one| one.identity.gpu.clone()));
    let admitted = ToVmm::Admitted {
        tenant: tenant.0,
        gpus: named.into_iter().flatten().collect(),
    };
    let mut writer = FrameWriter::new();
    writer.push(&admitted, Vec::new())?;
    writer.flush(stream)?;
    for (entering, stream) in entering {
        entering.enter(&claimed, stream);
    }
    let hosts: Vec<_> = members().map(|member| member.host.clone()).collect();
    for seat in seats {
        let gpu = seat.gpu;
        if !seat.taken(tenant) {
            // It was removed meanwhile.
            fleet.leave(&hosts, tenant);
            return Err(closed(fleet, gpu).into());
        }
    }
    Ok(Program::new(hosts, tenant))
}

/// Places of a program, at least one.
fn seats<'a>(fleet: &'a Fleet, claimed: &Claimed, gpus: &Gpus) -> Result<Vec<Seat<'a>>, HostError> {
    let name = &claimed.name;
    let job = Job {
        memory_bytes: claimed.memory_max_bytes.unwrap_or(0),
        blocks: 1,
        threads: 32,
    };
    let mut places = fleet.places();
    if places.arriving.contains(name) || fleet.hosts().any(|host| host.has(name)) {
        return Err(HostError::NameTaken { name: name.clone() });
    }
    let chosen = choose(fleet, &mut places, gpus, job)?;
    let refused = match &chosen[..] {
        _ if !claimed.movable => None,
        [(gpu, _)] => {
            let Member { identity, host } = &fleet.members[*gpu];
            // A program that is there already stays.
            let stays = matches!(gpus, Gpus::Kept(_));
            let moves = host.gpu().capabilities().moves_memory();
            let gpu = identity.gpu.clone();
            (!stays && !moves).then_some(HostError::Immovable { gpu })
        }
        several => Some(HostError::Movable {
            gpus: several.len(),
        }),
    };
    if let Some(refused) = refused {
        for (_, placed) in &chosen {
            placed.iter().for_each(|placed| places.gpus.release(placed));
        }
        return Err(refused);
    }
    places.arriving.insert(name.clone());
    let seat = |(gpu, placed)| Seat {
        fleet,
        name: name.clone(),
        gpu,
        placed,
        declared: None,
    };
    Ok(chosen.into_iter().map(seat).collect())
}

/// GPUs for a program, with what it commits of each. One GPU alone is not placed on.
fn choose(
    fleet: &Fleet,
    places: &mut Places,
    gpus: &Gpus,
    job: Job,
) -> Result<Vec<(usize, Option<Placed>)>, HostError> {
    let all = 0..fleet.members.len();
    let is_open = |gpu: &usize| !places.gpus.is_closed(*gpu);
    let named: Vec<usize> = match gpus {
        Gpus::Placed if all.len() == 1 && is_open(&0) => return Ok(vec![(0, None)]),
        Gpus::Placed => {
            let placed = places.gpus.place(fleet.rule, job);
            let placed = placed.map_err(PlacementError::from)?;
            let placed = placed.ok_or_else(|| fleet.full(places, job.memory_bytes))?;
            return Ok(vec![(placed.gpu, Some(placed))]);
        }
        Gpus::All => all.filter(is_open).collect(),
        Gpus::Named(names) | Gpus::Kept(names) => {
            let found = names.iter().map(|name| named(fleet, name));
            let found: Vec<usize> = found.collect::<Result<_, _>>()?;
            // A program stays on a GPU that is closed, and not on one that was removed.
            let refuses = |gpu: &usize| match gpus {
                Gpus::Kept(_) => fleet.members[*gpu].host.is_removed(),
                _ => !is_open(gpu),
            };
            if let Some(gpu) = found.iter().find(|gpu| refuses(gpu)) {
                return Err(closed(fleet, *gpu).into());
            }
            found
        }
    };
    let mut chosen: Vec<usize> = Vec::new();
    for gpu in named {
        if !chosen.contains(&gpu) {
            chosen.push(gpu);
        }
    }
    if chosen.is_empty() {
        return Err(fleet.full(places, job.memory_bytes).into());
    }
    let put = |gpu| (gpu, Some(places.gpus.put(gpu, job)));
    Ok(chosen.into_iter().map(put).collect())
}

fn closed(fleet: &Fleet, gpu: usize) -> PlacementError {
    let gpu = fleet.members[gpu].identity.gpu.clone();
    PlacementError::Closed { gpu }
}

/// The GPU of this identity, or at this place.
fn named(fleet: &Fleet, name: &str) -> Result<usize, PlacementError> {
    let at = name.parse().ok();
    let at = at.filter(|place| *place < fleet.members.len());
    fleet.place_of(name).or(at).ok_or_else(|| {
        let has = fleet
            .members
            .iter()
            .map(|member: &Member| &*member.identity.gpu);
        PlacementError::NoGpu {
            name: name.chars().take(NAME_CHARACTERS_MAX).collect(),
            has: has.collect::<Vec<_>>().join(", "),
        }
    })
}
