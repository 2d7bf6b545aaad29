//! The checker, by examples and with random calls.

use proptest::prelude::*;

use super::*;
use crate::abi::numbers::{class, control, escape, status, uvm};
use crate::abi::{parts, release, write_u32, write_u64};

const CLIENT: u32 = 0xc1d0_0001;
const OTHER: u32 = 0xc1d0_0002;
const DEVICE: u32 = 0x5c00_0001;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn random_calls_never_reach_another_vm(bytes in prop::collection::vec(any::<u8>(), 0..3_000)) {
        trial::calls(&bytes);
    }
}

/// A VM with a client and a device.
struct Rig {
    vm: Vm,
    control: u32,
    /// A file of unified memory.
    memory: u32,
}

fn request(number: u8, bytes: u32) -> u32 {
    3 << 30 | bytes << 16 | 0x4600 | u32::from(number)
}

impl Rig {
    fn new(limits: Limits) -> Self {
        let mut vm = Vm::new(release("580.159.04").unwrap(), limits);
        let control = vm.open(Node::Control, 1).unwrap();
        let memory = vm.open(Node::Uvm, 1).unwrap();
        let mut rig = Self {
            vm,
            control,
            memory,
        };
        assert_eq!(
            rig.alloc([0, 0, 0, class::ROOT], None, 0),
            Ok(Action::Forward)
        );
        let device = rig.alloc(
            [CLIENT, CLIENT, DEVICE, class::DEVICE],
            Some(vec![0; 56]),
            0,
        );
        assert_eq!(device, Ok(Action::Forward));
        rig
    }

    fn issue(
        &mut self,
        request: u32,
        top: &[u8],
        params: Option<Vec<u8>>,
        ram_bytes: u64,
    ) -> Result<Action, Refusal> {
        let mut given = [Some(top.to_vec()), params].into_iter().flatten();
        let mut next = |_, _| given.next();
        let release = self.vm.release();
        let laid_out = parts(release, Node::Control, request, 1, &mut next);
        let mut parts = laid_out.map_err(|_| self.vm.malformed())?;
        let call = Call {
            file: self.control,
            request,
            parts: &parts,
            ram_bytes,
        };
        let checked = self.vm.check(&call)?;
        let action = checked.action;
        if read_u32(&parts.buffers[0], 12) == class::ROOT {
            write_u32(&mut parts.buffers[0], 8, CLIENT);
        }
        let call = Call {
            file: self.control,
            request,
            parts: &parts,
            ram_bytes,
        };
        let _ = self
            .vm
            .settle(&call, &checked, !matches!(action, Action::Answer(_)));
        Ok(action)
    }

    fn alloc(
        &mut self,
        words: [u32; 4],
        params: Option<Vec<u8>>,
        ram_bytes: u64,
    ) -> Result<Action, Refusal> {
        let mut top = vec![0; 48];
        words
            .iter()
            .enumerate()
            .for_each(|(at, word)| write_u32(&mut top, 4 * at, *word));
        write_u64(&mut top, 16, params.is_some().into());
        self.issue(request(escape::RM_ALLOC, 48), &top, params, ram_bytes)
    }

    fn memory(
        &mut self,
        handle: u32,
        kind: u32,
        bytes: u64,
        ram_bytes: u64,
    ) -> Result<Action, Refusal> {
        let mut params = vec![0; 128];
        write_u64(&mut params, 64, bytes);
        self.alloc([CLIENT, DEVICE, handle, kind], Some(params), ram_bytes)
    }

    fn dup(&mut self, source: u32, handle: u32) {
        let mut top = vec![0; 28];
        for (at, word) in [CLIENT, DEVICE, handle, CLIENT, source]
            .into_iter()
            .enumerate()
        {
            write_u32(&mut top, 4 * at, word);
        }
        let issued = self.issue(request(escape::RM_DUP_OBJECT, 28), &top, None, 0);
        assert_eq!(issued, Ok(Action::Forward));
    }

    /// Makes a call of unified memory, with success.
    fn uvm(&mut self, request: u32, top: &[u8]) -> Result<Action, Refusal> {
        let parts = Parts {
            buffers: vec![top.to_vec()],
            links: Vec::new(),
        };
        let call = Call {
            file: self.memory,
            request,
            parts: &parts,
            ram_bytes: 0,
        };
        let checked = self.vm.check(&call)?;
        let _ = self.vm.settle(&call, &checked, true);
        Ok(checked.action)
    }

    /// Maps memory for a GPU, in a range of its own.
    fn map_external(&mut self, memory: u32) {
        let map = crate::abi::MapCall {
            base: 1 << 30,
            bytes: 6 << 20,
            offset: 0,
            attributes: vec![7; uvm::ATTRIBUTE_BYTES],
            control: self.control,
            client: CLIENT,
            memory,
        };
        let top = map.top();
        for request in [uvm::CREATE_EXTERNAL_RANGE, uvm::MAP_EXTERNAL_ALLOCATION] {
            assert_eq!(self.uvm(request, &top), Ok(Action::Forward));
        }
    }

    fn free_range(&mut self) {
        let mut top = vec![0; 24];
        write_u64(&mut top, 0, 1 << 30);
        assert_eq!(self.uvm(uvm::FREE, &top), Ok(Action::Forward));
    }

    fn free(&mut self, handle: u32) -> Result<Action, Refusal> {
        let mut top = vec![0; 16];
        write_u32(&mut top, 0, CLIENT);
        write_u32(&mut top, 8, handle);
        self.issue(request(escape::RM_FREE, 16), &top, None, 0)
    }
}

use crate::abi::read_u32;

#[test]
fn quota_counts_gpu_memory_and_is_given_back() {
    let mut rig = Rig::new(Limits {
        gpu_bytes: Some(8 << 20),
        ..Limits::default()
    });
    assert_eq!(
        rig.memory(10, class::GPU_MEMORY, 6 << 20, 0),
        Ok(Action::Forward)
    );
    let full = Ok(Action::Answer(status::NO_MEMORY));
    assert_eq!(rig.memory(11, class::GPU_MEMORY, 4 << 20, 0), full);
    assert_eq!(rig.memory(11, class::GPU_MEMORY, u64::MAX, 0), full);
    let mut answer = vec![0; 1028];
    for (at, word) in [2, 8, 80 << 20, 0x16, 80 << 20].into_iter().enumerate() {
        write_u32(&mut answer, 4 * at, word);
    }
    rig.vm
        .cut_to_quota(control::FB_GET_INFO_V2, &mut answer, None);
    assert_eq!(
        (read_u32(&answer, 8), read_u32(&answer, 16)),
        (8 << 10, 2 << 10)
    );
    assert_eq!(rig.free(10), Ok(Action::Forward));
    assert_eq!(
        rig.memory(11, class::GPU_MEMORY, 4 << 20, 0),
        Ok(Action::Forward)
    );
    assert_eq!(rig.vm.usage().gpu_bytes, 4 << 20);
}

/// Everything that keeps GPU memory in the driver keeps it in the quota.
#[test]
fn memory_counts_until_its_last_reference_is_gone() {
    let mut rig = Rig::new(Limits {
        gpu_bytes: Some(8 << 20),
        ..Limits::default()
    });
    let full = Ok(Action::Answer(status::NO_MEMORY));
    type Step = fn(&mut Rig);
    let others: [(&str, Step, Step); 2] = [
        (
            "duplicate",
            |rig| rig.dup(10, 20),
            |rig| assert!(rig.free(20).is_ok()),
        ),
        (
            "mapping",
            |rig| rig.map_external(10),
            |rig| rig.free_range(),
        ),
    ];
    for (name, refer, give_up) in others {
        assert_eq!(
            rig.memory(10, class::GPU_MEMORY, 6 << 20, 0),
            Ok(Action::Forward),
            "{name}"
        );
        refer(&mut rig);
        assert_eq!(rig.vm.usage().gpu_bytes, 6 << 20, "{name}: counted once");
        assert_eq!(rig.free(10), Ok(Action::Forward), "{name}");
        assert_eq!(
            rig.memory(11, class::GPU_MEMORY, 4 << 20, 0),
            full,
            "{name}"
        );
        give_up(&mut rig);
        assert_eq!(rig.vm.usage().gpu_bytes, 0, "{name}");
    }
}

#[test]
fn mappings_are_bounded() {
    let mut rig = Rig::new(Limits {
        mappings: 2,
        ..Limits::default()
    });
    assert_eq!(
        rig.memory(10, class::GPU_MEMORY, 6 << 20, 0),
        Ok(Action::Forward)
    );
    rig.map_external(10);
    let mut top = vec![0; 24];
    write_u64(&mut top, 0, 1 << 40);
    write_u64(&mut top, 8, 4096);
    let limit = rig.uvm(uvm::CREATE_EXTERNAL_RANGE, &top);
    assert_eq!(limit, Err(Refusal::Limit));
}

#[test]
fn memory_that_is_mapped_needs_guest_ram_of_its_length() {
    let mut rig = Rig::new(Limits {
        pinned_bytes: 4 << 20,
        ..Limits::default()
    });
    let replaced = Ok(Action::Replace { bytes: 5000 });
    assert_eq!(rig.memory(10, class::SYSTEM_MEMORY, 5000, 8192), replaced);
    assert_eq!(
        rig.memory(11, class::SYSTEM_MEMORY, 5000, 4096),
        Err(Refusal::Malformed)
    );
    assert_eq!(
        rig.memory(11, class::SYSTEM_MEMORY, 5000, 0),
        Err(Refusal::Malformed)
    );
    // GPU memory becomes guest RAM when the program maps it.
    assert_eq!(
        rig.memory(12, class::GPU_MEMORY, 2 << 20, 0),
        Ok(Action::Forward)
    );
    let mut top = vec![0; 56];
    write_u32(&mut top, 0, CLIENT);
    write_u32(&mut top, 8, 12);
    write_u32(&mut top, 48, u32::MAX);
    let map = request(escape::RM_MAP_MEMORY, 56);
    assert_eq!(rig.issue(map, &top, None, 0), Err(Refusal::Malformed));
    assert_eq!(
        rig.issue(map, &top, None, 2 << 20),
        Ok(Action::Exchange { bytes: 2 << 20 })
    );
    assert_eq!(rig.vm.usage().gpu_bytes, 0);
    let full = Ok(Action::Answer(status::NO_MEMORY));
    assert_eq!(rig.memory(13, class::SYSTEM_MEMORY, 2 << 20, 2 << 20), full);
    assert_eq!(rig.vm.usage().pinned_bytes, (2 << 20) + 8192);
    // A device takes its memory along.
    assert_eq!(rig.free(DEVICE), Ok(Action::Forward));
    assert_eq!(
        rig.vm.usage(),
        Usage {
            objects: 1,
            ..Usage::default()
        }
    );
}

#[test]
fn foreign_clients_are_refused_and_counted() {
    let mut rig = Rig::new(Limits::default());
    assert_eq!(
        rig.alloc([OTHER, OTHER, 1, class::DEVICE], Some(vec![0; 56]), 0),
        Err(Refusal::Foreign)
    );
    for at in [4, 8] {
        let mut params = vec![0; 56];
        write_u32(&mut params, at, OTHER);
        let refused = rig.alloc([CLIENT, CLIENT, 9, class::DEVICE], Some(params), 0);
        assert_eq!(refused, Err(Refusal::Foreign), "{at}");
    }
    // A client of the guest's choice.
    assert_eq!(
        rig.alloc([0, 0, OTHER, class::ROOT], None, 0),
        Err(Refusal::Foreign)
    );
    assert_eq!(rig.vm.refusals().foreign, 4);
}

#[test]
fn closed_control_file_takes_its_clients_along() {
    let mut rig = Rig::new(Limits::default());
    let freed = rig.vm.close(rig.control);
    assert!(freed.contains(&Freed::Gone {
        client: CLIENT,
        handle: CLIENT,
        class: class::ROOT
    }));
    assert_eq!(rig.vm.usage(), Usage::default());
    assert_eq!(rig.free(DEVICE), Err(Refusal::NoFile));
}

#[test]
fn ranges_are_whole_pages_on_a_file_of_unified_memory() {
    let mut rig = Rig::new(Limits {
        ranges: 1,
        ..Limits::default()
    });
    let memory = rig.vm.open(Node::Uvm, 1).unwrap();
    let refused = |result: Result<Checked, Refusal>| result.map(|checked| checked.action);
    assert_eq!(
        refused(rig.vm.range(rig.control, 4096, 4096, 4096)),
        Err(Refusal::Malformed)
    );
    assert_eq!(
        refused(rig.vm.range(memory, 100, 4096, 4096)),
        Err(Refusal::Malformed)
    );
    assert_eq!(
        refused(rig.vm.range(memory, 4096, 8192, 4096)),
        Err(Refusal::Malformed)
    );
    let good = rig.vm.range(memory, 4096, 8192, 8192).unwrap();
    assert_eq!(
        good.action,
        Action::Range {
            base: 4096,
            bytes: 8192
        }
    );
    let space = Space {
        gpu: [1; 16],
        control: rig.control,
        client: CLIENT,
        device: DEVICE,
    };
    rig.vm.add_range(memory, 4096, 8192, &space, 77);
    assert_eq!(
        refused(rig.vm.range(memory, 1 << 20, 8192, 8192)),
        Err(Refusal::Limit)
    );
    // A hint about it is answered; its release frees the memory.
    let mut top = vec![0; 24];
    write_u64(&mut top, 0, 4096);
    let mut ask = |request| {
        let parts = Parts {
            buffers: vec![top.clone()],
            links: Vec::new(),
        };
        let call = Call {
            file: memory,
            request,
            parts: &parts,
            ram_bytes: 0,
        };
        let checked = rig.vm.check(&call).unwrap();
        let forwarded = checked.action == Action::Forward;
        (checked.action, rig.vm.settle(&call, &checked, forwarded).1)
    };
    assert_eq!(ask(43).0, Action::Answer(status::OK));
    let freed = Freed::Object {
        client: CLIENT,
        handle: 77,
    };
    assert_eq!(ask(uvm::FREE), (Action::Forward, vec![freed]));
    assert_eq!(ask(43).0, Action::Forward);
}
