//! Registers and commands of the physical GPU, typed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::physical::{ARGS, AdminOp, BAR_REGS, RESULTS, regs};
use turnstile_abi::{ErrorCode, regs::mailbox_status};

use super::area::HostArea;
use super::bus::{Bus, BusError, Region};
use turnstile_gpu::Refusal;

/// TIMEOUT: the longest command is a module of 4 MiB, which takes some tenths of a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for which a command is polled without a pause: most take some microseconds.
const EAGER: Duration = Duration::from_micros(200);

const REGS: Region = Region::Bar(BAR_REGS);

/// The registers.
#[derive(Debug)]
pub(super) struct Admin {
    bus: Arc<dyn Bus>,
    /// Guards the command registers and the area's texts.
    command: Mutex<()>,
    pub(super) area: HostArea,
}

/// The device violated the contract.
fn broken(detail: impl ToString) -> Refusal {
    Refusal {
        code: ErrorCode::DeviceLost,
        detail: detail.to_string(),
    }
}

impl From<BusError> for Refusal {
    fn from(error: BusError) -> Self {
        broken(error)
    }
}

impl Admin {
    pub(super) fn new(bus: Arc<dyn Bus>, area: HostArea) -> Self {
        Self {
            bus,
            command: Mutex::new(()),
            area,
        }
    }

    pub(super) fn read32(&self, offset: u64) -> Result<u32, BusError> {
        let mut word = [0; 4];
        self.bus.read(REGS, offset, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    pub(super) fn read64(&self, offset: u64) -> Result<u64, BusError> {
        let mut word = [0; 8];
        self.bus.read(REGS, offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    pub(super) fn write32(&self, offset: u64, value: u32) -> Result<(), BusError> {
        self.bus.write(REGS, offset, &value.to_le_bytes())
    }

    pub(super) fn write64(&self, offset: u64, value: u64) -> Result<(), BusError> {
        self.bus.write(REGS, offset, &value.to_le_bytes())
    }

    /// The command registers, for one command after its input was written to the area.
    pub(super) fn turn(&self) -> Turn<'_> {
        let guard = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        Turn {
            admin: self,
            _guard: guard,
        }
    }

    /// Executes a command without input in the area.
    pub(super) fn command(&self, op: AdminOp, args: &[u64]) -> Result<[u64; RESULTS], Refusal> {
        self.turn().command(op, args)
    }
}

/// The right to the command registers.
pub(super) struct Turn<'a> {
    admin: &'a Admin,
    _guard: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// Executes a command.
    pub(super) fn command(&self, op: AdminOp, args: &[u64]) -> Result<[u64; RESULTS], Refusal> {
        let admin = self.admin;
        for (n, arg) in (0..ARGS as u64).zip(args) {
            admin.write64(regs::COMMAND_ARG + n * 8, *arg)?;
        }
        admin.write32(regs::COMMAND, op as u32)?;
        let begin = Instant::now();
        let status = loop {
            let status = admin.read32(regs::COMMAND_STATUS)?;
            let waited = begin.elapsed();
            if status != mailbox_status::BUSY {
                break status;
            }
            if waited > PATIENCE {
                return Err(broken(format!("{op:?} did not end within 10 s")));
            }
            if waited > EAGER {
                thread::sleep(EAGER);
            }
        };
        if status != mailbox_status::DONE {
            let code = ErrorCode::from_u32(admin.read32(regs::COMMAND_ERROR)?);
            let bytes = admin.read32(regs::COMMAND_TEXT)?;
            return Err(Refusal {
                code: code.unwrap_or(ErrorCode::DeviceLost),
                detail: admin.area.reply(bytes),
            });
        }
        let mut results = [0; RESULTS];
        for (n, result) in (0..).zip(results.iter_mut().take(returns(op))) {
            *result = admin.read64(regs::COMMAND_RESULT + n * 8)?;
        }
        Ok(results)
    }
}

/// Number of words that a command returns: each costs a trip over the bus.
const fn returns(op: AdminOp) -> usize {
    match op {
        AdminOp::OpenChannel => 1,
        AdminOp::Allocate => 3,
        AdminOp::LoadModule | AdminOp::FindFunction | AdminOp::Memory => 2,
        _ => 0,
    }
}
