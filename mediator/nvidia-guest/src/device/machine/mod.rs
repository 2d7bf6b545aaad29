//! A VM: its programs' requests arrive by a queue in guest memory, behind a PCI function that is
//! served over vfio-user.
//!
//! ```text
//!   guest module --queue, kick--> function (vfio-user) --slots--> workers --> Program::answer
//!        ^                                                           |
//!        +------------- completions, events (MSI-X) -----------------+
//! ```
//!
//! The thread of the VMM's socket reads the queue, and waits for no request; each request in flight
//! has a thread ([`workers`]). Guest addresses are looked up in the VM's memory of that moment
//! ([`memory`]). Memory that the VMM takes away is answered for when nothing uses it: requests in
//! flight have ended, and the VM's files are closed if the driver has a part of it.

mod function;
mod memory;
mod queue;
mod workers;

use std::fmt::Arguments;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use turnstile_abi::cuda::{self, regs};
use turnstile_vmm::front::Seldom;
use turnstile_vmm::vfio_user::{DmaMap, DmaUnmap, Errno, Vectors, serve as serve_function};

use super::events::Notify;
use super::program::Program;
use super::ram::GuestRam;
use super::{Device, DeviceError, Driver, Options, locked};
use crate::abi::read_u64;
use crate::proto::{BODY_MAX, EXTENTS_MAX, Extent, HEADER_BYTES, Message, Received, extend};
use memory::{Memory, View};
use queue::{Queue, Slot};
use workers::Workers;

/// All programs of a VM are one to the device: the guest closes their files.
const PROGRAM: u64 = 1;
/// Pieces of a request at most: the longest one in single pages, and one more.
const SEGMENTS_MAX: u32 = (BODY_MAX / 4096 + 2) as u32;
/// Bytes of a segment's entry.
const SEGMENT_BYTES: usize = 16;

/// A request, and the queue that it is of.
struct Job {
    queue: Arc<Queue>,
    slot: Slot,
}

/// A VM.
#[derive(Debug)]
struct Machine {
    device: Arc<Device>,
    memory: Arc<Memory>,
    vectors: Vectors,
    queue: Mutex<Option<Arc<Queue>>>,
    status: AtomicU32,
    workers: Workers<Job>,
    /// Lines about what the guest or its VMM does.
    seldom: Arc<Seldom>,
    own: Weak<Machine>,
}

/// Serves the function of one VM to the VMM behind a socket, until the VMM closes it. Then all that
/// the VM had is freed.
///
/// # Errors
/// If the driver's release is not known, or the host lacks something.
pub fn serve_machine(
    stream: UnixStream,
    driver: Arc<dyn Driver>,
    options: Options,
) -> Result<(), DeviceError> {
    let device = Device::prepare(driver, options)?;
    let machine = Machine::new(device);
    let layout = function::layout(&machine).map_err(DeviceError::Host)?;
    let mut function = function::Function::new(Arc::clone(&machine));
    let served = serve_function(stream, &layout, &mut function);
    machine.stop();
    machine.workers.end();
    if let Err(error) = served {
        log::warn!("The VMM's connection is ended: {error}");
    }
    Ok(())
}

impl Machine {
    fn new(device: Arc<Device>) -> Arc<Self> {
        let seldom = Arc::new(Seldom::default());
        Arc::new_cyclic(|own: &Weak<Self>| {
            let of_workers = own.clone();
            Self {
                device,
                memory: Arc::new(Memory::new(Arc::clone(&seldom))),
                vectors: Vectors::new(cuda::VECTORS),
                queue: Mutex::new(None),
                status: AtomicU32::new(0),
                workers: Workers::new(move |job: Job| {
                    if let Some(machine) = of_workers.upgrade() {
                        machine.carry_out(&job);
                    }
                }),
                seldom,
                own: own.clone(),
            }
        })
    }

    /// The windows of the first GPU, which has this function.
    fn windows(&self) -> Option<&[OwnedFd; 2]> {
        self.device.windows.values().next()
    }

    const fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    fn status(&self) -> u32 {
        self.status.load(Ordering::Acquire)
    }

    fn program(&self) -> Program<'_> {
        let ram: Arc<dyn GuestRam> = Arc::clone(&self.memory) as _;
        let events = Arc::new(Events(self.own.clone()));
        Program::of_machine(&self.device, PROGRAM, ram, events)
    }

    /// Serves the queue at an address.
    fn start(&self, address: u64) {
        self.stop();
        let view = if address.is_multiple_of(4096) {
            self.memory.set_queue(address, cuda::queue::BYTES)
        } else {
            Err(std::io::ErrorKind::InvalidInput.into())
        };
        match view {
            Ok(view) => {
                *locked(&self.queue) = Some(Arc::new(Queue::new(view)));
                self.status.store(regs::STATUS_RUNNING, Ordering::Release);
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Ends the queue, and closes all files. Nothing of the guest's memory is used then.
    fn stop(&self) {
        *locked(&self.queue) = None;
        self.workers.clear();
        self.workers.paused(|| self.program().end());
        self.memory.clear_queue();
        self.memory.forget_released();
        self.status.store(0, Ordering::Release);
    }

    fn warn(&self, what: Arguments<'_>) {
        self.seldom.say(log::Level::Warn, what);
    }

    fn fail(&self, why: &dyn std::error::Error) {
        self.warn(format_args!("The VM's queue is not served: {why}"));
        *locked(&self.queue) = None;
        self.status.store(regs::STATUS_FAILED, Ordering::Release);
    }

    fn kick(&self) {
        let Some(queue) = locked(&self.queue).clone() else {
            return;
        };
        match queue.submissions() {
            Ok(slots) => {
                let queue = |slot| Job {
                    queue: Arc::clone(&queue),
                    slot,
                };
                self.workers.add(slots.into_iter().map(queue));
            }
            Err(error) => self.fail(&error),
        }
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        self.memory.add(map)
    }

    fn unmap(&self, unmap: DmaUnmap) -> Result<(), Errno> {
        let gone = self.memory.remove(unmap)?;
        if gone.is_empty() {
            return Ok(());
        }
        let queue = locked(&self.queue).clone();
        let areas = gone.into_iter().collect();
        self.workers.paused(|| {
            if locked(&self.device.lending).uses(&areas) {
                self.warn(format_args!(
                    "The VMM takes memory away that the driver has: the VM's files are closed"
                ));
                self.program().end();
            }
        });
        // A queue that was in it is gone, too.
        if queue.is_some() && !self.memory.has_queue() {
            self.fail(&queue::QueueError::Memory(
                std::io::ErrorKind::NotFound.into(),
            ));
        }
        Ok(())
    }

    /// Carries out a request, and completes it in any case.
    fn carry_out(&self, job: &Job) {
        let answer_bytes = self.answer(&job.slot).unwrap_or_else(|error| {
            self.warn(format_args!(
                "A request of the VM has another form: {error}"
            ));
            0
        });
        if let Err(error) = job.queue.complete(job.slot.number, answer_bytes) {
            self.fail(&error);
        }
        self.vectors.raise(cuda::VECTOR_COMPLETIONS);
    }

    /// Reads a request, answers it, and writes the answer in its place.
    fn answer(&self, slot: &Slot) -> std::io::Result<u32> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let pieces = self.pieces(slot)?;
        let bytes = slot.bytes as usize;
        if bytes > HEADER_BYTES + BODY_MAX || bytes > slot.room as usize {
            return Err(invalid());
        }
        let mut request = Vec::new();
        extend(&mut request, bytes)?;
        let mut rest = &mut request[..];
        for (view, length) in &pieces {
            let (part, behind) = rest.split_at_mut(rest.len().min(*length));
            view.read(0, part)?;
            rest = behind;
        }
        let message = Message::decode(&request).map_err(|_| invalid())?;
        let answer = self.answered(message, slot.room as usize)?;
        let mut rest = &answer[..];
        for (view, length) in &pieces {
            let (part, behind) = rest.split_at(rest.len().min(*length));
            view.write(0, part)?;
            rest = behind;
        }
        // CAST: at most the room, which has 32 bits.
        Ok(answer.len() as u32)
    }

    fn answered(&self, message: Message, room: usize) -> std::io::Result<Vec<u8>> {
        let pledge = if message.extents.is_empty() {
            None
        } else {
            Some(self.memory.pledge(message.result.cast_unsigned().into())?)
        };
        let failed = message.failed(libc::ENOSPC);
        let received = Received {
            message,
            descriptors: Vec::new(),
        };
        let (mut answer, _) = self.program().answer(received);
        if let Some(pledge) = pledge {
            self.memory.end(pledge);
        }
        let mut length = answer.encode().len();
        if length > room {
            answer = failed;
            length = HEADER_BYTES;
        }
        let most = (room.saturating_sub(length) / SEGMENT_BYTES).min(EXTENTS_MAX);
        let (released, left) = self.memory.released(most);
        let number = |offset| Extent { offset, bytes: 0 };
        answer.extents = released.into_iter().map(number).collect();
        answer.b = left as u64;
        Ok(answer.encode())
    }

    /// The memory of a slot: pieces that have room for the answer.
    fn pieces(&self, slot: &Slot) -> std::io::Result<Vec<(View, usize)>> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let room = slot.room as usize;
        if slot.segments == 0 {
            return Ok(vec![(
                self.memory.view(slot.address, slot.room.into())?,
                room,
            )]);
        }
        if slot.segments > SEGMENTS_MAX {
            return Err(invalid());
        }
        let mut list = vec![0; slot.segments as usize * SEGMENT_BYTES];
        self.memory
            .view(slot.address, list.len() as u64)?
            .read(0, &mut list)?;
        let mut pieces = Vec::with_capacity(slot.segments as usize);
        let mut sum = 0_u64;
        for entry in list.chunks_exact(SEGMENT_BYTES) {
            let (address, bytes) = (read_u64(entry, 0), read_u64(entry, 8));
            let length = usize::try_from(bytes).map_err(|_| invalid())?;
            sum = sum.checked_add(bytes).ok_or_else(invalid)?;
            pieces.push((self.memory.view(address, bytes)?, length));
        }
        if sum < room as u64 || room < HEADER_BYTES {
            return Err(invalid());
        }
        Ok(pieces)
    }
}

/// Passes events on to the VM.
#[derive(Debug)]
struct Events(Weak<Machine>);

impl Notify for Events {
    fn notify(&self, file: u32) {
        let Some(machine) = self.0.upgrade() else {
            return;
        };
        let queue = locked(&machine.queue).clone();
        if let Some(queue) = queue
            && queue.event(file).is_ok()
        {
            machine.vectors.raise(cuda::VECTOR_EVENTS);
        }
    }
}
