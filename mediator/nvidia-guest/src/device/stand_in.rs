//! A stand-in for the driver, for tests on hosts without a GPU. It answers the escapes by which
//! libcuda starts, over memory files, and executes nothing: a doorbell store advances GP_GET to
//! GP_PUT in the channel's USERD, as if all commands had run, and raises the client's events.
//!
//! It keeps the driver's rules that matter for isolation: clients are numbered over all VMs, an
//! unknown client is refused, and closing a file frees the clients that were made on it. A handle
//! has one object; unified memory maps objects that there are, and keeps them mapped when their
//! handle is freed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, makedev, memfd_create};

use super::{Driver, locked};
use crate::abi::numbers::{
    MEMORY_BYTES_AT, MEMORY_LIMIT_AT, WINDOW_BYTES, class, control, escape, status, uvm,
};
use crate::abi::{MAP_CLIENT_AT, MAP_MEMORY_AT, MAP_STATUS_AT};
use crate::abi::{Node, Parts, number, read_u32, read_u64, write_u32, write_u64};
use crate::sys;

/// First handle of a client. SOURCE: seen of driver 580.159.04.
const FIRST_CLIENT: u32 = 0xc1d0_0001;
/// NV_ERR_INSUFFICIENT_PERMISSIONS, NV_ERR_INVALID_CLIENT.
const REFUSED: u32 = 0x1b;
const NO_CLIENT: u32 = 0x23;
/// NV_ERR_INSERT_DUPLICATE_NAME.
const IN_USE: u32 = 0x19;
/// GPU memory is allocated in pages of this many bytes.
const ROUNDED_TO: u64 = 0x1_0000;
/// SOURCE: `uvm_ioctl.h`, UVM_UNMAP_EXTERNAL.
const UNMAP_STATUS_AT: usize = 32;
/// NVC361_NOTIFY_CHANNEL_PENDING: a store of a channel's token. SOURCE: `class/clc361.h`.
const DOORBELL_AT: u64 = 0x90;
/// USERD. SOURCE: `class/clc86f.h`.
const GP_GET_AT: u64 = 0x88;
const GP_PUT_AT: u64 = 0x8c;
/// NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN.
const GET_TOKEN: u32 = 0xc36f_0108;
/// Interval at which a window is read.
const READ_EVERY: Duration = Duration::from_millis(1);
/// Time of UVM_REGISTER_GPU. SOURCE: measured, driver 580.159.04.
const REGISTER_GPU_TIME: Duration = Duration::from_millis(94);
/// The first bytes of the shared page.
const PAGE: &[u8] = b"stand-in";

/// A driver without a GPU. Several device processes may share one.
#[derive(Debug)]
pub struct StandIn {
    state: Mutex<State>,
    /// Memory of this process, in which guest RAM is mapped.
    memory: File,
}

#[derive(Debug, Default)]
struct State {
    clients: BTreeMap<u32, Client>,
    /// Open files, by descriptor, to raise their events.
    files: BTreeMap<i32, OwnedFd>,
    /// Mappings of unified memory: file and base -> client and memory.
    mappings: BTreeMap<(i32, u64), (u32, u32)>,
    made: u32,
    tokens: u32,
    calls: u64,
    rings: u64,
}

#[derive(Debug)]
struct Client {
    /// Descriptor that it was made on.
    file: i32,
    /// Descriptors that get its events.
    events: Vec<i32>,
    objects: BTreeMap<u32, Object>,
}

#[derive(Debug)]
struct Object {
    parent: u32,
    /// Address of guest RAM in this process.
    address: u64,
    /// Memory of a channel's USERD, and its byte in it.
    userd: (u32, u64),
    /// Number that its doorbell store has, of all VMs' objects.
    token: u32,
    /// Memory that was imported.
    imported: Option<OwnedFd>,
}

impl StandIn {
    /// A driver that has no clients.
    ///
    /// # Errors
    /// As open(2), of the process's memory.
    pub fn new() -> io::Result<Arc<Self>> {
        let memory = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem")?;
        Ok(Arc::new(Self {
            state: Mutex::default(),
            memory,
        }))
    }

    /// Number of objects of all clients, and of clients.
    pub fn count(&self) -> (usize, usize) {
        let state = locked(&self.state);
        let objects = state
            .clients
            .values()
            .map(|client| client.objects.len())
            .sum();
        (objects, state.clients.len())
    }

    /// A client of any VM.
    pub fn any_client(&self) -> Option<u32> {
        locked(&self.state).clients.keys().next().copied()
    }

    /// Memory of an object that was imported: another descriptor of it.
    pub fn imported(&self, client: u32, handle: u32) -> Option<OwnedFd> {
        let state = locked(&self.state);
        let object = state.clients.get(&client)?.objects.get(&handle)?;
        object.imported.as_ref()?.try_clone().ok()
    }

    /// Objects that unified memory has mapped: base, client and handle.
    pub fn mappings(&self) -> Vec<(u64, u32, u32)> {
        let state = locked(&self.state);
        let all = state.mappings.iter();
        all.map(|((_, base), (client, handle))| (*base, *client, *handle))
            .collect()
    }

    /// Number of calls.
    pub fn calls(&self) -> u64 {
        locked(&self.state).calls
    }

    /// Number of doorbell stores that advanced a channel.
    pub fn rings(&self) -> u64 {
        locked(&self.state).rings
    }

    fn window() -> io::Result<OwnedFd> {
        let window = memfd_create("stand-in-window", MemfdFlags::CLOEXEC)?;
        ftruncate(&window, WINDOW_BYTES)?;
        Ok(window)
    }
}

impl Driver for Arc<StandIn> {
    fn open(&self, node: Node) -> io::Result<OwnedFd> {
        self.device_number(node)?;
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let copy = file.try_clone()?;
        locked(&self.state).files.insert(file.as_raw_fd(), copy);
        Ok(file)
    }

    fn close(&self, file: OwnedFd) {
        let number = file.as_raw_fd();
        let mut state = locked(&self.state);
        state.files.remove(&number);
        state.mappings.retain(|(file, _), _| *file != number);
        state.clients.retain(|_, client| client.file != number);
        state
            .clients
            .values_mut()
            .for_each(|client| client.events.retain(|event| *event != number));
    }

    fn device_number(&self, node: Node) -> io::Result<u64> {
        match node {
            Node::Control => Ok(makedev(195, 255)),
            Node::Gpu(0) => Ok(makedev(195, 0)),
            Node::Gpu(_) => Err(io::Error::from_raw_os_error(libc::ENOENT)),
            Node::Uvm => Ok(makedev(510, 0)),
        }
    }

    fn call(&self, file: BorrowedFd<'_>, request: u32, parts: &mut Parts) -> io::Result<i32> {
        if request == uvm::REGISTER_GPU {
            thread::sleep(REGISTER_GPU_TIME);
        }
        let mut state = locked(&self.state);
        state.calls += 1;
        if let Some((number, _)) = number(request) {
            state.escape(file.as_raw_fd(), number, parts);
        } else if let Some(top) = parts.buffers.first_mut() {
            state.unified(file.as_raw_fd(), request, top);
        }
        Ok(0)
    }

    fn page(&self, _file: BorrowedFd<'_>, bytes: usize) -> io::Result<Vec<u8>> {
        let mut page = PAGE.to_vec();
        page.resize(bytes, 0);
        Ok(page)
    }

    fn gpus(&self) -> Vec<u8> {
        vec![0]
    }

    fn windows(&self, _gpu: u8) -> io::Result<[OwnedFd; 2]> {
        let windows = [StandIn::window()?, StandIn::window()?];
        for window in &windows {
            let (window, state) = (
                File::from(window.as_fd().try_clone_to_owned()?),
                Arc::downgrade(self),
            );
            let thread = thread::Builder::new().name("stand-in-bell".to_owned());
            thread.spawn(move || watch(&window, &state))?;
        }
        Ok(windows)
    }
}

/// Reads a window until the driver is gone.
fn watch(window: &File, driver: &Weak<StandIn>) {
    while let Some(driver) = driver.upgrade() {
        let mut word = [0; 4];
        if window.read_exact_at(&mut word, DOORBELL_AT).is_ok() && word != [0; 4] {
            let _ = window.write_all_at(&[0; 4], DOORBELL_AT);
            let mut state = locked(&driver.state);
            if let Some((client, userd)) = state.userd_of(u32::from_ne_bytes(word)) {
                let mut put = [0; 4];
                let memory = &driver.memory;
                let moved = memory
                    .read_exact_at(&mut put, userd + GP_PUT_AT)
                    .and_then(|()| memory.write_all_at(&put, userd + GP_GET_AT));
                state.rings += u64::from(moved.is_ok());
                state.raise(client);
            }
        }
        drop(driver);
        thread::sleep(READ_EVERY);
    }
}

impl State {
    /// Raises an event of a client's files.
    fn raise(&self, client: u32) {
        let events = self
            .clients
            .get(&client)
            .into_iter()
            .flat_map(|client| &client.events);
        for file in events.filter_map(|event| self.files.get(event)) {
            // One that is full has an event already.
            let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
        }
    }

    /// The client of the channel with this token, and the address of its USERD.
    fn userd_of(&self, token: u32) -> Option<(u32, u64)> {
        self.clients.iter().find_map(|(number, client)| {
            let channel = client
                .objects
                .values()
                .find(|object| object.token == token)?;
            let (memory, offset) = channel.userd;
            let memory = client.objects.get(&memory)?;
            (memory.address != 0).then_some((*number, memory.address + offset))
        })
    }

    fn escape(&mut self, file: i32, number: u8, parts: &mut Parts) {
        let Some(top) = parts.buffers.first() else {
            return;
        };
        let word = |at| read_u32(top, at);
        let (client, parent, handle, class) = (word(0), word(4), word(8), word(12));
        let long = top.len() == 48;
        let known = self.clients.contains_key(&client);
        let refused = if known { status::OK } else { NO_CLIENT };
        let (at, answer) = match number {
            escape::RM_ALLOC if class::is_root(class) => {
                let new = FIRST_CLIENT + self.made;
                self.made += 1;
                let made = Client {
                    file,
                    events: Vec::new(),
                    objects: BTreeMap::new(),
                };
                self.clients.insert(new, made);
                write_u32(&mut parts.buffers[0], 8, new);
                (if long { 40 } else { 28 }, status::OK)
            }
            escape::RM_ALLOC | escape::RM_ALLOC_MEMORY => {
                self.tokens += 1;
                let is_ram = number == escape::RM_ALLOC_MEMORY;
                let params = parts.params().unwrap_or_default();
                let object = Object {
                    parent,
                    address: if is_ram { read_u64(top, 24) } else { 0 },
                    userd: (read_u32(params, 32), read_u64(params, 64)),
                    token: self.tokens,
                    imported: None,
                };
                let bytes = read_u64(params, MEMORY_BYTES_AT);
                if class == class::GPU_MEMORY
                    && let Some(params) = parts.params_mut()
                {
                    let bytes = bytes.saturating_add(ROUNDED_TO - 1) & !(ROUNDED_TO - 1);
                    write_u64(params, MEMORY_BYTES_AT, bytes);
                    write_u64(params, MEMORY_LIMIT_AT, bytes.saturating_sub(1));
                }
                let answer = self.insert(client, handle, object);
                (if is_ram || long { 40 } else { 28 }, answer)
            }
            escape::RM_FREE => (12, self.free(client, handle)),
            escape::ALLOC_OS_EVENT | escape::FREE_OS_EVENT => {
                // CAST: descriptors of this process.
                let file = handle as i32;
                if let Some(client) = self.clients.get_mut(&client) {
                    client.events.retain(|event| *event != file);
                    client
                        .events
                        .extend((number == escape::ALLOC_OS_EVENT).then_some(file));
                }
                (12, refused)
            }
            escape::RM_DUP_OBJECT => (
                24,
                if self.clients.contains_key(&word(12)) {
                    refused
                } else {
                    REFUSED
                },
            ),
            escape::RM_MAP_MEMORY => (40, refused),
            escape::RM_UNMAP_MEMORY => (24, refused),
            escape::RM_CONTROL if handle == control::IMPORT_OBJECTS => {
                let answer = self.import(client, parts.params().unwrap_or_default());
                (28, answer)
            }
            escape::RM_CONTROL => {
                // The object of the control is the channel.
                let channel = self
                    .clients
                    .get(&client)
                    .and_then(|client| client.objects.get(&parent));
                if handle == GET_TOKEN
                    && let Some((params, channel)) = parts.params_mut().zip(channel)
                {
                    write_u32(params, 0, channel.token);
                }
                (28, refused)
            }
            _ => return,
        };
        write_u32(&mut parts.buffers[0], at, answer);
    }

    fn insert(&mut self, client: u32, handle: u32, object: Object) -> u32 {
        let Some(known) = self.clients.get_mut(&client) else {
            return NO_CLIENT;
        };
        if object.parent != client && !known.objects.contains_key(&object.parent) {
            return status::OBJECT_NOT_FOUND;
        }
        if known.objects.contains_key(&handle) {
            return IN_USE;
        }
        known.objects.insert(handle, object);
        status::OK
    }

    /// NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, of one object.
    fn import(&mut self, client: u32, params: &[u8]) -> u32 {
        // CAST: a descriptor has 32 bits, and is negative if there is none.
        let Ok(memory) = sys::duplicate(read_u32(params, 0) as i32) else {
            return REFUSED;
        };
        let (parent, handle) = (read_u32(params, 4), read_u32(params, 8));
        let object = Object {
            parent,
            address: 0,
            userd: (0, 0),
            token: 0,
            imported: Some(memory),
        };
        self.insert(client, handle, object)
    }

    /// A call of unified memory.
    fn unified(&mut self, file: i32, request: u32, top: &mut [u8]) {
        let base = read_u64(top, 0);
        let known = |(client, handle): (u32, u32)| {
            let client = self.clients.get(&client);
            client.is_some_and(|client| client.objects.contains_key(&handle))
        };
        let (at, answer) = match request {
            uvm::MAP_EXTERNAL_ALLOCATION => {
                let memory = (read_u32(top, MAP_CLIENT_AT), read_u32(top, MAP_MEMORY_AT));
                if known(memory) {
                    self.mappings.insert((file, base), memory);
                    (MAP_STATUS_AT, status::OK)
                } else {
                    (MAP_STATUS_AT, status::OBJECT_NOT_FOUND)
                }
            }
            uvm::UNMAP_EXTERNAL => {
                self.mappings.remove(&(file, base));
                (UNMAP_STATUS_AT, status::OK)
            }
            // Others succeed; each has its status in the last words.
            _ => (top.len().saturating_sub(4), status::OK),
        };
        write_u32(top, at, answer);
    }

    fn free(&mut self, client: u32, handle: u32) -> u32 {
        if client == handle {
            return if self.clients.remove(&client).is_some() {
                status::OK
            } else {
                NO_CLIENT
            };
        }
        let Some(known) = self.clients.get_mut(&client) else {
            return NO_CLIENT;
        };
        if known.objects.remove(&handle).is_none() {
            return status::OBJECT_NOT_FOUND;
        }
        loop {
            let before = known.objects.len();
            let handles: Vec<u32> = known.objects.keys().copied().collect();
            known
                .objects
                .retain(|_, object| object.parent == client || handles.contains(&object.parent));
            if known.objects.len() == before {
                return status::OK;
            }
        }
    }
}
