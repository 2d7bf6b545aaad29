//! A driver that records what it is called for, and a connection that records messages.
//!
//! In: calls of the heap. Out: live handles, mappings and reservations; the messages that were
//! sent. The tests of the heap use both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use turnstile_preload_wire::{GRANULE_BYTES, ToDaemon};

use crate::abi::{Access, OUT_OF_MEMORY, Prop};
use crate::heap::{Device, Line, Outcome};

/// A driver that records handles, mappings and reservations.
#[derive(Debug, Default)]
pub(super) struct Books {
    next: u64,
    /// Live handles.
    pub(super) handles: BTreeSet<u64>,
    /// Address -> bytes, handle, permitted.
    pub(super) mapped: BTreeMap<u64, (u64, u64, bool)>,
    reserved: BTreeMap<u64, u64>,
    /// Creations that still succeed.
    pub(super) room: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FakeDriver(Arc<Mutex<Books>>);

impl FakeDriver {
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap()
    }

    fn handle(&self) -> u64 {
        let mut books = self.books();
        books.next += 1;
        let handle = books.next;
        books.handles.insert(handle);
        handle
    }

    pub(super) fn is_empty(&self) -> bool {
        let books = self.books();
        books.handles.is_empty() && books.mapped.is_empty() && books.reserved.is_empty()
    }
}

pub(super) fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

impl Device for FakeDriver {
    fn create(&self, bytes: u64, prop: &Prop) -> Outcome<u64> {
        assert_eq!(bytes % GRANULE_BYTES, 0);
        assert_eq!(prop.handle_types, 1, "can be exported");
        if let Some(room) = &mut self.books().room {
            *room = room.checked_sub(1).ok_or(OUT_OF_MEMORY)?;
        }
        Ok(self.handle())
    }
    fn release(&self, handle: u64) -> Outcome<()> {
        assert!(self.books().handles.remove(&handle), "once");
        Ok(())
    }
    fn export(&self, handle: u64) -> Outcome<OwnedFd> {
        assert!(self.books().handles.contains(&handle));
        Ok(null())
    }
    fn import(&self, _: OwnedFd) -> Outcome<u64> {
        Ok(self.handle())
    }
    fn reserve(&self, bytes: u64) -> Outcome<u64> {
        let mut books = self.books();
        let end = books
            .reserved
            .last_key_value()
            .map(|(at, bytes)| at + bytes);
        let at = end.unwrap_or(1 << 40);
        books.reserved.insert(at, bytes);
        Ok(at)
    }
    fn unreserve(&self, address: u64, bytes: u64) -> Outcome<()> {
        assert_eq!(self.books().reserved.remove(&address), Some(bytes));
        Ok(())
    }
    fn map(&self, address: u64, bytes: u64, handle: u64) -> Outcome<()> {
        let mut books = self.books();
        assert!(books.handles.contains(&handle));
        let before = books.mapped.insert(address, (bytes, handle, false));
        assert!(before.is_none());
        Ok(())
    }
    fn permit(&self, address: u64, bytes: u64, _: &[Access]) -> Outcome<()> {
        let mut books = self.books();
        let mapped = books.mapped.get_mut(&address).unwrap();
        assert_eq!(mapped.0, bytes);
        mapped.2 = true;
        Ok(())
    }
    fn unmap(&self, address: u64, bytes: u64) -> Outcome<()> {
        let mapped = self.books().mapped.remove(&address).unwrap();
        assert_eq!(mapped.0, bytes);
        Ok(())
    }
}

/// The messages that were sent, and whether there is a daemon.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeLine {
    sent: Arc<Mutex<Vec<ToDaemon>>>,
    pub(super) up: Arc<AtomicBool>,
}

impl Line for FakeLine {
    fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
    fn send(&self, message: ToDaemon, fd: Option<OwnedFd>) -> bool {
        assert_eq!(usize::from(fd.is_some()), message.descriptors());
        let up = self.up.load(Ordering::Relaxed);
        if up {
            self.sent.lock().unwrap().push(message);
        }
        up
    }
}

impl FakeLine {
    pub(super) fn take(&self) -> Vec<ToDaemon> {
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}
