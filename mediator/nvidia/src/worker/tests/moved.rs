//! Memory that is unmapped from a worker and mapped again, in other files.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use turnstile_abi::{CHUNK_BYTES, Command as Ring, ErrorCode};
use vm_memory::GuestAddress;

use super::{Rig, code, config, fault_of, wait};
use crate::sets::{Mapper, Place};
use turnstile_gpu::Allocation;
use turnstile_gpu::plain::PlainChannel;
use turnstile_host::memory_file::memory_file;

/// What a restarted worker has to map.
type Given = Arc<Mutex<Vec<(Place, Option<File>)>>>;

struct Moved {
    rig: Rig,
    allocation: Allocation,
    places: [Place; 2],
    given: Given,
}

fn chunk() -> File {
    memory_file("turnstile-test", CHUNK_BYTES).unwrap()
}

fn word(file: &File) -> u32 {
    let mut word = [0; 4];
    file.read_exact_at(&mut word, 8).unwrap();
    u32::from_le_bytes(word)
}

fn handle(file: &File) -> Option<OwnedFd> {
    Some(file.try_clone().unwrap().into())
}

impl Moved {
    /// A worker with two pieces of memory, mapped.
    fn new(files: [&File; 2]) -> Self {
        let rig = Rig::new(config());
        let given = Given::default();
        let again = given.clone();
        rig.worker.remap_from(move || {
            let again = again.lock().unwrap();
            let again = again
                .iter()
                .map(|(place, file)| Ok((*place, file.as_ref().and_then(handle))));
            again.collect()
        });
        let allocation = rig.worker.reserve(2 * CHUNK_BYTES).unwrap();
        let places = [0, 1].map(|nth| Place {
            at: allocation.va + nth * CHUNK_BYTES,
            bytes: CHUNK_BYTES,
        });
        let memory = places
            .iter()
            .zip(files)
            .map(|(place, file)| (*place, handle(file)));
        rig.worker.map(memory.collect()).unwrap();
        Self {
            rig,
            allocation,
            places,
            given,
        }
    }

    fn fill(&self, channel: &mut PlainChannel, pattern: u32) -> u64 {
        for place in &self.places {
            channel.push(&Ring::Fill {
                va: place.at,
                bytes: place.bytes,
                pattern,
            });
        }
        let fence = channel.push_fence(false);
        channel.ring();
        fence
    }
}

#[test]
fn nothing_is_executed_while_memory_is_away_and_all_of_it_afterwards() {
    let (one, two) = (chunk(), chunk());
    let moved = Moved::new([&one, &two]);
    let worker = &moved.rig.worker;
    let mut channel = moved.rig.channel();
    let fence = moved.fill(&mut channel, 1);
    wait("fill", || channel.fence().value == fence);
    assert_eq!((word(&one), word(&two)), (1, 1));
    worker.set_suspended(true);
    worker.unmap(&moved.places[1..]).unwrap();
    let last = moved.fill(&mut channel, 2);
    // The worker has read the doorbell by the time that it answers an order, and passes go on.
    for _ in 0..20 {
        assert_eq!(
            code(worker.find_function(9, "none")),
            ErrorCode::NoSuchModule
        );
        worker.ring();
    }
    assert!(moved.rig.activity()[0].pending > 0);
    assert_eq!((channel.fence().value, word(&one)), (fence, 1));
    let elsewhere = chunk();
    worker
        .map(vec![(moved.places[1], handle(&elsewhere))])
        .unwrap();
    worker.set_suspended(false);
    wait("the second fill", || channel.fence().value == last);
    assert_eq!((word(&one), word(&elsewhere), word(&two)), (2, 2, 1));
    // Already mapped: nothing changes.
    worker.map(vec![(moved.places[1], handle(&two))]).unwrap();
    worker.drop_places(&moved.places).unwrap();
    worker.unreserve(moved.allocation.va);
    moved.fill(&mut channel, 3);
    assert_eq!(fault_of(&channel), ErrorCode::PageFault);
    assert_eq!((word(&one), word(&elsewhere)), (2, 2));
}

#[test]
fn a_worker_that_is_started_again_has_what_is_there_and_waits_for_the_rest() {
    let (one, two) = (chunk(), chunk());
    let moved = Moved::new([&one, &two]);
    let worker = &moved.rig.worker;
    let elsewhere = [chunk(), chunk()];
    *moved.given.lock().unwrap() = vec![
        (moved.places[0], Some(elsewhere[0].try_clone().unwrap())),
        (moved.places[1], None),
    ];
    worker.end_process();
    // A process that has ended has nothing mapped; its successor maps the current memory.
    worker.unmap(&moved.places).unwrap();
    worker.map(vec![(moved.places[1], handle(&two))]).unwrap();
    let mut channel = moved.rig.channel();
    let fence = moved.fill(&mut channel, 5);
    assert_eq!(
        code(worker.find_function(9, "none")),
        ErrorCode::NoSuchModule
    );
    assert_eq!(channel.fence().value, 0);
    worker
        .map(vec![(moved.places[1], handle(&elsewhere[1]))])
        .unwrap();
    wait("fill", || channel.fence().value == fence);
    assert_eq!((word(&elsewhere[0]), word(&elsewhere[1])), (5, 5));
    assert_eq!((word(&one), word(&two)), (0, 0));
}

#[test]
fn what_is_in_use_is_not_dropped_and_what_is_away_is() {
    let (one, two) = (chunk(), chunk());
    let moved = Moved::new([&one, &two]);
    let worker = &moved.rig.worker;
    let (module, _) = worker.load_module("held until").unwrap();
    let mut channel = moved.rig.channel();
    let gate = moved.rig.vm.put(&[0; 8]);
    channel.push_fence(false);
    channel.push(&moved.rig.launch_with(module, 0, gate));
    let fence = moved.fill(&mut channel, 1);
    wait("start", || channel.fence().value == 1);
    worker.unmap(&moved.places[1..]).unwrap();
    // All or nothing, including the first place.
    assert_eq!(
        code(worker.drop_places(&moved.places)),
        ErrorCode::AllocationInUse
    );
    worker.map(vec![(moved.places[1], handle(&two))]).unwrap();
    let at = GuestAddress(gate);
    moved.rig.vm.guest.write_obj(1u64, at).unwrap();
    wait("end", || channel.fence().value == fence);
    worker.unmap(&moved.places[1..]).unwrap();
    worker.drop_places(&moved.places).unwrap();
    assert_eq!(
        code(worker.drop_places(&moved.places)),
        ErrorCode::NoSuchAllocation
    );
}
