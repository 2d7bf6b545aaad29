//! Tasks of VMs: what a guest declares of its next kernels before it launches them (CASE's probe).
//!
//! - In: a VM's requests, with memory, threads of a block and blocks.
//! - Out: the task's number, or why it cannot begin now, or ever. Nothing waits here: a guest
//!   repeats its request.
//! - Invariants: a task takes warps, and by the rule `exact` blocks, of its VM's GPU, and memory of
//!   the VM's own. A VM has at most [`TASKS_MAX`]. They end with the VM. All of it is under the
//!   lock of places.

use std::collections::BTreeMap;

use turnstile_abi::ErrorCode;
use turnstile_accounting::TenantId;
use turnstile_gpu::Refusal;
use turnstile_policies::place::{self, Job, Placed};

use super::{Fleet, Member, Places, Rule};
use crate::common::PlaceTasks;

/// Tasks that a VM may have begun at a time.
pub(crate) const TASKS_MAX: usize = 64;

/// Tasks of one VM.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    begun: BTreeMap<u32, Task>,
    next: u32,
}

#[derive(Debug)]
struct Task {
    memory_bytes: u64,
    placed: Placed,
}

fn refusal(code: ErrorCode, detail: String) -> Refusal {
    Refusal { code, detail }
}

impl Tasks {
    /// Begins a task on a GPU, for a VM with so much memory.
    fn begin(
        &mut self,
        gpus: &mut place::Fleet,
        rule: Rule,
        gpu: usize,
        memory_max_bytes: u64,
        job: Job,
    ) -> Result<u32, Refusal> {
        let bytes = job.memory_bytes;
        if bytes > memory_max_bytes {
            let text = format!("the task needs {bytes} bytes; the VM has {memory_max_bytes}");
            return Err(refusal(ErrorCode::OutOfGpuMemory, text));
        }
        if self.begun.len() >= TASKS_MAX {
            let text = format!("{TASKS_MAX} tasks are begun; end one first");
            return Err(refusal(ErrorCode::HostLimit, text));
        }
        let taken: u64 = self.begun.values().map(|task| task.memory_bytes).sum();
        let free = memory_max_bytes.saturating_sub(taken);
        if bytes > free {
            let text = format!("the task needs {bytes} bytes; tasks left {free}");
            return Err(refusal(ErrorCode::NoRoomNow, text));
        }
        let never = |error: place::PlaceError| refusal(ErrorCode::BadArgument, error.to_string());
        let placed = gpus.place_task(rule, gpu, job).map_err(never)?;
        let text = || format!("tasks on the GPU left fewer than {} blocks", job.blocks);
        let placed = placed.ok_or_else(|| refusal(ErrorCode::NoRoomNow, text()))?;
        while self.begun.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        let memory_bytes = bytes;
        self.begun.insert(
            number,
            Task {
                memory_bytes,
                placed,
            },
        );
        Ok(number)
    }

    /// Ends a task; none if it is not begun.
    fn end(&mut self, gpus: &mut place::Fleet, number: u32) -> Option<()> {
        let task = self.begun.remove(&number)?;
        gpus.release(&task.placed);
        Some(())
    }

    /// Ends all tasks.
    pub(super) fn end_all(&mut self, gpus: &mut place::Fleet) {
        for task in std::mem::take(&mut self.begun).into_values() {
            gpus.release(&task.placed);
        }
    }
}

impl PlaceTasks for Fleet {
    fn begin(&self, tenant: TenantId, job: Job) -> Result<u32, Refusal> {
        let places = &mut *self.places();
        // Under the lock: a VM that leaves ends its tasks under it, after it is none of a host's.
        let memory = |member: &Member| {
            let state = member.host.lock();
            state.tenants.get(&tenant).map(|vm| vm.brought.memory_bytes)
        };
        let mut of_gpus = self.members.iter().map(memory).enumerate();
        let place = of_gpus.find_map(|(gpu, bytes)| Some((gpu, bytes?)));
        let (gpu, memory_bytes) = place.ok_or(ErrorCode::DeviceLost)?;
        let tasks = places.tasks.entry(tenant).or_default();
        tasks.begin(&mut places.gpus, self.rule, gpu, memory_bytes, job)
    }

    fn end(&self, tenant: TenantId, number: u32) -> Result<(), Refusal> {
        let places = &mut *self.places();
        let tasks = places.tasks.get_mut(&tenant);
        let ended = tasks.and_then(|tasks| tasks.end(&mut places.gpus, number));
        ended.ok_or_else(|| ErrorCode::NoSuchTask.into())
    }
}

/// Ends all tasks of a VM that leaves.
pub(super) fn end_all(places: &mut Places, tenant: TenantId) {
    let mut tasks = places.tasks.remove(&tenant).unwrap_or_default();
    tasks.end_all(&mut places.gpus);
}

#[cfg(test)]
mod tests {
    use turnstile_policies::place::GpuSize;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn job(memory_bytes: u64, blocks: u32) -> Job {
        Job {
            memory_bytes,
            blocks,
            threads: 64,
        }
    }

    /// A GPU that holds 64 blocks of 64 threads.
    fn gpus() -> place::Fleet {
        place::Fleet::new(&[GpuSize {
            sms: 2,
            blocks: 32,
            warps: 64,
            memory_bytes: 8 * GIB,
        }])
    }

    fn code<T: std::fmt::Debug>(result: Result<T, Refusal>) -> ErrorCode {
        result.unwrap_err().code
    }

    #[test]
    fn task_takes_blocks_of_its_gpu_until_it_ends_and_waits_only_behind_another() {
        let (mut gpus, mut one, mut other) = (gpus(), Tasks::default(), Tasks::default());
        // A VM is there; its own block keeps no task away.
        gpus.place(Rule::Exact, job(GIB, 1)).unwrap().unwrap();
        let mut begin =
            |tasks: &mut Tasks, blocks| tasks.begin(&mut gpus, Rule::Exact, 0, GIB, job(0, blocks));
        let whole = begin(&mut one, 1_000).unwrap();
        let refused = begin(&mut other, 1).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoRoomNow, "{refused}");
        assert!(one.end(&mut gpus, whole).is_some());
        assert!(one.end(&mut gpus, whole).is_none(), "it has ended");
        let half = other.begin(&mut gpus, Rule::Exact, 0, GIB, job(0, 32));
        half.unwrap();
        let own = one.begin(&mut gpus, Rule::Exact, 0, GIB, job(0, 31));
        own.unwrap();
        // The warps of three, of two each: the VM, and what is begun.
        assert_eq!(gpus.warps(), [2 + 64 + 62]);
        other.end_all(&mut gpus);
        one.end_all(&mut gpus);
        assert_eq!(gpus.warps(), [2]);
    }

    #[test]
    fn task_that_never_fits_is_refused_with_the_reason_and_tasks_are_bounded() {
        let (mut gpus, mut tasks) = (gpus(), Tasks::default());
        let mut begin = |job| tasks.begin(&mut gpus, Rule::Fewest, 0, GIB, job);
        let refused = begin(job(GIB + 1, 1)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::OutOfGpuMemory);
        assert!(
            refused.detail.contains("the VM has 1073741824"),
            "{refused}"
        );
        assert_eq!(code(begin(job(0, 0))), ErrorCode::BadArgument);
        begin(job(GIB / 2 + 1, 1)).unwrap();
        assert_eq!(code(begin(job(GIB / 2, 1))), ErrorCode::NoRoomNow);
        for _ in 1..TASKS_MAX {
            begin(job(0, u32::MAX)).unwrap();
        }
        assert_eq!(code(begin(job(0, 1))), ErrorCode::HostLimit);
        tasks.end_all(&mut gpus);
        assert_eq!(gpus.warps(), [0]);
    }
}
