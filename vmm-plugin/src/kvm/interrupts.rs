//! Interrupt messages as routes of irqfds, in one table for the whole VM.

use super::KvmVm;
use crate::attach::{EventFd, Router};
use crate::device::MsiMessage;
use kvm_bindings::{
    KVM_IRQ_ROUTING_MSI, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_msi,
};
use kvm_ioctls::VmFd;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// The VM's routes. KVM takes them all at once.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Those of the VMM's other devices.
    pub(super) others: Vec<kvm_irq_routing_entry>,
    /// The device's, by interrupt line.
    device: BTreeMap<u32, MsiMessage>,
}

impl Routes {
    /// Makes them KVM's.
    pub(super) fn apply(&self, vm: &VmFd) -> io::Result<()> {
        let entry = |(gsi, message): (&u32, &MsiMessage)| kvm_irq_routing_entry {
            gsi: *gsi,
            type_: KVM_IRQ_ROUTING_MSI,
            u: kvm_irq_routing_entry__bindgen_ty_1 {
                msi: kvm_irq_routing_msi {
                    address_lo: message.address as u32,
                    address_hi: (message.address >> 32) as u32,
                    data: message.data,
                    ..Default::default()
                },
            },
            ..Default::default()
        };
        let device = self.device.iter().map(entry);
        let entries: Vec<_> = self.others.iter().copied().chain(device).collect();
        let routing = KvmIrqRouting::from_entries(&entries).map_err(io::Error::other)?;
        vm.set_gsi_routing(&routing).map_err(io::Error::from)
    }
}

/// Delivers the device's interrupt messages as irqfds. An eventfd without a route keeps its count,
/// and KVM reads it when it is routed again. A drop takes the routes back.
#[derive(Debug)]
pub struct IrqRouter {
    vm: Arc<KvmVm>,
    interrupts: Arc<[EventFd]>,
    first_gsi: u32,
    /// Vectors that are irqfds.
    routed: Vec<bool>,
}

impl IrqRouter {
    pub(super) fn new(vm: &Arc<KvmVm>, interrupts: &Arc<[EventFd]>, first_gsi: u32) -> Self {
        Self {
            vm: Arc::clone(vm),
            interrupts: Arc::clone(interrupts),
            first_gsi,
            routed: vec![false; interrupts.len()],
        }
    }

    /// Sets or removes a route; returns whether KVM has it.
    fn set(&self, gsi: u32, message: Option<MsiMessage>) -> bool {
        let mut routes = self.vm.routes();
        let Some(message) = message else {
            // A route that no irqfd uses delivers nothing: the next change takes it out of KVM.
            routes.device.remove(&gsi);
            return false;
        };
        let before = routes.device.insert(gsi, message);
        let applied = routes.apply(self.vm.vm()).is_ok();
        if !applied {
            match before {
                Some(before) => routes.device.insert(gsi, before),
                None => routes.device.remove(&gsi),
            };
        }
        applied
    }
}

impl Router for IrqRouter {
    fn route(&mut self, vector: u16, message: Option<MsiMessage>) {
        let at = usize::from(vector);
        let Some(interrupt) = self.interrupts.get(at) else {
            return;
        };
        let gsi = self.first_gsi + u32::from(vector);
        // KVM refuses messages that no hardware would deliver. Such a vector stays silent, as on
        // hardware.
        let wanted = self.set(gsi, message);
        let vm = self.vm.vm();
        match (self.routed[at], wanted) {
            (false, true) => self.routed[at] = vm.register_irqfd(interrupt, gsi).is_ok(),
            (true, false) => {
                // It was registered, so this cannot fail; if it did, the vector would continue as
                // before.
                let _ = vm.unregister_irqfd(interrupt, gsi);
                self.routed[at] = false;
            }
            _ => {}
        }
        if message.is_some() && !self.routed[at] {
            self.set(gsi, None);
        }
    }
}

impl Drop for IrqRouter {
    fn drop(&mut self) {
        for vector in 0..self.interrupts.len() as u16 {
            self.route(vector, None);
        }
    }
}
