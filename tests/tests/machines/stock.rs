//! Two stock Linux guests in stock QEMU, without acceleration, share the software GPU at weights 1
//! to 3.

use std::time::Instant;

use turnstile_tests::linux::{Guest, KERNEL_US, share};
use turnstile_tests::machine::Machine;

use crate::{alone, lab};

#[test]
fn two_stock_linux_guests_share_at_one_to_three() {
    let _alone = alone();
    let start = Instant::now();
    let Some(lab) = lab() else { return };
    share(
        "stock QEMU",
        KERNEL_US,
        start,
        &|_, socket, commands, console| {
            let machine = Machine {
                initramfs: "initramfs.gz",
                processors: 1,
                memory_mib: 256,
                options: &[],
                append: "hugepages=16",
                commands,
                sockets: &[(3, socket)],
                console,
            };
            let mut process = lab.boot(&machine).unwrap();
            let input = Box::new(process.child().stdin.take().unwrap());
            Guest { process, input }
        },
    );
}
