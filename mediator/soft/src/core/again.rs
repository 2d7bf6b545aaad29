//! A core that begins anew after a thread has ended or does not stop its command.
//!
//! In: stops that were requested. Out: since when a command has to end, and a core without tenants.
//! Called by the driver in real time.

use turnstile_accounting::Moment;

use super::Core;
use super::dispatch::Engine;
use crate::config::ENGINES;

/// Begins anew, without tenants; the numbers of its records go on. Returns what was before.
pub(crate) fn replace(core: &mut Core, now: Moment) -> Core {
    let now = core.tick(now);
    stop_all(core);
    let mut new = Core {
        registers: core.registers.clone(),
        changes: core.changes.clone(),
        memory_log: core.memory_log.clone(),
        board: core.board.clone(),
        ..Core::new(core.config, now)
    };
    std::mem::swap(&mut new.log, &mut core.log);
    for event in new.log.restart(now) {
        new.board.iter().for_each(|board| board.switched(&event));
    }
    new.settle(now);
    new.changed();
    std::mem::replace(core, new)
}

/// Requests a stop of all work on engines.
pub(crate) fn stop_all(core: &mut Core) {
    for load in core.engines.iter().filter_map(Engine::load) {
        load.stop.end();
    }
}

/// Since when each engine's command is known to have to end, as it was stopped.
pub(crate) fn stopped_since(core: &mut Core, now: Moment) -> [Option<Moment>; ENGINES] {
    let now = core.tick(now);
    std::array::from_fn(|index| {
        let stop = &core.engines[index].load()?.stop;
        let since = || *stop.known_since.get_or_init(|| now);
        stop.is_ended().then(since)
    })
}
