//! Two GPUs with a rule each, and a gang on both.

use super::*;
use crate::policy::HoldReason;
use turnstile_accounting::Reading;

const GANG: TenantId = TenantId(1);
const ROUNDS: u64 = 100;

/// A GPU with the gang and tenants that saturate it.
struct Gpu {
    rule: Owed,
    tenants: Vec<TenantId>,
    now: Moment,
    /// Whether the gang and the others have work.
    works: (bool, bool),
    /// Work of the gang only waits.
    waits: bool,
    /// Time in which the gang had the engine alone.
    alone: Vec<(u64, u64)>,
    /// Time in which the others were admitted.
    others_ns: u64,
}

impl Gpu {
    fn new(others: &[u32], gang: bool, begin_ns: u64) -> Self {
        let mut rule = Owed::new(&Tuning::default());
        let tenants: Vec<TenantId> = [1].iter().chain(others).map(|id| TenantId(*id)).collect();
        for id in &tenants {
            let name = id.to_string();
            let membership = Membership {
                account: AccountId(id.0),
                name: &name,
            };
            rule.add(*id, membership, TenantParams::default(), Moment(begin_ns))
                .unwrap();
        }
        rule.set_gang(GANG, gang).unwrap();
        let mut gpu = Self {
            rule,
            tenants,
            now: Moment(begin_ns),
            works: (true, true),
            waits: false,
            alone: Vec::new(),
            others_ns: 0,
        };
        gpu.look(&[]);
        gpu
    }

    fn has_work(&self, id: TenantId) -> bool {
        let (gang, others) = self.works;
        if id == GANG { gang } else { others }
    }

    fn look(&mut self, measured: &[Measured<'_>]) {
        let seen = |id: &TenantId| {
            let has_work = self.has_work(*id);
            Seen {
                tenant: *id,
                has_work,
                blocks: false,
                idle: if has_work { Nanos::ZERO } else { Seen::NEVER },
            }
        };
        let seen: Vec<Seen> = self.tenants.iter().map(seen).collect();
        self.rule.look(self.now, &seen, measured);
    }

    fn admits(&self, id: TenantId) -> bool {
        let orders = &self.rule.orders().tenants;
        orders
            .iter()
            .any(|order| order.tenant == id && order.hold.is_none())
    }

    /// Time passes up to the next poll: those that are admitted and have work share the engine.
    fn step(&mut self) {
        let next = self.rule.next_look();
        let length = next.since(self.now);
        let runs = |id: &TenantId| {
            let waits = self.waits && *id == GANG;
            !waits && self.has_work(*id) && self.admits(*id)
        };
        let running: Vec<TenantId> = self.tenants.iter().copied().filter(runs).collect();
        if running == [GANG] {
            self.alone.push((self.now.0, next.0));
        }
        if running.iter().any(|id| *id != GANG) {
            self.others_ns += length.0;
        }
        let readings: Vec<Reading> = running
            .iter()
            .map(|id| {
                let own = Nanos(length.0 / running.len() as u64);
                Reading {
                    tenant: *id,
                    worked: Some(own),
                    resident: Some(own),
                    waited: Nanos::ZERO,
                }
            })
            .collect();
        self.now = next;
        self.look(&[Measured {
            until: next,
            tenants: &readings,
        }]);
    }

    fn run_until(&mut self, end: u64) {
        while self.rule.next_look().0 <= end {
            self.step();
        }
    }
}

/// Time in both lists.
fn together(a: &[(u64, u64)], b: &[(u64, u64)]) -> u64 {
    let overlap = |x: &(u64, u64), y: &(u64, u64)| x.1.min(y.1).saturating_sub(x.0.max(y.0));
    a.iter()
        .flat_map(|x| b.iter().map(move |y| overlap(x, y)))
        .sum()
}

const LENGTH_NS: u64 = ROUNDS * gang::ROUND.0;

fn both(gang: bool, others: [&[u32]; 2]) -> [Gpu; 2] {
    // They begin at different times, and look at different times from then on.
    let mut gpus = [
        Gpu::new(others[0], gang, 1_000_000),
        Gpu::new(others[1], gang, 14_321_000),
    ];
    gpus.iter_mut().for_each(|gpu| gpu.run_until(LENGTH_NS));
    gpus
}

#[test]
fn turns_of_a_gang_coincide_on_its_gpus() {
    let [first, second] = both(true, [&[2], &[3]]);
    let part = together(&first.alone, &second.alone) as f64 / LENGTH_NS as f64;
    assert!((0.48..=0.51).contains(&part), "{part}");
    for gpu in [first, second] {
        let others = gpu.others_ns as f64 / LENGTH_NS as f64;
        assert!((0.48..=0.52).contains(&others), "{others}");
    }
    let [first, second] = both(false, [&[2], &[3]]);
    let part = together(&first.alone, &second.alone) as f64 / LENGTH_NS as f64;
    assert!(part < 0.3, "{part} without the gang");
}

/// Three tenants on one GPU and two on the other: the gang runs on both for the least part.
#[test]
fn a_gang_runs_for_its_least_part() {
    let [first, second] = both(true, [&[2, 4], &[3]]);
    let part = together(&first.alone, &second.alone) as f64 / LENGTH_NS as f64;
    assert!((0.31..=0.34).contains(&part), "{part}");
}

#[test]
fn a_gang_that_is_alone_is_never_held() {
    let mut gpu = Gpu::new(&[2], true, 0);
    gpu.works.1 = false;
    gpu.run_until(2_000_000_000);
    gpu.alone.clear();
    let from = gpu.now.0;
    gpu.run_until(4_000_000_000);
    let alone: u64 = gpu.alone.iter().map(|(from, to)| to - from).sum();
    assert_eq!(alone, gpu.now.0 - from);
}

/// Its first windows show that it never works: then it has none for a minute.
#[test]
fn a_gang_that_only_waits_costs_others_little() {
    let mut gpu = Gpu::new(&[2], true, 0);
    gpu.waits = true;
    gpu.run_until(40_000_000_000);
    let part = gpu.others_ns as f64 / gpu.now.0 as f64;
    assert!(part > 0.99, "{part}");
}

#[test]
fn others_run_in_the_windows_of_a_gang_without_work() {
    let mut gpu = Gpu::new(&[2], true, 0);
    gpu.run_until(1_000_000_000);
    gpu.works.0 = false;
    gpu.run_until(1_100_000_000);
    let (from, others_ns) = (gpu.now.0, gpu.others_ns);
    gpu.run_until(3_000_000_000);
    assert_eq!(gpu.others_ns - others_ns, gpu.now.0 - from);
    let orders = &gpu.rule.orders().tenants;
    assert!(
        orders
            .iter()
            .all(|order| order.hold != Some(HoldReason::Turn))
    );
}
