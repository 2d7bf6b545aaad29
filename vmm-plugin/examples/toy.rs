//! A VMM with a guest that is a thread: one channel and some fences. `toy DAEMON_SOCKET`
use std::{error::Error, os::unix::fs::FileExt, path::Path, thread};
use turnstile_vmm::abi::{COMMAND_BYTES, Command, Request as Mailbox, regs};
use turnstile_vmm::attach::{NoRoutes, Request, Welcome, interrupts, sealed_memory};
use turnstile_vmm::gate::ThreadMap;

/// Submits fences, and returns the value of the last one that the GPU wrote.
pub(crate) fn run(daemon: &Path, fences: u64) -> Result<u64, Box<dyn Error>> {
    // Guest memory: the daemon maps the same file.
    let memory = sealed_memory(c"toy", 1 << 20)?;
    let request = Request::new(daemon, "toy", memory.try_clone()?, 1 << 20);
    let welcome = Welcome::request(request, &interrupts()?)?;
    let map = ThreadMap::new(welcome.identity.channels);
    let (vm, control) = welcome.attach(map, NoRoutes);
    let control = thread::spawn(|| control.run());
    // The guest's driver opens a channel by the mailbox: accesses to BAR 0, which trap.
    let (op, args) = Mailbox::OpenChannel {
        ring_gpa: 0x1000,
        entries: 64,
        state_gpa: 0x8000,
        vector: 1,
    }
    .encode();
    for (at, arg) in (regs::MAILBOX_ARG..).step_by(8).zip(args) {
        vm.gpu().regs_write(at, &arg.to_le_bytes());
    }
    vm.gpu()
        .regs_write(regs::MAILBOX_OP, &(op as u32).to_le_bytes());
    let status = || u32::from_le_bytes(vm.gpu().reg(regs::MAILBOX_STATUS));
    while status() == regs::mailbox_status::BUSY {}
    assert_eq!(status(), regs::mailbox_status::DONE);
    let channel = u32::from_le_bytes(vm.gpu().reg(regs::MAILBOX_RESULT));
    // A command goes into the ring, and a store to the doorbell page submits it.
    let mut done = [0; 8];
    for value in 1..=fences {
        let fence = Command::Fence {
            gpa: 0x9000,
            value,
            interrupt: false,
        };
        let slot = (value - 1) % 64 * COMMAND_BYTES as u64;
        memory.write_all_at(&fence.encode(), 0x1000 + slot)?;
        vm.gates.ring(channel, value as u32);
        while u64::from_le_bytes(done) < value {
            memory.read_exact_at(&mut done, 0x9000)?;
        }
    }
    vm.detach();
    control.join().map_err(|_| "a panic")??;
    Ok(u64::from_le_bytes(done))
}

#[allow(dead_code)]
fn main() -> Result<(), Box<dyn Error>> {
    let daemon = std::env::args_os().nth(1).ok_or("usage: toy SOCKET")?;
    println!("{} fences", run(daemon.as_ref(), 100)?);
    Ok(())
}
