//! The freestanding guest: no operating system, no libc.
//!
//! The VMM starts it at CPL 0 in long mode with memory mapped one to one; a stock VMM starts it
//! through [`pvh`]. It sets up interrupts and continues at CPL 3. There an illegal instruction is
//! the call that sleeps (see [`cpu`]).
#![no_std]
#![no_main]

mod cpu;
mod platform;
mod pvh;

use core::fmt::Write;
use core::panic::PanicInfo;
use platform::{Console, Freestanding};

/// Entry, at CPL 0.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    cpu::start(body)
}

/// What runs at CPL 3.
extern "C" fn body() -> ! {
    let code = match Freestanding::wait() {
        Some(platform) => turnstile_workload::run(&platform),
        None => {
            let _ = Console.write_str("No device on bus 0\n");
            3
        }
    };
    cpu::exit(code)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Console, "{info}");
    cpu::exit(101)
}
