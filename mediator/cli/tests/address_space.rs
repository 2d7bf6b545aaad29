//! A daemon with little address space: what a tenant fills ends that tenant's requests, and no
//! other tenant.

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use common::{PATIENCE, Process, serve, until};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use turnstile_abi::boot::BootInfo;
use turnstile_abi::{Dim3, ErrorCode, Platform};
use turnstile_guest::{DriverError, Params};
use turnstile_host::memory_file::memory_file;
use turnstile_images::Session;
use turnstile_vmm::vmm::native::{self, NativePlatform};
use turnstile_vmm::vmm::{VmConfig, VmHandle};
use turnstile_vmm::wire::{FrameReader, Metadata, PROTOCOL, Read, Region, ToDaemon, ToVmm, send};

/// Address space of the daemon beyond what it has at its start.
const ROOM_BYTES: u64 = 640 << 20;
/// Guest memory that is mapped at a time, so that less than this remains beside the reserve.
const PART_BYTES: u64 = 32 << 20;
/// TIMEOUT: for a kernel of microseconds, on a machine that builds at the same time.
const KERNEL_NS: u64 = 60_000_000_000;

/// A thread of `deep` has 60,000 bytes of local memory: a block of 1,024 threads has 61 MB.
const MODULE: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .entry deep() { .local .align 4 .b8 depot[60000]; .reg .b32 %r<2>;\n\
    mov.u32 %r1, 1; st.local.u32 [depot], %r1; ret; }\n\
    .entry brief() { ret; }\n";

/// A VM; its guest is a thread of this process.
fn guest<T: Send + 'static>(
    folder: &Path,
    name: &str,
    program: impl FnOnce(&mut Session<'_, NativePlatform<'_>>) -> T + Send + 'static,
) -> (VmHandle, Receiver<T>) {
    let mut config = VmConfig::new(name, folder.join("vmm.sock"));
    config.files = vec![("module".into(), MODULE.into())];
    config.memory_bytes = 16 << 20;
    let (sender, result) = sync_channel(1);
    let vm = native::spawn(config, move |platform| {
        let boot = BootInfo::read(platform).unwrap();
        let mut session = Session::new(platform, boot).unwrap();
        sender.send(program(&mut session)).unwrap();
        0
    });
    (vm.unwrap(), result)
}

/// Runs `brief` until `end`, and counts.
fn victim(session: &mut Session<'_, NativePlatform<'_>>, done: &AtomicU64, end: &AtomicBool) {
    let module = session.module("module").unwrap();
    let kernel = session.kernel(module, "brief").unwrap();
    let mut channel = session.channel(64, 0).unwrap();
    while !end.load(Ordering::Acquire) {
        let one = Dim3::line(1);
        channel.launch(kernel, one, one, 0, &Params::new()).unwrap();
        channel.finish(KERNEL_NS).unwrap();
        done.fetch_add(1, Ordering::AcqRel);
    }
}

/// Reports that its kernel has run. Once the address space is full, tries what needs memory of the
/// daemon; returns the codes.
fn greedy(
    session: &mut Session<'_, NativePlatform<'_>>,
    ready: &SyncSender<()>,
    full: &AtomicBool,
) -> Vec<ErrorCode> {
    let module = session.module("module").unwrap();
    let kernel = session.kernel(module, "deep").unwrap();
    let mut channels: Vec<_> = (0..4).map(|_| session.channel(64, 0).unwrap()).collect();
    let (one, block) = (Dim3::line(1), Dim3::line(1024));
    let deep = |channel: &mut turnstile_guest::Channel<'_, _>| {
        channel.launch(kernel, one, block, 0, &Params::new())?;
        channel.finish(KERNEL_NS)
    };
    deep(&mut channels[0]).expect("there is room");
    ready.send(()).unwrap();
    while !full.load(Ordering::Acquire) {
        session.platform.wait(1_000_000);
    }
    let code = |error: DriverError| error.code().unwrap();
    let mut codes: Vec<ErrorCode> = channels
        .iter_mut()
        .map(|channel| code(deep(channel).unwrap_err()))
        .collect();
    let text = session.boot.file(session.platform, "module").unwrap();
    let refused = loop {
        if let Err(refused) = session.device.load_module(text.gpa, text.bytes) {
            break refused;
        }
    };
    codes.push(code(refused));
    // What gives memory back is served at any time.
    session
        .device
        .unload_module(module)
        .unwrap_or_else(|error| {
            assert_eq!(error.code(), Some(ErrorCode::ModuleInUse));
        });
    codes
}

/// A connection of a VM that maps guest memory until it is refused; returns the refusal.
fn fill(folder: &Path) -> (UnixStream, FrameReader, u64, String) {
    let stream = UnixStream::connect(folder.join("vmm.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = FrameReader::new();
    let mut answer = |message: &ToDaemon, fds: Vec<OwnedFd>| {
        send(&stream, message, fds).unwrap();
        match reader.read::<ToVmm>(&stream).unwrap() {
            Read::Frame(frame) => frame.message,
            other => panic!("{other:?}"),
        }
    };
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: "filler".into(),
        weight: None,
        gpu_memory_bytes: Some(2 << 20),
        regions: Vec::new(),
        metadata: Metadata::default(),
    };
    let vector = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let welcome = answer(&hello, vec![vector]);
    assert!(matches!(welcome, ToVmm::Welcome { .. }), "{welcome:?}");
    let mut mapped = 0;
    let refused = loop {
        let region = Region {
            gpa: mapped,
            bytes: PART_BYTES,
            file_offset: 0,
        };
        let file = memory_file("filler", PART_BYTES).unwrap();
        let map = ToDaemon::MapMemory { id: mapped, region };
        match answer(&map, vec![file.into()]) {
            ToVmm::MemoryDone { refused: None, .. } => mapped += PART_BYTES,
            ToVmm::MemoryDone {
                refused: Some(text),
                ..
            } => break text,
            other => panic!("{other:?}"),
        }
    };
    (stream, reader, mapped, refused)
}

/// Limits the daemon's address space to what it has and [`ROOM_BYTES`].
fn limit(daemon: &Process) {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    let bytes = Some((kib << 10) + ROOM_BYTES);
    let limit = Rlimit {
        current: bytes,
        maximum: bytes,
    };
    prlimit(Some(Pid::from_child(&daemon.0)), Resource::As, limit).unwrap();
}

#[test]
fn full_address_space_ends_requests_of_its_tenant_and_no_other_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut daemon = serve(folder, &[]);
    let done = Arc::new(AtomicU64::new(0));
    let (end, full) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (of_victim, its_end) = (done.clone(), end.clone());
    let (one, over) = guest(folder, "victim", move |session| {
        victim(session, &of_victim, &its_end);
    });
    let progress = |what: &str| {
        let before = done.load(Ordering::Acquire);
        until(what, || {
            (done.load(Ordering::Acquire) > before + 20).then_some(())
        });
    };
    progress("the victim's first kernels");
    limit(&daemon);
    let its_full = full.clone();
    let (ready, is_ready) = sync_channel(1);
    let (other, codes) = guest(folder, "greedy", move |session| {
        greedy(session, &ready, &its_full)
    });
    is_ready.recv_timeout(PATIENCE).unwrap();
    let (stream, _reader, mapped, refused) = fill(folder);
    assert!(mapped >= PART_BYTES, "{mapped}");
    assert!(refused.contains("no address space left"), "{refused}");
    full.store(true, Ordering::Release);
    let codes = codes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(codes, [ErrorCode::HostLimit; 5]);
    let late = VmConfig::new("late", folder.join("vmm.sock"));
    let late = || native::spawn(late.clone(), |_| 0).map(drop);
    let error = format!("{:#}", anyhow::Error::from(late().unwrap_err()));
    // The daemon's own check refuses it, or the kernel where other threads took the rest meanwhile.
    let refused = ["left", "Cannot allocate memory"];
    assert!(refused.iter().any(|of| error.contains(of)), "{error}");
    progress("kernels beside a full address space");
    assert!(daemon.end(Duration::ZERO).is_none());
    // Its memory is the daemon's again when it is gone.
    drop(stream);
    until("room for a VM", || late().ok());
    progress("kernels after it");
    end.store(true, Ordering::Release);
    over.recv_timeout(PATIENCE).unwrap();
    drop((one, other));
    assert!(daemon.end(Duration::ZERO).is_none());
}
