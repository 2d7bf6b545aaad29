//! Four GPUs of two sizes and 24 tenants under one daemon; one GPU is removed.
//!
//! In: a seed. Out: the worst share error of each GPU against the fluid ideal, and the 99th
//! percentile of the waits (submission to end) on the GPUs that stay. It is compared with a run
//! without the removal; where a tenant moves to a GPU, with a run in which it is there all along.
//!
//! Production code: placement, mediation, policies, meters, the VMM's gates, the software GPU.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_accounting::{Moment, Nanos};
use turnstile_figures::percentile::Percentiles;
use turnstile_policies::place::{Fleet, GpuSize, Job, RULES};

use super::share::errors_points;
use crate::daemon_loop::fleet::{Member, Ran, run_fleet};
use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::world::{Participant, Setup};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Tenants.
pub const TENANTS: usize = 24;
/// Length of a run.
pub const END: Moment = Moment(6_000_000_000);
/// When the GPU is removed.
pub const REMOVED_AT: Moment = Moment(2_000_000_000);
/// The GPU that is removed: one of the smaller.
pub const REMOVED: usize = 1;
/// The largest share error that is promised, in percentage points.
pub const BOUND_POINTS: f64 = 1.0;
/// The largest growth of the 99th percentile that is promised, in percent.
pub const BOUND_PERCENT: f64 = 1.0;

/// From the removal until a moved tenant is admitted. SOURCE: the reference VMM connects again
/// after 50 ms.
const MOVE_NS: Nanos = Nanos::from_ms(50);
/// Time of the control thread for the end of a tenant. An assumption: the context's end included.
pub const LEAVE_NS: Nanos = Nanos::from_us(200);
/// From the removal on, the time until all of the moved tenants have their shares.
const SETTLED: Moment = Moment(2_500_000_000);

const fn size(gib: u64, sms: u32) -> GpuSize {
    GpuSize {
        sms,
        blocks: 32,
        warps: 64,
        memory_bytes: gib << 30,
    }
}

/// Two GPUs of 24 GiB and two of 48 GiB, which execute twice as fast.
const GPUS: [GpuSize; 4] = [size(24, 72), size(24, 72), size(48, 144), size(48, 144)];

/// What becomes of the tenants of the GPU that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// There is no removal.
    Stay,
    /// They end.
    End,
    /// They move where there is room, and end elsewhere.
    Move,
    /// There is no removal, and those that would move are on the other GPU from the beginning.
    Settled,
}

/// A tenant, before it has a GPU.
#[derive(Clone, Copy, Debug)]
struct Wish {
    memory_bytes: u64,
    weight: u32,
    kernel_us: u64,
    depth: u32,
    /// Bursts instead of kernels without a pause.
    bursts: bool,
}

impl Wish {
    fn job(&self) -> Job {
        Job {
            memory_bytes: self.memory_bytes,
            blocks: 1,
            threads: 32,
        }
    }

    /// The tenant on a GPU of this size.
    fn on(&self, seed: u64, size: &GpuSize) -> Participant {
        let us = self.kernel_us * u64::from(GPUS[0].sms) / u64::from(size.sms);
        let kernels = Lengths::between_us(us, us + us / 10);
        let load = match self.bursts {
            true => Load::bursty(seed, Nanos::from_ms(40), 4, kernels, 4, END),
            false => Load::saturating(kernels, self.depth),
        };
        Participant::new(self.weight, load)
    }
}

fn wishes(seed: u64) -> Vec<Wish> {
    let mut random = SmallRng::seed_from_u64(seed);
    let wish = |place: usize| Wish {
        memory_bytes: random.random_range(2..=4) << 30,
        weight: 100 * random.random_range(1..=3),
        kernel_us: random.random_range(200..=2_000),
        depth: random.random_range(1..=2),
        bursts: place % 6 == 5,
    };
    (0..TENANTS).map(wish).collect()
}

/// The figures of one seed.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The worst share error of a second after the first, of each GPU, in points.
    pub share_points: Vec<f64>,
    /// Growth of the 99th percentile of the waits against the run without a removal, in percent:
    /// of each GPU that stays and takes no tenant.
    pub p99_percent: Vec<f64>,
    /// The same of each GPU that takes tenants, against the run in which they are there all along.
    pub taken_p99_percent: Vec<f64>,
    /// Tenants that moved.
    pub moved: usize,
}

/// One run.
fn ran(seed: u64, fate: Fate, leave_ns: Nanos) -> Result<(Vec<Member>, Vec<Ran>, usize), Failure> {
    let wishes = wishes(seed);
    let mut gpus = Fleet::new(&GPUS);
    let rule = RULES[0].rule;
    let failed = |error: turnstile_policies::place::PlaceError| Failure(error.to_string());
    let mut members: Vec<Member> = (0..GPUS.len())
        .map(|_| Member {
            setup: Setup::new(seed, END),
            participants: Vec::new(),
            removed: false,
        })
        .collect();
    let mut placed = Vec::new();
    for (tenant, wish) in wishes.iter().enumerate() {
        let one = gpus.place(rule, wish.job()).map_err(failed)?;
        let one = one.ok_or_else(|| Failure(format!("Tenant {tenant} has no place")))?;
        let seed = seed ^ tenant as u64;
        members[one.gpu]
            .participants
            .push(wish.on(seed, &GPUS[one.gpu]));
        placed.push(one);
    }
    let mut moved = 0;
    if fate != Fate::Stay {
        gpus.close(REMOVED, true);
        let leave: Vec<usize> = (0..TENANTS).filter(|t| placed[*t].gpu == REMOVED).collect();
        leave
            .iter()
            .for_each(|tenant| gpus.release(&placed[*tenant]));
        let moves = matches!(fate, Fate::Move | Fate::Settled);
        // Bursts would be late by the time of the move.
        let movable = |tenant: &&usize| moves && !wishes[**tenant].bursts;
        for tenant in leave.iter().filter(movable) {
            let wish = &wishes[*tenant];
            // The smaller GPU takes none: its tenants see the removal alone.
            gpus.close(0, true);
            if let Some(one) = gpus.place(rule, wish.job()).map_err(failed)? {
                let seed = seed ^ *tenant as u64;
                let mut participant = wish.on(seed, &GPUS[one.gpu]);
                if fate == Fate::Move {
                    participant.joins = REMOVED_AT + MOVE_NS;
                }
                members[one.gpu].participants.push(participant);
                moved += 1;
            }
        }
    }
    if matches!(fate, Fate::End | Fate::Move) {
        members[REMOVED].removed = true;
        members[REMOVED].setup.end = REMOVED_AT;
    }
    let ran = run_fleet(&members, leave_ns)?;
    Ok((members, ran, moved))
}

/// The 99th percentile of the waits on a GPU after the removal.
fn p99_ns(ran: &Ran) -> f64 {
    let waits = ran.waits.iter().flatten();
    let after = waits.filter(|(at, _)| *at >= SETTLED);
    Percentiles::of(after.map(|(_, wait)| wait.0).collect()).p99_ns as f64
}

/// The figures of a seed, with the tenants' fate. The control thread takes `leave_ns` for the end
/// of a tenant.
///
/// # Errors
/// A law was broken.
pub fn figures(seed: u64, fate: Fate, leave_ns: Nanos) -> Result<Figures, Failure> {
    let (before, without, _) = ran(seed, Fate::Stay, leave_ns)?;
    let settled = match fate {
        Fate::Move => ran(seed, Fate::Settled, leave_ns)?.1,
        _ => Vec::new(),
    };
    let (members, with, moved) = ran(seed, fate, leave_ns)?;
    let share = |(member, ran): (&Member, &Ran)| {
        let errors = errors_points(&ran.outcome, &member.participants, member.setup.window_ns);
        errors[1..].iter().copied().fold(0.0, f64::max)
    };
    let growth = |ran: &Ran, of: &Ran| 100.0 * (p99_ns(ran) / p99_ns(of) - 1.0);
    let (mut p99_percent, mut taken_p99_percent) = (Vec::new(), Vec::new());
    for gpu in (0..GPUS.len()).filter(|gpu| *gpu != REMOVED) {
        if members[gpu].participants.len() > before[gpu].participants.len() {
            taken_p99_percent.push(growth(&with[gpu], &settled[gpu]));
        } else {
            p99_percent.push(growth(&with[gpu], &without[gpu]));
        }
    }
    Ok(Figures {
        share_points: members.iter().zip(&with).map(share).collect(),
        p99_percent,
        taken_p99_percent,
        moved,
    })
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for (fate, name) in [
        (Fate::Stay, "no removal"),
        (Fate::End, "tenants end"),
        (Fate::Move, "tenants move"),
    ] {
        let all = over_seeds(seeds, |seed| figures(seed, fate, LEAVE_NS))?;
        let worst = |of: &[f64]| of.iter().copied().fold(0.0, |a: f64, b| a.max(b.abs()));
        let over = |what: &str, unit, of: &dyn Fn(&Figures) -> f64| {
            Quantity::over(
                format!("{name}: {what}"),
                unit,
                all.iter().map(of).collect(),
            )
        };
        let share = over("share error of the worst second and GPU", "points", &|of| {
            worst(&of.share_points)
        });
        quantities.push(share.between(0.0, BOUND_POINTS));
        if fate != Fate::Stay {
            let what = "p99 wait on GPUs that take no tenant, worst change";
            let p99 = over(what, "%", &|of| worst(&of.p99_percent));
            quantities.push(p99.between(0.0, BOUND_PERCENT));
        }
        if fate == Fate::Move {
            let what = "p99 wait on GPUs that take tenants, worst change";
            let p99 = over(what, "%", &|of| worst(&of.taken_p99_percent));
            quantities.push(p99.because("of a few hundred waits: lengths of kernels are random"));
            quantities.push(over("tenants that moved", "", &|of| of.moved as f64));
        }
    }
    Ok(Report {
        title: "Four GPUs of two sizes, 24 tenants, one GPU removed after 2 of 6 s".to_owned(),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities,
        notes: vec![
            "The GPUs share the control thread, which takes 10 us for a kick and 200 us for the end of a tenant.".to_owned(),
            "A GPU that takes tenants is compared with a run in which they are there from the beginning, another with the run without a removal.".to_owned(),
        ],
        ..Report::default()
    })
}
