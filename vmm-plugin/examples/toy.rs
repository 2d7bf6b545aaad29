//! A VMM with a guest that is a thread: one channel and some fences. `toy DAEMON_SOCKET`
use std::{error::Error, os::unix::fs::FileExt, path::Path, thread};
use turnstile_abi::{COMMAND_BYTES, Command, Request as Mailbox, regs};
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
    // The guest's driver opens a channel by the mailbox: writes to BAR 0, which trap.
    let write = |at, bytes: &[u8]| vm.gpu().regs_write(at, bytes);
    let read = |at, bytes: &mut [u8; 4]| vm.gpu().regs_read(at, bytes);
    let (op, args) = Mailbox::OpenChannel {
        ring_gpa: 0x1000,
        entries: 64,
        state_gpa: 0x8000,
        vector: 1,
    }
    .encode();
    for (at, arg) in (regs::MAILBOX_ARG..).step_by(8).zip(args) {
        write(at, &arg.to_le_bytes());
    }
    write(regs::MAILBOX_OP, &(op as u32).to_le_bytes());
    let (mut status, mut channel, mut fence) = ([0; 4], [0; 4], [0; 8]);
    while u32::from_le_bytes(status) != regs::mailbox_status::DONE {
        read(regs::MAILBOX_STATUS, &mut status);
    }
    read(regs::MAILBOX_RESULT, &mut channel);
    let channel = u32::from_le_bytes(channel);
    // A command goes into the ring, and a store to the doorbell page submits it.
    for value in 1..=fences {
        let (gpa, interrupt) = (0x9000, false);
        let command = Command::Fence {
            gpa,
            value,
            interrupt,
        };
        let slot = (value - 1) % 64 * COMMAND_BYTES as u64;
        memory.write_all_at(&command.encode(), 0x1000 + slot)?;
        vm.gates.ring(channel, value as u32);
        while u64::from_le_bytes(fence) < value {
            memory.read_exact_at(&mut fence, 0x9000)?;
        }
    }
    vm.detach();
    control.join().map_err(|_| "a panic")??;
    Ok(u64::from_le_bytes(fence))
}

#[allow(dead_code)]
fn main() -> Result<(), Box<dyn Error>> {
    let daemon = std::env::args_os().nth(1).ok_or("usage: toy SOCKET")?;
    println!("{} fences", run(daemon.as_ref(), 100)?);
    Ok(())
}
