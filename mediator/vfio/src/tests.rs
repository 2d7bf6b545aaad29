//! The backend against simulated hardware in this process.

mod altered;
mod holds;
mod silence;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::physical::{AdminOp, BAR_REGS, regs};
use turnstile_abi::{ChannelStatus, Command, CopyDirection, ErrorCode};
use turnstile_accounting::{AccountId, EngineId, Nanos, TenantId};
use turnstile_vmm::vfio_user::Client;
use vm_memory::GuestAddress;

use self::altered::Altered;
use super::fake::FakeBus;
use super::user::UserBus;
use super::{Bus, Region, StartError, VfioGpu};
use turnstile_gpu::conformance::Checked;
use turnstile_gpu::plain::{PlainChannel, PlainVm};
use turnstile_gpu::prelude::*;
use turnstile_gpu::{EngineReading, Gpu, Order, Suspend};
use turnstile_soft::pci::{PciGpu, Region as Part, serve_client};
use turnstile_soft::{Kernels, SoftConfig};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn config() -> SoftConfig {
    SoftConfig {
        kernels: Kernels::GivenLength,
        memory_bytes: 128 << 20,
        suspend: Suspend::BetweenCommands,
        ..SoftConfig::default()
    }
}

fn gpu() -> (Arc<FakeBus>, VfioGpu) {
    let bus = Arc::new(FakeBus::new(PciGpu::new(config()).unwrap()));
    let gpu = VfioGpu::new(bus.clone()).unwrap();
    (bus, gpu)
}

/// Runs a check on each bus that works without a kernel's help: in this process, and behind the
/// vfio-user protocol.
fn on_each_bus(check: impl Fn(&VfioGpu)) {
    let (_bus, here) = gpu();
    check(&here);
    let device = PciGpu::new(config()).unwrap();
    let (server, client) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_client(&device, server).unwrap());
        let client = Client::over(client).unwrap();
        let bus = UserBus::over(client, "test".into()).unwrap();
        // Dropped at the end, which ends the connection and with it the thread.
        check(&VfioGpu::new(Arc::new(bus)).unwrap());
    });
    let mut contexts = [0; 4];
    device.read(Part::Regs, regs::CONTEXTS, &mut contexts);
    assert_eq!(contexts, [0; 4]);
}

fn vm(gpu: &VfioGpu, tenant: TenantId) -> Arc<PlainVm> {
    PlainVm::enter(gpu, tenant, 16 << 20, 64 << 20, 8).unwrap()
}

fn channel(gpu: &VfioGpu, tenant: TenantId) -> PlainChannel {
    vm(gpu, tenant).open_channel(gpu, tenant, 64, 3).unwrap()
}

/// Waits until `done`, at most ten seconds.
fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10), "no {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn kernel(vm: &PlainVm, length: Nanos) -> Command {
    turnstile_gpu::plain::given_length(vm, length)
}

#[test]
fn data_copied_to_the_card_and_back_is_equal_and_raises_an_interrupt() {
    on_each_bus(|gpu| {
        let mut channel = channel(gpu, A);
        let vm = channel.vm.clone();
        let card = gpu.allocate(A, 3 << 20).unwrap();
        let text: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        let (source, back) = (vm.put(&text), vm.take(text.len() as u64));
        for (direction, source, destination) in [
            (CopyDirection::GuestToGpu, source, card.va + 5),
            (CopyDirection::GpuToGuest, card.va + 5, back),
        ] {
            channel.push(&Command::Copy {
                direction,
                source,
                destination,
                bytes: text.len() as u64,
            });
        }
        channel.push_fence(true);
        channel.ring();
        wait("interrupt", || vm.interrupts.count(3) == 1);
        let mut came = vec![0; text.len()];
        vm.guest.read_slice(&mut came, GuestAddress(back)).unwrap();
        assert!(came == text);
        let mut open = Vec::new();
        gpu.activity(A, &mut open);
        assert_eq!((open.len(), open[0].pending), (1, 0));
        assert!(open[0].last_active.0 > 0 && open[0].last_active <= gpu.now() + Nanos::from_ms(1));
        gpu.free(A, card.va).unwrap();
        assert_eq!(gpu.memory(A).free_bytes, 64 << 20);
    });
}

#[test]
fn access_beyond_vm_memory_faults_and_leaves_other_vms_intact() {
    on_each_bus(|gpu| {
        let (a, b) = (vm(gpu, A), vm(gpu, B));
        let secret = b.put(b"nobody else's");
        let mut good = b.open_channel(gpu, B, 64, 3).unwrap();
        let card = gpu.allocate(A, 2 << 20).unwrap();
        // The end of its own memory, where the other's windows may lie, and the host area.
        for (nth, gpa) in [
            (16u64 << 20) - 8,
            16 << 20,
            1 << 30,
            0x10_0000_0000,
            0x10_0100_0000,
            0x1000_0000,
        ]
        .into_iter()
        .enumerate()
        {
            let mut bad = a.open_channel(gpu, A, 64, 3).unwrap();
            bad.push(&Command::Copy {
                direction: CopyDirection::GpuToGuest,
                source: card.va,
                destination: gpa,
                bytes: 4096,
            });
            bad.ring();
            wait("fault", || {
                bad.state().status == ChannelStatus::Faulted as u32
            });
            assert_eq!(bad.state().error, ErrorCode::NotGuestMemory as u32);
            assert_eq!(gpu.dma_faults(), nth as u32 + 1);
            gpu.close_channel(A, bad.number).unwrap();
        }
        let mut kept = [0; 13];
        b.guest.read_slice(&mut kept, GuestAddress(secret)).unwrap();
        assert_eq!(&kept, b"nobody else's");
        good.push_fence(true);
        good.ring();
        wait("interrupt", || b.interrupts.count(3) == 1);
    });
}

fn conforms(gpu: &VfioGpu) {
    conforms_silenced(gpu, None);
}

fn conforms_silenced(gpu: &VfioGpu, silence: Option<&dyn Fn(bool)>) {
    let pass = &|| thread::sleep(Duration::from_micros(100));
    let kernel = &kernel;
    Checked {
        gpu,
        pass,
        kernel,
        silence,
    }
    .run();
}

#[test]
fn the_device_conforms_on_each_bus_and_however_it_stops_kernels() {
    on_each_bus(conforms);
    for suspend in [Suspend::Drains, Suspend::MidKernel] {
        let config = SoftConfig {
            suspend,
            ..config()
        };
        let bus = Arc::new(FakeBus::new(PciGpu::new(config).unwrap()));
        conforms(&VfioGpu::new(bus).unwrap());
    }
    let bus = Arc::new(FakeBus::version_1_0(PciGpu::new(config()).unwrap()));
    conforms(&VfioGpu::new(bus).unwrap());
}

#[test]
fn a_tenant_leaves_nothing_behind_and_its_place_is_used_again() {
    let (bus, gpu) = gpu();
    for round in 1..40 {
        let tenant = TenantId(round);
        let mut channel = channel(&gpu, tenant);
        channel.push(&kernel(&channel.vm, Nanos::from_ms(1_000)));
        channel.ring();
        wait("start", || {
            gpu.engine_status(EngineId(0)).running == Some(tenant)
        });
        let memory = Arc::downgrade(&channel.vm.guest);
        gpu.destroy_context(tenant);
        drop(channel);
        assert!(memory.upgrade().is_none());
    }
    let mut contexts = [0; 4];
    bus.read(Region::Bar(BAR_REGS), regs::CONTEXTS, &mut contexts)
        .unwrap();
    assert_eq!(contexts, [0; 4]);
    assert!(gpu.open_channel(A, channel(&gpu, A).config).is_ok());
}

#[test]
fn a_mapping_that_goes_takes_its_context_with_it() {
    let (bus, gpu) = gpu();
    let a = vm(&gpu, A);
    let b = channel(&gpu, B);
    bus.device().dma_unmap(0x10_0000_0000, 16 << 20);
    assert!(a.open_channel(&gpu, A, 8, 3).is_err());
    assert!(b.vm.open_channel(&gpu, B, 8, 3).is_ok());
    gpu.destroy_context(A);
}

#[test]
fn commands_that_cannot_be_are_refused_by_the_device() {
    let (_bus, gpu) = gpu();
    let _a = vm(&gpu, A);
    assert!(
        gpu.create_context(
            B,
            PlainVm::new(1 << 20).resources(AccountId(B.0), 2 << 20, 8)
        )
        .is_err()
    );
    // Over the other's doorbell pages, without windows, and an operation that does not exist.
    let create = |context: u64, first: u64, windows: u64| {
        let args = [context, first, 8, 2 << 20, windows];
        gpu.admin().command(AdminOp::CreateContext, &args)
    };
    for (context, first, windows) in [
        (9, 4, 1),
        (9, 1020, 1),
        (1, 100, 1),
        (9, 100, 0),
        (9, 100, 65),
    ] {
        let refused = create(context, first, windows).unwrap_err();
        assert_eq!(refused.code, ErrorCode::BadArgument, "{refused}");
    }
    let refused = gpu.load_module(TenantId(7), "nothing", None).unwrap_err();
    assert!(refused.detail.contains("no context"), "{refused}");
}

#[test]
fn another_device_is_refused() {
    let (bus, gpu) = gpu();
    drop(gpu);
    let other = Altered::new(bus.clone(), |region, offset, data| {
        if region == Region::Config && offset == 0 {
            data[2] ^= 1;
        }
    });
    let refused = VfioGpu::new(Arc::new(other));
    assert!(matches!(
        refused,
        Err(StartError::Foreign { device: 3, .. })
    ));
    VfioGpu::new(bus).unwrap();
}
