//! Sockets of declared VMs. One thread makes and removes them, as the threads that serve clients
//! may neither listen nor change owners.
//!
//! In: orders of the fleet. Out: folders `vms/INSTANCE` beside the daemon's socket, each with a
//! socket in it; listeners, which go to the control loop. A folder stays while its VM is declared,
//! so that it can be mounted into a container: only the socket in it changes with the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use turnstile_vmm::front::{Doorbells, Front, FrontConfig};
use turnstile_vmm::wire::Metadata;
use uuid::Uuid;
use vmm_sys_util::eventfd::EventFd;

use super::{AttachmentKind, Declaration};
use crate::socket::{ListenError, listen, remove};

/// Folder of the VMs' folders, beside the daemon's socket.
const FOLDER: &str = "vms";
/// All users may enter; a socket's own permissions decide.
const FOLDER_MODE: u32 = 0o711;
/// Socket of a VMM with the plug-in.
const VMM: &str = "vmm.sock";
/// Socket of a stock VMM.
const VFIO_USER: &str = "vfio-user.sock";
/// Permissions of the socket over which a front of this process reaches its VM.
const OWN_MODE: u32 = 0o600;

/// Why a VM has no socket.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Its folder.
    #[error("Making the folder {} failed", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Owner and group.
    #[error("{} cannot be given to its owner and group; a daemon over a software GPU keeps no right to (safety.keep_capabilities)", path.display())]
    Owner {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread.
    #[error("No thread could be had for {}", path.display())]
    Start {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The thread of the sockets is gone: the daemon ends.
    #[error("The daemon ends")]
    Ends,
}

/// What the control loop is to listen on.
pub(crate) enum DoorChange {
    Opened(Uuid, UnixListener),
    Closed(Uuid),
}

enum Order {
    Open(Box<Declaration>, Sender<Result<(), DoorError>>),
    Close(Uuid),
}

/// Orders to the thread that makes and removes sockets. It ends when the last copy is dropped, and
/// removes the sockets then, not their folders.
#[derive(Clone, Debug)]
pub(crate) struct Doors {
    folder: PathBuf,
    orders: Sender<Order>,
}

/// An open socket.
struct Door {
    sockets: Vec<PathBuf>,
    /// Serves a stock VMM.
    front: Option<Front>,
}

impl Doors {
    /// Begins, beside the daemon's socket. Folders of instances other than these are removed.
    pub(crate) fn start(
        daemon: &Path,
        declared: &BTreeSet<Uuid>,
        changes: Sender<DoorChange>,
        wake: EventFd,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let folder = daemon.with_file_name(FOLDER);
        remove_others(&folder, declared);
        let (orders, received) = channel();
        let keeper = Keeper {
            folder: folder.clone(),
            changes,
            wake,
            open: BTreeMap::new(),
        };
        let thread = thread::Builder::new()
            .name("turnstile-vms".into())
            .spawn(move || keeper.run(&received))?;
        Ok((Self { folder, orders }, thread))
    }

    /// Where the VMM of this VM connects.
    pub(crate) fn socket(&self, declared: &Declaration) -> PathBuf {
        socket_in(&self.folder, declared)
    }

    /// Makes a VM's socket, and waits for it.
    pub(crate) fn open(&self, declared: Declaration) -> Result<(), DoorError> {
        let (answer, answered) = channel();
        let sent = self.orders.send(Order::Open(Box::new(declared), answer));
        sent.map_err(|_| DoorError::Ends)?;
        answered.recv().unwrap_or(Err(DoorError::Ends))
    }

    /// Removes a VM's socket and its folder, without waiting for it.
    pub(crate) fn close(&self, instance: Uuid) {
        // The thread ends with the daemon alone.
        let _ = self.orders.send(Order::Close(instance));
    }
}

/// The path is made from the instance id: a name could be chosen to look like another's.
fn socket_in(folder: &Path, declared: &Declaration) -> PathBuf {
    let name = match declared.attachment.kind {
        AttachmentKind::Vmm => VMM,
        AttachmentKind::VfioUser => VFIO_USER,
    };
    folder.join(declared.instance.to_string()).join(name)
}

/// Removes folders of VMs that are not declared any more.
fn remove_others(folder: &Path, declared: &BTreeSet<Uuid>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let instance = name.to_str().and_then(|name| Uuid::parse_str(name).ok());
        if instance.is_some_and(|instance| !declared.contains(&instance)) {
            remove_folder(&entry.path());
        }
    }
}

/// Removes the folder of a VM, with the sockets in it and nothing else.
fn remove_folder(folder: &Path) {
    for name in [VMM, VFIO_USER] {
        remove(&folder.join(name));
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("{} stays: {error}", folder.display());
        }
        _ => {}
    }
}

fn make_folder(path: &Path) -> Result<(), DoorError> {
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(DoorError::Folder {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

struct Keeper {
    folder: PathBuf,
    changes: Sender<DoorChange>,
    wake: EventFd,
    open: BTreeMap<Uuid, Door>,
}

impl Keeper {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Open(declared, answer) => {
                    let opened = self.open(&declared);
                    if opened.is_err() {
                        self.close(declared.instance);
                    }
                    let _ = answer.send(opened);
                }
                Order::Close(instance) => self.close(instance),
            }
        }
        for Door { sockets, front } in self.open.into_values() {
            // First: its thread is woken by way of its socket.
            drop(front);
            sockets.iter().for_each(|path| remove(path));
        }
    }

    fn open(&mut self, declared: &Declaration) -> Result<(), DoorError> {
        let (instance, attachment) = (declared.instance, declared.attachment);
        let folder = self.folder.join(instance.to_string());
        make_folder(&self.folder)?;
        make_folder(&folder)?;
        let (public, own) = (socket_in(&self.folder, declared), folder.join(VMM));
        let mut door = Door {
            sockets: vec![public.clone()],
            front: None,
        };
        // Open to no other user until the owner is set.
        let listener = listen(&public, OWN_MODE)?;
        if attachment.owner.is_some() || attachment.group.is_some() {
            let given = chown(&public, attachment.owner, attachment.group);
            given.map_err(|source| DoorError::Owner {
                path: public.clone(),
                source,
            })?;
        }
        crate::socket::permit(&public, attachment.mode);
        let listener = match attachment.kind {
            AttachmentKind::Vmm => listener,
            AttachmentKind::VfioUser => {
                let inner = listen(&own, OWN_MODE)?;
                door.sockets.push(own.clone());
                let config = FrontConfig {
                    name: declared.name.clone(),
                    daemon: own,
                    weight: None,
                    gpu_memory_bytes: declared.gpu_memory_bytes,
                    metadata: Metadata::default(),
                    doorbells: Doorbells::Trapped,
                };
                let front = Front::start(config, listener);
                let path = public;
                let front = front.map_err(|source| DoorError::Start { path, source })?;
                door.front = Some(front);
                inner
            }
        };
        self.open.insert(instance, door);
        self.change(DoorChange::Opened(instance, listener));
        Ok(())
    }

    fn close(&mut self, instance: Uuid) {
        self.open.remove(&instance);
        remove_folder(&self.folder.join(instance.to_string()));
        self.change(DoorChange::Closed(instance));
    }

    /// Changes what the control loop listens on.
    fn change(&self, change: DoorChange) {
        if self.changes.send(change).is_ok() {
            let _ = self.wake.write(1);
        }
    }
}
