//! The end of a host over the software GPU. No tenant computes: tenants have memory and want
//! nothing.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::AccountId;
use turnstile_policies::Weight;
use turnstile_vmm::wire::FrameWriter;

use super::*;
use crate::host::dma::{Mapped, MemoryDesk};
use crate::host::mailbox::Mailbox;
use crate::host::peer::{Peer, Tenant, Vm};
use crate::host::settings::Brought;
use crate::host::{Host, HostConfig};
use crate::limits::Holder;
use crate::tenant::gates::GateBook;
use crate::tenant::pages::StatusPage;
use turnstile_gpu::Suspend;
use turnstile_gpu::plain::PlainVm;
use turnstile_host::process::Identity;
use turnstile_soft::{SoftConfig, SoftGpu};

const CARD_CHUNKS: u64 = 8;
/// TIMEOUT: chunks that were never written move at once.
const PATIENCE: Duration = Duration::from_secs(60);

fn host() -> Arc<Host> {
    let config = SoftConfig {
        memory_bytes: CARD_CHUNKS * CHUNK_BYTES,
        host_pool_bytes: 4 * CARD_CHUNKS * CHUNK_BYTES,
        suspend: Suspend::BetweenCommands,
        ..SoftConfig::default()
    };
    let gpu = Arc::new(SoftGpu::new(config).unwrap());
    Arc::new(Host::new(gpu, HostConfig::default()).unwrap())
}

/// A tenant with `chunks` chunks. The software GPU takes no programs, so it takes this one as a VM.
fn enter(host: &Arc<Host>, name: &str, program: bool, chunks: u64) -> TenantId {
    let (stream, _) = UnixStream::pair().unwrap();
    let writer = FrameWriter::new();
    let brought = Brought {
        weight: Weight::DEFAULT,
        memory_bytes: CARD_CHUNKS * CHUNK_BYTES,
        min_bytes: 0,
        high_bytes: None,
    };
    let tenant = host.common.number();
    let vm = PlainVm::enter(&**host.gpu(), tenant, 1 << 20, brought.memory_bytes, 1).unwrap();
    let holder = Holder {
        account: "a".into(),
        tenant: Some(tenant),
        trusted: true,
    };
    let mapped = Mapped::map(None, &[], host.limits().clone(), holder.clone()).unwrap();
    let kind = if program {
        Kind::Program(Identity::of(std::process::id()).unwrap())
    } else {
        Kind::Vm(Box::new(Vm {
            mailbox: Mailbox::start(host, tenant, vm.guest.clone(), holder.clone()).unwrap(),
            gates: GateBook::default(),
            status: StatusPage::new().unwrap(),
            desk: MemoryDesk::new(mapped),
        }))
    };
    let peer = Peer { stream, writer };
    let entry = Tenant {
        name: name.into(),
        account: (AccountId(1), "a".into()),
        peer,
        kind,
        brought,
        holder,
    };
    host.lock().insert(&*host.gpu, host.limits(), tenant, entry);
    host.gpu().allocate(tenant, chunks * CHUNK_BYTES).unwrap();
    host.memory_tick();
    tenant
}

/// Chunks on the card, and away.
fn chunks(host: &Host, tenant: TenantId) -> (u64, u64) {
    let state = host.lock();
    let manager = state.memory.as_ref().unwrap().keeper.manager();
    let bytes = manager.totals(tenant).bytes;
    (bytes.on_card() / CHUNK_BYTES, bytes.swapped / CHUNK_BYTES)
}

fn until_home(host: &Host) {
    let begin = Instant::now();
    while host.homecoming() != Homecoming::default() {
        assert!(begin.elapsed() < PATIENCE, "{:?}", host.homecoming());
        host.memory_tick();
        thread::yield_now();
    }
}

#[test]
fn program_memory_returns_after_a_request_also_for_later_programs() {
    let host = host();
    let vm = enter(&host, "vm", false, 6);
    let program = enter(&host, "program", true, 5);
    assert_eq!(
        (chunks(&host, vm), chunks(&host, program)),
        ((6, 0), (0, 5))
    );
    // Reading it changes nothing.
    for _ in 0..100 {
        assert_eq!(host.homecoming(), Homecoming::default());
        host.memory_tick();
    }
    assert_eq!(chunks(&host, program), (0, 5));

    host.bring_memory_back();
    assert_eq!(host.homecoming().left_bytes, 5 * CHUNK_BYTES);
    until_home(&host);
    assert_eq!(
        (chunks(&host, vm), chunks(&host, program)),
        ((3, 3), (5, 0))
    );

    let other = enter(&host, "other", true, 2);
    let late = enter(&host, "late", false, 1);
    until_home(&host);
    assert_eq!(
        (chunks(&host, program), chunks(&host, other)),
        ((5, 0), (2, 0))
    );
    // The VM with the remaining chunk depends on the mover's progress when `late` was admitted.
    let (vm, late) = (chunks(&host, vm), chunks(&host, late));
    assert_eq!((vm.0 + late.0, vm.1 + late.1), (1, 6), "VMs' makes way");
    let large = enter(&host, "large", true, 2);
    let lost = vec!["large".to_owned()];
    assert_eq!(
        host.homecoming(),
        Homecoming {
            left_bytes: 0,
            lost
        }
    );
    host.leave(large);
    assert_eq!(host.homecoming(), Homecoming::default());
}

#[test]
fn engine_is_known_to_be_idle_while_memory_keeps_every_tenant_from_running() {
    let host = host();
    enter(&host, "vm", false, 6);
    enter(&host, "program", true, 5);
    host.memory_tick();
    let begin = host.gpu().now();
    assert_eq!(host.memory_idle(begin), Nanos::ZERO, "the VM may run");
    host.bring_memory_back();
    until_home(&host);
    host.memory_tick();
    let end = host.gpu().now();
    let idle = host.memory_idle(end);
    assert!(idle > Nanos::ZERO && idle < end.since(begin), "{idle:?}");
    host.memory_tick();
    let now = host.gpu().now();
    assert_eq!(host.memory_idle(now), Nanos::ZERO, "the program may run");
}
