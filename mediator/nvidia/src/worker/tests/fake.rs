//! A GPU in memory, for workers that run as on a real one: confined, in a process of their own.
//!
//! A module's text has a line for each function: its name, its kind, and a number.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use turnstile_abi::{CHUNK_BYTES, CopyDirection, ErrorCode, Launch};
use vm_memory::{Bytes, FileOffset, GuestAddress, MmapRegion, VolatileMemory};

use super::super::executor::{Executor, Failure, KernelInfo};
use turnstile_gpu::{GuestMemory, Refusal};
use turnstile_host::memory_file::memory_file;

type Memories = Arc<Mutex<BTreeMap<u64, Arc<MmapRegion>>>>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Runs for this number of nanoseconds.
    Sleep(u64),
    /// Runs until the guest's word at the address in its parameter is not zero.
    Until,
    /// Accesses an unmapped address.
    Fault,
}

#[derive(Debug)]
pub(super) enum Op {
    Kernel(Kind, u64),
    Copy(CopyDirection, u64, u64, u64),
    Fill(u64, u64, u32),
    Mark(u64),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    ops: VecDeque<Op>,
    busy_until: Option<Instant>,
    mark: u64,
}

#[derive(Debug)]
pub(super) struct Fake {
    guest: Arc<GuestMemory>,
    memories: Memories,
    broken: AtomicBool,
    /// Memory of the "GPU", made before the process was confined.
    files: Mutex<Vec<File>>,
}

#[derive(Debug)]
pub(super) struct FakeMemory {
    memories: Memories,
    va: u64,
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.memories.lock().unwrap().remove(&self.va);
    }
}

impl Fake {
    pub(super) fn new(guest: Arc<GuestMemory>) -> Self {
        Self {
            guest,
            memories: Memories::default(),
            broken: AtomicBool::new(false),
            files: Mutex::new(
                (0..8)
                    .map(|_| memory_file("turnstile-fake", 8 * CHUNK_BYTES).unwrap())
                    .collect(),
            ),
        }
    }

    /// Calls `act` with the memory behind `va` and the offset in it. The caller has checked the
    /// address.
    fn with<R>(&self, va: u64, act: impl FnOnce(&MmapRegion, usize) -> R) -> R {
        let memories = self.memories.lock().unwrap();
        let (first, region) = memories.range(..=va).next_back().unwrap();
        act(region, (va - first) as usize)
    }

    fn read(&self, va: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        self.with(va, |region, at| {
            region.as_volatile_slice().read_slice(&mut out, at)
        })
        .unwrap();
        out
    }

    fn write(&self, va: u64, data: &[u8]) {
        self.with(va, |region, at| {
            region.as_volatile_slice().write_slice(data, at)
        })
        .unwrap();
    }

    fn map(&self, va: u64, bytes: u64, file: File) -> FakeMemory {
        let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes as usize).unwrap();
        self.memories.lock().unwrap().insert(va, Arc::new(region));
        let memories = self.memories.clone();
        FakeMemory { memories, va }
    }

    /// Executes operations in order, up to one that is not yet complete.
    fn advance(&self, queue: &mut Queue) {
        while let Some(op) = queue.ops.front() {
            if self.broken.load(Ordering::Relaxed) {
                return;
            }
            match *op {
                Op::Kernel(Kind::Fault, _) => return self.broken.store(true, Ordering::Relaxed),
                Op::Kernel(Kind::Sleep(ns), _) => {
                    let now = Instant::now();
                    let until = *queue
                        .busy_until
                        .get_or_insert(now + Duration::from_nanos(ns));
                    if now < until {
                        return;
                    }
                    queue.busy_until = None;
                }
                Op::Kernel(Kind::Until, word) => {
                    if self.guest.read_obj::<u64>(GuestAddress(word)).unwrap() == 0 {
                        return;
                    }
                }
                Op::Copy(direction, source, destination, bytes) => {
                    let mut data = vec![0; bytes as usize];
                    match direction {
                        CopyDirection::GuestToGpu => self
                            .guest
                            .read_slice(&mut data, GuestAddress(source))
                            .unwrap(),
                        _ => data = self.read(source, bytes),
                    }
                    match direction {
                        CopyDirection::GpuToGuest => {
                            self.guest
                                .write_slice(&data, GuestAddress(destination))
                                .unwrap();
                        }
                        _ => self.write(destination, &data),
                    }
                }
                Op::Fill(va, bytes, pattern) => {
                    self.write(va, &pattern.to_le_bytes().repeat(bytes as usize / 4));
                }
                Op::Mark(value) => queue.mark = value,
            }
            queue.ops.pop_front();
        }
    }
}

impl Executor for Fake {
    type Stream = Mutex<Queue>;
    type Module = Vec<Kind>;
    type Memory = FakeMemory;

    fn shared_bytes_max(&self) -> u32 {
        1 << 16
    }

    fn load(&self, text: &str) -> Result<(Vec<Kind>, Vec<KernelInfo>), Refusal> {
        let (mut kinds, mut infos) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0);
            let refused = |detail: String| Refusal {
                code: ErrorCode::ModuleRefused,
                detail,
            };
            kinds.push(match words[1..2] {
                ["sleep"] => Kind::Sleep(number),
                ["fault"] => Kind::Fault,
                ["until"] => Kind::Until,
                ["exit"] => std::process::exit(3),
                ["slow"] => {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_millis(number) {
                        std::thread::yield_now();
                    }
                    Kind::Sleep(0)
                }
                ["open"] => {
                    let opened = File::open("/proc/self/status").map(|_| "opened".to_owned());
                    return Err(refused(
                        opened.unwrap_or_else(|error| error.kind().to_string()),
                    ));
                }
                ["run"] => {
                    let ran = std::process::Command::new("/bin/true").status();
                    return Err(refused(
                        ran.map_or_else(|error| error.kind().to_string(), |_| "ran".into()),
                    ));
                }
                _ => return Err(refused(format!("line {line:?} is none"))),
            });
            infos.push(KernelInfo {
                name: words[0].into(),
                param_bytes: 8,
                shared_bytes: 1024,
                threads_max: 512,
            });
        }
        Ok((kinds, infos))
    }

    fn allocate(&self, va: u64, bytes: u64) -> Result<(FakeMemory, OwnedFd), Refusal> {
        let file = self
            .files
            .lock()
            .unwrap()
            .pop()
            .ok_or(ErrorCode::OutOfGpuMemory)?;
        let fd = file.try_clone().unwrap().into();
        Ok((self.map(va, bytes, file), fd))
    }

    fn restore(&self, va: u64, bytes: u64, fd: OwnedFd) -> Result<FakeMemory, Refusal> {
        Ok(self.map(va, bytes, File::from(fd)))
    }

    fn scrub(&self, va: u64, bytes: u64) -> Result<(), Refusal> {
        self.write(va, &vec![0; bytes as usize]);
        Ok(())
    }

    fn stream(&self) -> Result<Mutex<Queue>, Refusal> {
        Ok(Mutex::default())
    }

    fn launch(
        &self,
        stream: &Mutex<Queue>,
        module: &Vec<Kind>,
        function: usize,
        _: &Launch,
        params: &[u8],
    ) -> Result<(), Failure> {
        let word = u64::from_le_bytes(params.try_into().unwrap());
        let kernel = Op::Kernel(module[function], word);
        stream.lock().unwrap().ops.push_back(kernel);
        Ok(())
    }

    fn copy(
        &self,
        stream: &Mutex<Queue>,
        direction: CopyDirection,
        source: u64,
        destination: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let copy = Op::Copy(direction, source, destination, bytes);
        stream.lock().unwrap().ops.push_back(copy);
        Ok(())
    }

    fn fill(
        &self,
        stream: &Mutex<Queue>,
        va: u64,
        bytes: u64,
        pattern: u32,
    ) -> Result<(), Failure> {
        stream
            .lock()
            .unwrap()
            .ops
            .push_back(Op::Fill(va, bytes, pattern));
        Ok(())
    }

    fn mark(&self, stream: &Mutex<Queue>, value: u64) -> Result<(), Failure> {
        stream.lock().unwrap().ops.push_back(Op::Mark(value));
        Ok(())
    }

    fn marked(&self, stream: &Mutex<Queue>) -> u64 {
        let mut queue = stream.lock().unwrap();
        self.advance(&mut queue);
        queue.mark
    }

    fn check(&self, _: &Mutex<Queue>) -> Result<(), Failure> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Failure {
                is_fatal: true,
                ..Failure::of(ErrorCode::PageFault, 0x1000)
            });
        }
        Ok(())
    }
}
