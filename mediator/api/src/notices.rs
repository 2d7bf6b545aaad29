//! Events that follow from the figures of a GPU: a cap reached, memory pressure, faults, a ledger
//! that lacks something. Pure.
//!
//! In: a copy of the state each second. Out: what began since the copy before. What goes on is
//! reported once, so a tenant causes at most one event of a kind in two seconds.

use std::collections::BTreeMap;

use turnstile_accounting::TenantId;
use turnstile_daemon::{HostSnapshot, TenantSnapshot};

/// Part of its cap from which a tenant has reached it: periods and seconds do not begin together.
const CAP_REACHED: f64 = 0.95;

/// Something that began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// The event's type.
    pub(super) kind: &'static str,
    /// The tenant; empty of the ledger.
    pub(super) vm: String,
    /// In words.
    pub(super) reason: String,
}

/// What is compared of a tenant.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    compute_ns: u64,
    moved_out_bytes: u64,
    faults: u64,
    /// What went on in the last second: cap, memory, faults.
    goes_on: [bool; 3],
}

/// The figures of the last copy.
#[derive(Debug, Default)]
pub(super) struct Notices {
    at_ns: u64,
    tenants: BTreeMap<TenantId, Figures>,
    refused: u64,
    lacks: bool,
}

impl Notices {
    /// What began between the last copy and this one. The first copy of a tenant begins nothing.
    pub(super) fn take(&mut self, now: &HostSnapshot) -> Vec<Notice> {
        let passed_ns = now.at.0.saturating_sub(self.at_ns);
        let mut begun = Vec::new();
        let mut next = BTreeMap::new();
        for tenant in &now.tenants {
            let before = self.tenants.get(&tenant.tenant).copied();
            let figures = figures(tenant, before, passed_ns, &mut begun);
            next.insert(tenant.tenant, figures);
        }
        let health = now.ledger.as_ref();
        let refused = health.map_or(0, |health| health.refused);
        let failing = health.is_some_and(|health| health.failing);
        let lacks = failing || refused > self.refused;
        if lacks && !self.lacks {
            let reason = if failing {
                "The ledger is not written: what this run is charged may be lacking"
            } else {
                "A period did not balance, and is a gap of its window"
            };
            begun.push(Notice {
                kind: "ledger_gap",
                vm: String::new(),
                reason: reason.to_owned(),
            });
        }
        (self.at_ns, self.tenants) = (now.at.0, next);
        (self.refused, self.lacks) = (refused, lacks);
        begun
    }
}

/// A tenant's figures now; what began goes to `begun`.
fn figures(
    tenant: &TenantSnapshot,
    before: Option<Figures>,
    passed_ns: u64,
    begun: &mut Vec<Notice>,
) -> Figures {
    let mut now = Figures {
        compute_ns: tenant.compute_ns.0,
        moved_out_bytes: tenant.memory.map_or(0, |memory| memory.swapped_out_bytes),
        faults: tenant.faults.values().sum(),
        goes_on: [false; 3],
    };
    let Some(before) = before else { return now };
    let used_ns = now.compute_ns.saturating_sub(before.compute_ns);
    let moved = now.moved_out_bytes.saturating_sub(before.moved_out_bytes);
    let faults = now.faults.saturating_sub(before.faults);
    let reached = tenant.cap.is_some_and(|cap| {
        let part = cap.quota_ns().0 as f64 / cap.period_ns().0 as f64;
        passed_ns > 0 && used_ns as f64 >= CAP_REACHED * part * passed_ns as f64
    });
    now.goes_on = [reached, moved > 0, faults > 0];
    let kinds = [
        ("cap_reached", "It uses all that its cap permits".to_owned()),
        (
            "memory_pressure",
            format!("{moved} bytes of its GPU memory went to the host"),
        ),
        ("vm_fault", format!("{faults} faults of its channels")),
    ];
    let rows = kinds
        .into_iter()
        .zip(now.goes_on.iter().zip(before.goes_on));
    for ((kind, reason), (goes_on, went_on)) in rows {
        if *goes_on && !went_on {
            let vm = tenant.name.clone();
            begun.push(Notice { kind, vm, reason });
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use turnstile_abi::ErrorCode;
    use turnstile_accounting::{Moment, Nanos};
    use turnstile_daemon::{Host, HostConfig, LedgerHealth, MemorySnapshot, TenantKind};
    use turnstile_policies::Cap;
    use turnstile_soft::{SoftConfig, SoftGpu};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tenant() -> TenantSnapshot {
        TenantSnapshot {
            tenant: TenantId(1),
            name: "a".into(),
            account: "gold".into(),
            kind: TenantKind::Vm,
            metadata: Arc::default(),
            weight: 100,
            cap: Cap::new(Nanos::from_ms(20), Nanos::from_ms(100)).ok(),
            latency_target: false,
            gang: false,
            admitted: true,
            compute_ns: Nanos::ZERO,
            copy_ns: Nanos::ZERO,
            copy_bytes: None,
            engine_ns: Nanos::ZERO,
            held_ns: Nanos::ZERO,
            entitled_ns: Nanos::ZERO,
            waited_ns: Nanos::ZERO,
            backlogged: false,
            doorbells_trapped: 0,
            gate_moves: 0,
            slices: 0,
            tally: Default::default(),
            latency: Default::default(),
            faults: BTreeMap::new(),
            memory_held_bytes: None,
            memory_limit_bytes: None,
            memory: Some(MemorySnapshot::default()),
        }
    }

    #[test]
    fn what_goes_on_is_reported_once_and_again_after_a_pause() {
        let gpu = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
        let mut snapshot = Host::new(gpu, HostConfig::default()).unwrap().snapshot();
        snapshot.tenants = vec![tenant()];
        let mut notices = Notices::default();
        let mut second = |of: &dyn Fn(&mut TenantSnapshot), ledger: Option<LedgerHealth>| {
            snapshot.at = Moment(snapshot.at.0 + SECOND);
            snapshot.ledger = ledger;
            of(&mut snapshot.tenants[0]);
            let begun = notices.take(&snapshot).into_iter();
            begun.map(|notice| notice.kind).collect::<Vec<_>>()
        };
        let idle = |_: &mut TenantSnapshot| {};
        let used = |ns: u64| move |tenant: &mut TenantSnapshot| tenant.compute_ns += Nanos(ns);
        let fails = Some(LedgerHealth {
            written: 0,
            failing: true,
            refused: 0,
            behind_ns: Nanos::ZERO,
            window_ns: Nanos::ZERO,
        });
        assert!(second(&used(SECOND), None).is_empty(), "the first copy");
        assert!(
            second(&used(SECOND / 100 * 18), None).is_empty(),
            "18 of 20 %"
        );
        assert_eq!(second(&used(SECOND / 5), None), ["cap_reached"]);
        assert!(second(&used(SECOND / 5), fails).contains(&"ledger_gap"));
        assert!(second(&idle, fails).is_empty());
        let all = |tenant: &mut TenantSnapshot| {
            tenant.compute_ns += Nanos(SECOND / 5);
            tenant.faults.insert(ErrorCode::DeviceLost, 3);
            tenant.memory.as_mut().unwrap().swapped_out_bytes += 1 << 20;
        };
        let kinds = second(&all, None);
        assert_eq!(kinds, ["cap_reached", "memory_pressure", "vm_fault"]);
        // Its cap is lifted: the same use reaches nothing.
        let lifted = |tenant: &mut TenantSnapshot| {
            tenant.cap = None;
            tenant.compute_ns += Nanos(SECOND);
        };
        assert!(second(&lifted, None).is_empty());
    }
}
