//! The engines of a GPU, and totals over them.

use turnstile_accounting::EngineId;
use turnstile_accounting::ledger::TenantTotals;
use turnstile_gpu::Gpu;
use turnstile_mediation::COMPUTE;

/// Compute and copy totals out of per-engine totals.
pub(crate) fn split(engines: &[(EngineId, TenantTotals)]) -> (TenantTotals, TenantTotals) {
    let (mut compute, mut copy) = (TenantTotals::default(), TenantTotals::default());
    for (engine, totals) in engines {
        let sum = if *engine == COMPUTE {
            &mut compute
        } else {
            &mut copy
        };
        sum.used_ns += totals.used_ns;
        sum.begun += totals.begun;
    }
    (compute, copy)
}

/// The engines of a GPU, by index.
pub(crate) fn engines(gpu: &dyn Gpu) -> impl Iterator<Item = EngineId> + use<> {
    let capability = gpu.capabilities();
    (0..capability.compute_engines + capability.copy_engines).map(EngineId)
}
