//! The examples of an embedder run against a daemon.

mod common;
#[path = "../../../vmm-plugin/examples/kvm.rs"]
mod kvm;
#[path = "../../../vmm-plugin/examples/toy.rs"]
mod toy;

use common::serve;
use turnstile_images::{Load, Workload, guest_built};
use turnstile_vmm::vmm::kvm_available;

#[test]
fn a_guest_that_is_a_thread_submits_through_the_embedded_device() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = serve(folder.path(), &[]);
    let socket = folder.path().join("vmm.sock");
    assert_eq!(toy::run(&socket, 100).unwrap(), 100);
    // The name is free again: the tenant went with its connection.
    assert_eq!(toy::run(&socket, 3).unwrap(), 3);
}

#[test]
fn a_vm_of_another_vmm_runs_a_load_on_the_embedded_device() {
    let built = guest_built().map_err(|reason| reason.to_string());
    let available = kvm_available().map_err(|reason| reason.to_string());
    if let Err(reason) = built.and(available) {
        println!("SKIPPED: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let _daemon = serve(folder.path(), &[]);
    let load = Load {
        duration_ns: 300_000_000,
        ..Load::default()
    };
    // Every kernel and its results before the load and after it.
    let report = kvm::run(&folder.path().join("vmm.sock"), Workload::Demo(load)).unwrap();
    assert!(report.verified > 0 && report.launches > 0, "{report:?}");
    assert_eq!(report.failed, 0);
}
