//! The device in a VM of an embedder: its slots come and go, and others' numbers are respected.

mod common;

use common::{Daemon, Manner};
use std::sync::Arc;
use turnstile_abi::pci::{BAR_DOORBELLS, BAR_REGS, MSIX_TABLE};
use turnstile_vmm::attach::{EventFd, Request, Welcome, interrupts, sealed_memory};
use turnstile_vmm::gate::GateState;
use turnstile_vmm::kvm::kvm_bindings::{KVM_IRQ_ROUTING_MSI, kvm_irq_routing_entry};
use turnstile_vmm::kvm::kvm_ioctls::Kvm;
use turnstile_vmm::kvm::{KvmError, KvmVm, Place};
use turnstile_vmm::vmm::kvm_available;

const PLACE: Place = Place {
    regs_gpa: 0xd000_0000,
    doorbells_gpa: 0xd040_0000,
    aperture_gpa: 4 << 30,
    first_slot: 7,
    first_gsi: 24,
};

/// A VM without a vCPU; none where there is no KVM.
fn vm() -> Option<Arc<KvmVm>> {
    if let Err(reason) = kvm_available() {
        println!("SKIPPED: {reason}");
        return None;
    }
    let kvm = Kvm::new().unwrap();
    let vm = KvmVm::new(&kvm, Arc::new(kvm.create_vm().unwrap())).unwrap();
    vm.vm().create_irq_chip().unwrap();
    Some(Arc::new(vm))
}

fn request(daemon: &Daemon) -> Request {
    let file = sealed_memory(c"ram", 1 << 20).unwrap();
    Request::new(daemon.socket(), "kvm", file, 1 << 20)
}

fn welcome(daemon: &Daemon) -> Welcome {
    Welcome::request(request(daemon), &interrupts().unwrap()).unwrap()
}

#[test]
fn device_that_is_dropped_leaves_its_slots_to_the_next() {
    let Some(vm) = vm() else { return };
    for trap_every_write in [false, true, false] {
        let daemon = Daemon::start(Manner::default());
        let mut first = welcome(&daemon);
        first.trap_every_write = trap_every_write;
        let (device, control) = vm.attach(first, PLACE).unwrap();
        let control = std::thread::spawn(|| control.run());
        for state in [GateState::Open, GateState::Closed, GateState::Watched] {
            daemon.gate(0, state);
        }

        // Its slots are taken, and so are its addresses.
        for (place, slot) in [
            (PLACE, PLACE.first_slot),
            (
                Place {
                    first_slot: 100,
                    ..PLACE
                },
                100,
            ),
        ] {
            let other = Daemon::start(Manner::default());
            match vm.attach(welcome(&other), place) {
                Err(KvmError::Slot { slot: found, .. }) => assert_eq!(found, slot),
                other => panic!("{other:?}"),
            }
        }
        device.detach();
        control.join().unwrap().unwrap();
        drop(device);
    }
}

/// Whether KVM takes what is written to an eventfd.
fn is_irqfd(eventfd: &EventFd) -> bool {
    eventfd.write(1).unwrap();
    eventfd.read().is_err()
}

#[test]
fn vector_is_an_irqfd_while_it_has_a_route_beside_those_of_others() {
    let Some(vm) = vm() else { return };
    let mut route = kvm_irq_routing_entry {
        gsi: 5,
        type_: KVM_IRQ_ROUTING_MSI,
        ..Default::default()
    };
    vm.set_other_routes(vec![route]).unwrap();
    // KVM refuses this one, and those before stay.
    route.type_ = 77;
    let error = vm.set_other_routes(vec![route]).unwrap_err();
    assert!(matches!(error, KvmError::Call { .. }), "{error:?}");

    let daemon = Daemon::start(Manner::default());
    let interrupts = interrupts().unwrap();
    let welcome = Welcome::request(request(&daemon), &interrupts).unwrap();
    let (device, control) = vm.attach(welcome, PLACE).unwrap();
    let control = std::thread::spawn(|| control.run());
    let vector = |masked: u32| {
        for (at, word) in (MSIX_TABLE..)
            .step_by(4)
            .zip([0xfee0_0000, 0, 0x41, masked])
        {
            device.gpu().regs_write(at, &word.to_le_bytes());
        }
    };
    assert!(!is_irqfd(&interrupts[0]));
    vector(0);
    // Bit 31 of the capability's first word enables MSI-X.
    let enable = (1u32 << 31).to_le_bytes();
    device.gpu().config_write(0x40, &enable);
    assert!(is_irqfd(&interrupts[0]));
    assert!(!is_irqfd(&interrupts[1]));
    vector(1);
    assert!(!is_irqfd(&interrupts[0]));
    vector(0);
    assert!(is_irqfd(&interrupts[0]));
    vm.set_other_routes(Vec::new()).unwrap();
    assert!(is_irqfd(&interrupts[0]));
    device.detach();
    control.join().unwrap().unwrap();
    drop(device);
    assert!(!is_irqfd(&interrupts[0]));
}

#[test]
fn memory_that_could_disappear_is_refused() {
    let Some(vm) = vm() else { return };
    let unsealed = tempfile::tempfile().unwrap();
    unsealed.set_len(1 << 20).unwrap();
    let sealed = sealed_memory(c"ram", 1 << 20).unwrap();
    for (file, bytes) in [(&unsealed, 1 << 20), (&sealed, 2 << 20)] {
        let error = vm.map_memory(0, 0, file, bytes).unwrap_err();
        assert!(matches!(error, KvmError::Memory(_)), "{error:?}");
    }
    vm.map_memory(0, 0, &sealed, 1 << 20).unwrap();
    let again = vm.map_memory(0, 1 << 30, &sealed, 1 << 20).unwrap_err();
    assert!(matches!(again, KvmError::Slot { slot: 0, .. }), "{again:?}");
}

#[test]
fn trapped_addresses_are_of_the_bars_that_trap() {
    for (gpa, bar) in [
        (0xcfff_ffff, None),
        (0xd000_0000, Some((BAR_REGS, 0))),
        (0xd000_ffff, Some((BAR_REGS, 0xffff))),
        (0xd001_0000, None),
        (0xd040_2004, Some((BAR_DOORBELLS, 0x2004))),
        (0xd080_0000, None),
        (4 << 30, None),
    ] {
        assert_eq!(PLACE.bar(gpa), bar, "{gpa:#x}");
    }
}
