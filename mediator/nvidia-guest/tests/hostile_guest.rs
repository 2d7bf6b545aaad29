//! A guest that breaks the rules of its queue and names memory that it may not name, at the
//! vfio-user socket of its device process.
#![allow(missing_docs)]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use turnstile_abi::cuda::{queue, regs};
use turnstile_nvidia_guest::abi::Node;
use turnstile_nvidia_guest::check::Limits;
use turnstile_nvidia_guest::device::{Options, StandIn, serve_machine};
use turnstile_nvidia_guest::proto::{Extent, Kind, Message, VERSION, node_word};
use turnstile_vmm::vfio_user::Client;

const RAM_BYTES: u64 = 16 << 20;
/// A second area of memory, elsewhere.
const HIGH: u64 = 1 << 32;
const HIGH_BYTES: u64 = 1 << 20;
const QUEUE: u64 = 0x1000;
const REQUEST: u64 = 0x10_0000;
const ROOM: u32 = 1 << 16;
/// TIMEOUT: what takes microseconds, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(10);

fn ram(bytes: u64) -> File {
    let file = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file.into()
}

struct Guest {
    client: Client,
    ram: File,
    high: File,
    driver: Arc<StandIn>,
    submitted: u32,
    device_process: JoinHandle<()>,
}

impl Guest {
    fn new(limits: Limits) -> Self {
        let (own, theirs) = UnixStream::pair().unwrap();
        let driver = StandIn::new().unwrap();
        let copy = Arc::new(Arc::clone(&driver));
        let options = Options {
            memory: None,
            version: "580.159.04".into(),
            limits,
            report: None,
            confined: false,
        };
        let device_process = thread::spawn(move || serve_machine(theirs, copy, options).unwrap());
        let mut client = Client::over(own).unwrap();
        let (ram, high) = (ram(RAM_BYTES), ram(HIGH_BYTES));
        client
            .dma_map(0, RAM_BYTES, Some((ram.as_fd(), 0)))
            .unwrap();
        client
            .dma_map(HIGH, HIGH_BYTES, Some((high.as_fd(), 0)))
            .unwrap();
        let mut guest = Self {
            client,
            ram,
            high,
            driver,
            submitted: 0,
            device_process,
        };
        guest.start(QUEUE);
        guest
    }

    fn set(&mut self, register: u64, value: u32) {
        self.client
            .write(0, register, &value.to_le_bytes())
            .unwrap();
    }

    fn status(&mut self) -> u32 {
        let mut word = [0; 4];
        self.client.read(0, regs::STATUS, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn start(&mut self, at: u64) {
        self.ram
            .write_all_at(&[0; queue::BYTES as usize], QUEUE)
            .unwrap();
        self.submitted = 0;
        // CAST: halves.
        self.set(regs::QUEUE_LOW, at as u32);
        self.set(regs::QUEUE_HIGH, (at >> 32) as u32);
        self.set(regs::CONTROL, 1);
    }

    fn word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.ram.read_exact_at(&mut word, at).unwrap();
        u32::from_ne_bytes(word)
    }

    fn put(&self, at: u64, value: u32) {
        self.ram.write_all_at(&value.to_ne_bytes(), at).unwrap();
    }

    /// Submits a slot, as it is.
    fn submit(&mut self, slot: u32) {
        let at = queue::SUBMIT_RING + 4 * u64::from(self.submitted % queue::SLOTS);
        self.put(QUEUE + at, slot);
        self.submitted += 1;
        self.put(QUEUE + queue::SUBMITTED, self.submitted);
        self.set(regs::KICK, slot);
    }

    /// Fills slot 0.
    fn slot(&self, address: u64, bytes: u32, segments: u32, room: u32) {
        let at = QUEUE + queue::SLOT_TABLE;
        self.ram.write_all_at(&address.to_ne_bytes(), at).unwrap();
        for (offset, value) in [(8, bytes), (12, segments), (16, room)] {
            self.put(at + offset, value);
        }
    }

    /// Bytes of the answer of the request that was submitted last.
    fn answered(&self) -> u32 {
        let begun = Instant::now();
        while self.word(QUEUE + queue::COMPLETED) != self.submitted {
            assert!(begun.elapsed() < LIMIT, "not answered");
            thread::yield_now();
        }
        self.word(QUEUE + queue::SLOT_TABLE + queue::SLOT_ANSWER)
    }

    fn ask(&mut self, message: &Message) -> Message {
        let bytes = message.encode();
        self.ram.write_all_at(&bytes, REQUEST).unwrap();
        self.slot(REQUEST, bytes.len() as u32, 0, ROOM);
        self.submit(0);
        let mut answer = vec![0; self.answered() as usize];
        self.ram.read_exact_at(&mut answer, REQUEST).unwrap();
        Message::decode(&answer).unwrap()
    }

    fn open(&mut self, node: Node) -> u32 {
        let message = Message {
            kind: Kind::Open,
            a: node_word(node),
            ..Message::default()
        };
        let answer = self.ask(&message);
        assert_eq!(answer.errno, 0);
        answer.file
    }

    fn call(&mut self, file: u32, number: u32, words: &[u32], params: Option<Vec<u8>>) -> Message {
        let top: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let request = 3 << 30 | (top.len() as u32) << 16 | u32::from(b'F') << 8 | number;
        let buffers = [Some(top), params].into_iter().flatten().collect();
        self.ask(&Message {
            kind: Kind::Call,
            file,
            request,
            buffers,
            ..Message::default()
        })
    }

    /// A program with a client and a device: control file, GPU's file, client.
    fn program(&mut self) -> [u32; 3] {
        let hello = Message {
            kind: Kind::Hello,
            a: VERSION.into(),
            ..Message::default()
        };
        assert_eq!(self.ask(&hello).buffers, [b"580.159.04"]);
        let (control, gpu) = (self.open(Node::Control), self.open(Node::Gpu(0)));
        assert_eq!(self.call(gpu, 0xc9, &[control], None).errno, 0);
        let root = self.call(
            control,
            0x2b,
            &[0, 0, 0, 0x41, 0, 0, 0, 0, 0, 0, 0, 0],
            None,
        );
        let client = u32::from_ne_bytes(root.buffers[0][8..12].try_into().unwrap());
        let device = [client, client, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0];
        let made = self.call(control, 0x2b, &device, Some(vec![0; 56]));
        assert_eq!((made.errno, &made.buffers[0][40..44]), (0, &[0; 4][..]));
        [control, gpu, client]
    }

    /// Registers memory under a handle: errno, and the driver's status.
    fn register(
        &mut self,
        [_, gpu, client]: [u32; 3],
        handle: u32,
        extents: &[(u64, u64)],
    ) -> (i32, u32) {
        let extents: Vec<Extent> = extents
            .iter()
            .map(|(offset, bytes)| Extent {
                offset: *offset,
                bytes: *bytes,
            })
            .collect();
        let bytes: u64 = extents
            .iter()
            .fold(0, |sum, extent| sum.wrapping_add(extent.bytes));
        let mut top = [
            client,
            1,
            handle,
            0x71,
            0x4000_1010,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            u32::MAX,
            0,
        ];
        // CAST: halves.
        top[8] = bytes.wrapping_sub(1) as u32;
        top[9] = (bytes.wrapping_sub(1) >> 32) as u32;
        let request = 3 << 30 | 56 << 16 | u32::from(b'F') << 8 | 0x27;
        let message = Message {
            kind: Kind::Call,
            file: gpu,
            request,
            result: handle as i32,
            buffers: vec![top.iter().flat_map(|word| word.to_ne_bytes()).collect()],
            extents,
            ..Message::default()
        };
        let answer = self.ask(&message);
        let status = answer.buffers.first().map_or(u32::MAX, |top| {
            u32::from_ne_bytes(top[40..44].try_into().unwrap())
        });
        // Memory that is refused is given back at once.
        let given_back = answer
            .extents
            .iter()
            .any(|extent| extent.offset == u64::from(handle));
        assert_eq!(given_back, answer.errno != 0 || status != 0);
        (answer.errno, status)
    }

    fn end(self) {
        drop(self.client);
        self.device_process.join().unwrap();
        assert_eq!(self.driver.count(), (0, 0));
    }
}

#[test]
fn memory_outside_of_the_vms_is_refused() {
    let mut guest = Guest::new(Limits {
        pinned_bytes: 4 << 20,
        ..Limits::default()
    });
    let program = guest.program();
    let fault = (libc::EFAULT, u32::MAX);
    let invalid = (libc::EINVAL, u32::MAX);
    for (extents, expected) in [
        (&[(RAM_BYTES - 4096, 8192)][..], fault),
        (&[(RAM_BYTES, 4096)], fault),
        (&[(HIGH + HIGH_BYTES - 4096, 8192)], fault),
        (&[(0x20_0000, 4096), (!0x1fff, 4096)], fault),
        (&[(u64::MAX - 4095, 8192)], invalid),
        (&[(0x20_0100, 4096)], invalid),
        (&[(0x20_0000, 100)], invalid),
        (&[(0x20_0000, 0)], invalid),
        // The queue, and what reaches into it.
        (&[(QUEUE, 4096)], fault),
        (&[(0, 0x2000)], fault),
        (&[(QUEUE + queue::BYTES - 4096, 0x10000)], fault),
        // More than the VM may pin: also in sum, and with the same page often.
        (&[(0x20_0000, 8 << 20)], (0, 0x51)),
        (&[(0x20_0000, 2 << 20); 3], (0, 0x51)),
    ] {
        assert_eq!(
            guest.register(program, 7, extents),
            expected,
            "{extents:x?}"
        );
    }
    assert_eq!(
        guest.register(program, 8, &[(0x20_0000, 4096), (HIGH, 4096), (0, 4096)]),
        (0, 0)
    );
    assert_eq!(guest.register(program, 9, &[(0x20_0000, 3 << 20)]), (0, 0));
    assert_eq!(
        guest.register(program, 10, &[(0x20_0000, 1 << 20)]),
        (0, 0x51)
    );
    guest.end();
}

#[test]
fn removed_memory_is_answered_for_when_its_objects_are_freed() {
    let mut guest = Guest::new(Limits::default());
    let program = guest.program();
    assert_eq!(guest.register(program, 8, &[(0x20_0000, 4096)]), (0, 0));
    // An area that nothing uses: nothing is freed.
    guest.client.dma_unmap(HIGH, HIGH_BYTES).unwrap();
    assert_eq!(guest.driver.count(), (2, 1));
    assert_eq!(
        guest.register(program, 9, &[(HIGH, 4096)]),
        (libc::EFAULT, u32::MAX)
    );
    let high = guest.high.try_clone().unwrap();
    guest
        .client
        .dma_map(HIGH, HIGH_BYTES, Some((high.as_fd(), 0)))
        .unwrap();
    assert_eq!(guest.register(program, 9, &[(HIGH, 4096)]), (0, 0));
    let begun = Instant::now();
    guest.client.dma_unmap(HIGH, HIGH_BYTES).unwrap();
    assert_eq!(guest.driver.count(), (0, 0));
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(
        guest.call(program[0], 0xd6, &[0, 0], None).errno,
        libc::EBADF
    );
    let again = guest.program();
    assert_eq!(guest.register(again, 8, &[(0x20_0000, 4096)]), (0, 0));
    // The queue's own memory.
    guest.client.dma_unmap(0, RAM_BYTES).unwrap();
    assert_eq!(
        (guest.driver.count(), guest.status()),
        ((0, 0), regs::STATUS_FAILED)
    );
    guest.end();
}

#[test]
fn queue_that_breaks_its_rules_is_not_served_until_it_starts_again() {
    let mut guest = Guest::new(Limits::default());
    guest.program();
    for at in [
        RAM_BYTES - 4096,
        HIGH + HIGH_BYTES,
        u64::MAX - 4095,
        QUEUE + 8,
    ] {
        guest.start(at);
        assert_eq!(guest.status(), regs::STATUS_FAILED, "{at:x}");
        assert_eq!(guest.driver.count(), (0, 0));
    }
    guest.start(QUEUE);
    assert_eq!(guest.status(), regs::STATUS_RUNNING);
    guest.submit(queue::SLOTS);
    assert_eq!(guest.status(), regs::STATUS_FAILED);
    guest.start(QUEUE);
    guest.put(QUEUE + queue::SUBMITTED, queue::SLOTS + 1);
    guest.set(regs::KICK, 0);
    assert_eq!(guest.status(), regs::STATUS_FAILED);
    guest.start(QUEUE);
    guest.put(QUEUE + queue::SUBMITTED, 2);
    guest.set(regs::KICK, 0);
    assert_eq!(guest.status(), regs::STATUS_FAILED, "one slot twice");
    // Requests that are none: answered without bytes, and the queue is served on.
    guest.start(QUEUE);
    for (address, bytes, segments, room) in [
        (REQUEST, 64, 0, 0),
        (REQUEST, ROOM + 1, 0, ROOM),
        (REQUEST, 0, 0, ROOM),
        (REQUEST, 64, u32::MAX, ROOM),
        (REQUEST, 64, 3, ROOM),
        (QUEUE, 64, 0, 4096),
        (0, 64, 0, 8192),
        (RAM_BYTES - 64, 64, 0, 4096),
        (u64::MAX, 64, 0, 4096),
        (REQUEST, u32::MAX, 0, u32::MAX),
    ] {
        guest.slot(address, bytes, segments, room);
        guest.submit(0);
        assert_eq!(guest.answered(), 0, "{address:x} {bytes} {segments} {room}");
    }
    guest.program();
    // A segment of the list that is the queue.
    for (at, value) in [(0, REQUEST), (8, 64), (16, QUEUE), (24, 4096)] {
        guest
            .ram
            .write_all_at(&value.to_ne_bytes(), 0x30_0000 + at)
            .unwrap();
    }
    guest.slot(0x30_0000, 64, 2, 4160);
    guest.submit(0);
    assert_eq!(guest.answered(), 0);
    assert_eq!(guest.status(), regs::STATUS_RUNNING);
    guest.client.reset().unwrap();
    assert_eq!((guest.driver.count(), guest.status()), ((0, 0), 0));
    guest.end();
}

#[test]
fn random_queues_and_requests_leave_the_device_process_serving() {
    let mut guest = Guest::new(Limits::default());
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        rounds += 1;
        let [_, gpu, _] = guest.program();
        for _ in 0..20 {
            let good = Message {
                kind: Kind::Call,
                file: gpu,
                request: 3 << 30 | 56 << 16 | u32::from(b'F') << 8 | 0x27,
                buffers: vec![vec![0; 56]],
                extents: vec![Extent {
                    offset: 0x20_0000,
                    bytes: 4096,
                }],
                ..Message::default()
            };
            let mut bytes = good.encode();
            for _ in 0..random() % 8 {
                let at = random() as usize % bytes.len();
                bytes[at] = random() as u8;
            }
            guest.ram.write_all_at(&bytes, REQUEST).unwrap();
            guest.slot(REQUEST, bytes.len() as u32, 0, ROOM);
            guest.submit(0);
            guest.answered();
        }
        // The queue itself.
        for _ in 0..64 {
            let at = random() % (queue::BYTES / 4) * 4;
            guest.put(QUEUE + at, (random() % 300) as u32);
        }
        guest.set(regs::KICK, 0);
        guest.start(QUEUE);
    }
    assert!(rounds > 10);
    guest.program();
    guest.end();
}
