//! Moves of memory as work of the copy engines. The mediator orders the moves; each direction has
//! one engine, which alternates between moves and copies of guests.
//!
//! Invariant: no engine executes a command of a tenant that has a chunk queued, moving or away. An
//! order is accepted only for a tenant that is suspended and on no engine. From then until its last
//! chunk is done, [`Core::is_away`] excludes the tenant from dispatch, as it does while a page is
//! absent.

use std::collections::VecDeque;
use std::sync::Arc;

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::Core;
use super::dispatch::{Load, State};
use crate::address_space::swap::Moving;
use crate::config::{COMPUTE, ENGINES};
use crate::execute::context::Context;
use crate::execute::work::{Class, Job, Progress, Start, Work};
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveError, MoveOrder, MoveReport};

/// Chunks that are moved in one batch: a guest's copy waits for at most one batch.
const BATCH: usize = 4;

/// A chunk that is to be moved.
#[derive(Debug)]
struct Queued {
    owner: TenantId,
    cause: TenantId,
    chunk: ChunkId,
    context: Arc<Context>,
}

/// Chunks that are queued to be moved, and the alternation with copies of guests.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    queues: [VecDeque<Queued>; 2],
    /// The engine of this direction moved last; a guest's copy is next.
    guests_turn: [bool; 2],
}

impl Moves {
    /// Removes the queued moves of a removed tenant.
    pub(crate) fn forget(&mut self, tenant: TenantId) {
        for queue in &mut self.queues {
            queue.retain(|queued| queued.owner != tenant);
        }
    }
}

/// The copy engine of a direction.
const fn engine(direction: Direction) -> usize {
    COMPUTE + 1 + direction as usize
}

const _: () = assert!(engine(Direction::In) < ENGINES);

/// Queues an order.
pub(crate) fn order(core: &mut Core, order: MoveOrder) -> Result<(), MoveError> {
    let MoveOrder {
        owner,
        cause,
        direction,
        chunks,
    } = order;
    if core.config.pool_bytes().is_none() {
        return Err(MoveError::Unsupported);
    }
    let quiet = core.is_quiet(owner);
    let tenant = core.tenants.get_mut(&owner);
    let tenant = tenant.ok_or(MoveError::NoSuchTenant(owner))?;
    if !quiet {
        return Err(MoveError::MayRun(owner));
    }
    tenant.moving += chunks.len();
    let context = &tenant.context;
    let queued = chunks.into_iter().map(|chunk| Queued {
        owner,
        cause,
        chunk,
        context: context.clone(),
    });
    core.moves.queues[direction as usize].extend(queued);
    Ok(())
}

/// Gives queued moves to free copy engines; `yielding`: only where it is not a guest's turn.
pub(crate) fn assign(core: &mut Core, now: Moment, yielding: bool, starts: &mut Vec<Start>) {
    for direction in [Direction::Out, Direction::In] {
        let index = engine(direction);
        if !matches!(core.engines[index].state, State::Idle) {
            continue;
        }
        if yielding && std::mem::take(&mut core.moves.guests_turn[direction as usize]) {
            continue;
        }
        let queue = &mut core.moves.queues[direction as usize];
        let Some(first) = queue.pop_front() else {
            continue;
        };
        core.moves.guests_turn[direction as usize] = true;
        let mut chunks = vec![first.chunk];
        let same = |next: &mut Queued| next.owner == first.owner && next.cause == first.cause;
        while chunks.len() < BATCH
            && let Some(next) = queue.pop_front_if(same)
        {
            chunks.push(next.chunk);
        }
        let moving = Moving::new(first.owner, first.cause, direction, chunks);
        let work = Arc::new(Work::Move(moving));
        let load = Load::for_mediator(
            first.cause,
            Job {
                work: work.clone(),
                progress: Progress::default(),
            },
        );
        // The move runs in the host's own channel: the next tenant has to load its context
        // again.
        core.engines[index].context = None;
        starts.push(Start {
            engine: index,
            starts_at: now,
            work,
            progress: Progress::default(),
            context: first.context,
            stop: load.stop.clone(),
        });
        let host = super::SLOTS as u32;
        core.registers.set_busy(index, host, first.cause);
        core.engines[index].state = State::Running {
            since: now,
            deadline: None,
            load,
        };
    }
}

/// Whether a guest's copy waits for an engine.
pub(crate) fn copies_wait(core: &Core) -> bool {
    let ready = &core.ready[Class::Copy as usize];
    ready.iter().any(|slot| !core.is_away(*slot))
}

/// Reports the result of an ended move for each chunk.
pub(crate) fn moved(core: &mut Core, moving: &Moving, took: Nanos) {
    let count = moving.chunks.len();
    if let Some(tenant) = core.tenants.get_mut(&moving.owner) {
        tenant.moving = tenant.moving.saturating_sub(count);
    }
    let Some(log) = &core.memory_log else { return };
    let each = Nanos(took.0 / count.max(1) as u64);
    for (chunk, outcome) in moving.outcomes() {
        log.push(MemoryEvent::Moved(MoveReport {
            owner: moving.owner,
            cause: moving.cause,
            direction: moving.direction,
            chunk,
            copied_bytes: outcome.unwrap_or(0),
            took: each,
            result: outcome.map(|_| ()),
        }));
    }
}
