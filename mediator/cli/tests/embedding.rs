//! The example of an embedder runs against a daemon.

mod common;
#[path = "../../../vmm-plugin/examples/toy.rs"]
mod toy;

use common::serve;

#[test]
fn a_guest_that_is_a_thread_submits_through_the_embedded_device() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = serve(folder.path(), &[]);
    let socket = folder.path().join("vmm.sock");
    assert_eq!(toy::run(&socket, 100).unwrap(), 100);
    // The name is free again: the tenant went with its connection.
    assert_eq!(toy::run(&socket, 3).unwrap(), 3);
}
