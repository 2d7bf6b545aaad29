//! The figures of one run of a cell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use turnstile_accounting::gps::GpsError;

use super::entitlement::{entitlement, lossless};
use super::load::LoadReport;
use super::matrix::{Cell, Length, Pattern, Tenant};
use super::percentile::Percentiles;
use super::spans::{Span, coarser, within};
use super::windows::{Worst, is_unpaused, worst_of};
use super::{BUCKET_NS, BUCKETS_PER_SECOND, FINE_NS, FINE_PER_BUCKET};

/// A tenant's figures in the daemon's ledger, over a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Compute time charged.
    pub compute_ns: u64,
    /// Resident time by the engine's own log.
    pub engine_ns: u64,
    /// Time in which the tenant was held.
    pub held_ns: u64,
    /// Copy time charged.
    #[serde(default)]
    pub copy_ns: u64,
}

/// Number of a daemon's warnings that are kept with a run.
pub const WARNINGS_MAX: usize = 20;

/// What a scheduler reports about a run; empty for the driver's own scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulerReport {
    /// The window of the charges, on the GPU's clock.
    pub window: Option<Span>,
    /// Charges, one for each tenant of the cell in its order, where they are known.
    pub charges: Vec<Option<Charge>>,
    /// Processor time of the daemon in the run, of one core.
    pub cpu_percent: Option<f64>,
    /// Part of it that suspending and resuming took.
    pub gate_cpu_percent: Option<f64>,
    /// Counters of its GPU, at the beginning and at the end of the window.
    pub figures: BTreeMap<String, [u64; 2]>,
    /// Warnings that it logged, at most [`WARNINGS_MAX`].
    pub warnings: Vec<String>,
}

/// One tenant's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// FIELDS: a line of results: one figure each.
pub struct TenantLine {
    /// What it does.
    pub load: String,
    /// Its weight.
    pub weight: u32,
    /// Entitled part of what all executed, after the skipped time: see [`super::entitlement`].
    pub entitled_percent: f64,
    /// Part of what all executed, after the skipped time.
    pub share_percent: f64,
    /// Executed time in each 10 ms of the worst sliding window and of the second before it; empty
    /// if there is no such window.
    #[serde(default)]
    pub executed_at_worst_ns: Vec<u64>,
    /// Executed time, in percent of wall-clock time.
    pub executed_percent: f64,
    /// The same with its own pauses between kernels.
    pub occupied_percent: f64,
    /// Completed kernels times their nominal length, in percent of wall-clock time; none for an
    /// endless kernel.
    pub work_percent: Option<f64>,
    /// Completed kernels per second of the whole run.
    pub kernels_per_second: f64,
    /// From a launch to the return of the wait for it.
    pub latency: Percentiles,
    /// Engine time per kernel.
    pub kernel_length: Percentiles,
    /// Interruptions in the middle of a kernel, per second.
    pub gaps_per_second: f64,
    /// Its figures in the daemon's ledger.
    #[serde(flatten)]
    pub charge: Option<Charge>,
    /// Executed time in the window of the charge, by the load's own timestamps.
    pub truth_ns: Option<u64>,
    /// The same with pauses.
    pub truth_occupied_ns: Option<u64>,
    /// The same with the processing of launches.
    pub truth_worked_ns: Option<u64>,
    /// Time of its copies in the window of the charge, by the load's own stamps.
    #[serde(default)]
    pub truth_copied_ns: Option<u64>,
    /// Charged minus own copy time, in percent of own copy time.
    #[serde(default)]
    pub charge_error_copied_percent: Option<f64>,
    /// Charged minus worked time, in percent of worked time.
    pub charge_error_worked_percent: Option<f64>,
    /// Charged minus executed time, in percent of executed time.
    pub charge_error_percent: Option<f64>,
    /// Charged minus occupied time, in percent of occupied time.
    pub charge_error_occupied_percent: Option<f64>,
    /// Error bound of its clock.
    pub clock_error_ns: u64,
    /// Wall clock minus GPU clock.
    pub clock_offset_ns: i64,
    /// Pauses of its host, on the wall clock: see [`LoadReport::host_pauses`].
    #[serde(default)]
    pub host_pauses: Vec<Span>,
    /// Time for which its thread waited for a processor.
    #[serde(default)]
    pub host_waited_ns: Option<u64>,
}

/// One run of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// FIELDS: a line of results: one figure each.
pub struct CellLine {
    /// Loads.
    pub loads: String,
    /// Weights; the native driver does not know them.
    pub weights: String,
    /// Name of the scheduler.
    pub scheduler: String,
    /// Its tenants.
    pub tenants: Vec<TenantLine>,
    /// Largest share error of any window of 1 s that begins after the skipped time, on a grid of 10
    /// ms. Received and entitled shares are parts of what all tenants executed in the window.
    pub worst_sliding: Option<Worst>,
    /// As `worst_sliding`, of whole seconds only.
    pub worst_aligned: Option<Worst>,
    /// As `worst_sliding`, of windows without a pause of any load's host in them or in the second
    /// before; none if there is no such window.
    #[serde(default)]
    pub worst_sliding_unpaused: Option<Worst>,
    /// As `worst_sliding`, from occupied time.
    pub worst_sliding_occupied: Option<Worst>,
    /// As `worst_aligned`, from occupied time.
    pub worst_aligned_occupied: Option<Worst>,
    /// As `worst_sliding`, from the time in which the engine worked: executed time and the
    /// processing of launches.
    pub worst_sliding_worked: Option<Worst>,
    /// As `worst_aligned`, from the same.
    pub worst_aligned_worked: Option<Worst>,
    /// Executed time of all tenants after the skipped time, in percent of wall-clock time.
    pub useful_percent: f64,
    /// Only where some tenants are idle at times: executed time of the busy tenants, in percent of
    /// wall-clock time, over the buckets in which the others want nothing and execute nothing.
    pub busy_while_others_idle_percent: Option<f64>,
    /// Processor time of the daemon, of one core.
    pub daemon_cpu_percent: Option<f64>,
    /// Part of it that suspending and resuming took.
    #[serde(default)]
    pub gate_cpu_percent: Option<f64>,
    /// Counters of the daemon's GPU, at the beginning and at the end of the run.
    #[serde(default)]
    pub figures: BTreeMap<String, [u64; 2]>,
    /// Warnings that the daemon logged.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Reason why a run has no line.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The number of load reports differs from the number of tenants.
    #[error("{0} loads reported for {1} tenants")]
    Reports(usize, usize),
    /// A load lacks records of its kernels or gaps.
    #[error("Load {0} has {1} kernels or gaps without a record")]
    Unrecorded(String, u64),
    /// The entitlement cannot be computed.
    #[error("There is no entitlement")]
    Entitlement(#[from] GpsError),
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    100.0 * part as f64 / whole as f64
}

fn error_percent(charged: Option<u64>, truth: Option<u64>) -> Option<f64> {
    let (charged, truth) = (charged?, truth.filter(|&truth| truth > 0)?);
    Some(100.0 * (charged as f64 - truth as f64) / truth as f64)
}

/// One of the three figures of a cell: what each tenant received, and what it was entitled to of
/// what all received; `[tenant][bucket]` in buckets of [`BUCKET_NS`].
#[derive(Debug)]
struct Side {
    received: Vec<Vec<u64>>,
    due: Vec<Vec<u64>>,
}

impl Side {
    /// From buckets of [`FINE_NS`].
    fn new(tenants: &[Tenant], received: &[&[u64]], executed: &[&[u64]]) -> Result<Self, GpsError> {
        let due = entitlement(tenants, FINE_NS, received, executed)?;
        Ok(Self {
            received: received
                .iter()
                .map(|fine| coarser(fine, FINE_PER_BUCKET))
                .collect(),
            due: due
                .iter()
                .map(|fine| coarser(fine, FINE_PER_BUCKET))
                .collect(),
        })
    }

    fn sliding(&self, from: usize) -> Option<Worst> {
        self.worst(from, 1, |_| true)
    }

    /// As `sliding`, over the windows for which `counts` holds, given their first bucket.
    fn sliding_of(&self, from: usize, counts: impl Fn(usize) -> bool) -> Option<Worst> {
        self.worst(from, 1, counts)
    }

    fn aligned(&self, from: usize) -> Option<Worst> {
        self.worst(from, BUCKETS_PER_SECOND, |_| true)
    }

    /// The worst second that begins at bucket `from` or later.
    fn worst(&self, from: usize, step: usize, counts: impl Fn(usize) -> bool) -> Option<Worst> {
        let second = BUCKETS_PER_SECOND;
        worst_of(&self.received, &self.due, second, from, step, counts)
    }
}

/// Puts together the reports of the loads of `cell` and of the scheduler. Figures leave out the
/// first `skip_ns` of the run, unless the run is no longer.
///
/// # Errors
/// If a report is missing or incomplete.
pub fn line(
    cell: &Cell,
    scheduler: &str,
    loads: &[LoadReport],
    report: &SchedulerReport,
    skip_ns: u64,
) -> Result<CellLine, CellError> {
    if loads.len() != cell.tenants.len() {
        return Err(CellError::Reports(loads.len(), cell.tenants.len()));
    }
    for (load, tenant) in loads.iter().zip(&cell.tenants) {
        let unrecorded = load.unrecorded + load.gaps_unrecorded;
        if unrecorded > 0 {
            return Err(CellError::Unrecorded(tenant.load(), unrecorded));
        }
    }
    let count = loads.iter().map(|load| load.executed_ns.len()).min();
    let count = count.unwrap_or(0) / FINE_PER_BUCKET;
    let fine = |of: fn(&LoadReport) -> &[u64]| -> Vec<&[u64]> {
        loads
            .iter()
            .map(|load| &of(load)[..count * FINE_PER_BUCKET])
            .collect()
    };
    let fine_executed = fine(|load| &load.executed_ns);
    let side = |received: &[&[u64]]| Side::new(&cell.tenants, received, &fine_executed);
    let executed = side(&fine_executed)?;
    let occupied = side(&fine(|load| &load.occupied_ns))?;
    let worked = side(&fine(|load| &load.worked_ns))?;
    // CAST: a run lasts minutes.
    let skipped = (skip_ns / BUCKET_NS) as usize;
    let from = if count > skipped { skipped } else { 0 };
    let wall_ns = BUCKET_NS * (count - from) as u64;
    let is_unpaused = |bucket: usize| {
        loads
            .iter()
            .all(|load| is_unpaused(&load.host_pauses, load.start_ns + BUCKET_NS * bucket as u64))
    };
    let worst_sliding = executed.sliding(from);
    let at_worst = worst_sliding.map_or(0..0, |worst| {
        worst.bucket.saturating_sub(BUCKETS_PER_SECOND)..worst.bucket + BUCKETS_PER_SECOND
    });
    let sum = |buckets: &[u64]| buckets[from..].iter().sum::<u64>();
    let all_executed: u64 = executed.received.iter().map(|buckets| sum(buckets)).sum();
    let all_due: u64 = executed.due.iter().map(|buckets| sum(buckets)).sum();
    let tenants = loads
        .iter()
        .zip(&cell.tenants)
        .enumerate()
        .map(|(index, (load, tenant))| {
            let charge = report.charges.get(index).copied().flatten();
            let window = report
                .window
                .map(|window| window.on_a_clock_ahead(load.clock_offset_ns));
            let truth = |buckets: &[u64]| within(buckets, load.start_ns, FINE_NS, window?);
            let truth_ns = truth(&load.executed_ns);
            let truth_occupied_ns = truth(&load.occupied_ns);
            let truth_worked_ns = truth(&load.worked_ns);
            let truth_copied_ns = truth(&load.copied_ns).filter(|_| !load.copied_ns.is_empty());
            let compute_ns = charge.map(|charge| charge.compute_ns);
            let copy_ns = charge.map(|charge| charge.copy_ns);
            let seconds = (BUCKET_NS * count as u64) as f64 / 1e9;
            let work_percent = match tenant.kernel {
                Length::Us(us) => Some(load.kernels as f64 * us as f64 / seconds / 1e4),
                Length::Endless => None,
            };
            TenantLine {
                load: tenant.load(),
                weight: tenant.weight,
                entitled_percent: percent(sum(&executed.due[index]), all_due),
                share_percent: percent(sum(&executed.received[index]), all_executed),
                executed_at_worst_ns: executed.received[index][at_worst.clone()].to_vec(),
                executed_percent: percent(sum(&executed.received[index]), wall_ns),
                occupied_percent: percent(sum(&occupied.received[index]), wall_ns),
                work_percent,
                kernels_per_second: load.kernels as f64 / seconds,
                latency: load.latency,
                kernel_length: load.kernel_length,
                gaps_per_second: load.gaps as f64 / seconds,
                charge,
                truth_ns,
                truth_occupied_ns,
                truth_worked_ns,
                truth_copied_ns,
                charge_error_copied_percent: error_percent(copy_ns, truth_copied_ns),
                charge_error_worked_percent: error_percent(compute_ns, truth_worked_ns),
                charge_error_percent: error_percent(compute_ns, truth_ns),
                charge_error_occupied_percent: error_percent(compute_ns, truth_occupied_ns),
                clock_error_ns: load.clock_error_ns,
                clock_offset_ns: load.clock_offset_ns,
                host_pauses: load.host_pauses.clone(),
                host_waited_ns: load.host_waited_ns,
            }
        })
        .collect();
    Ok(CellLine {
        loads: cell.loads(),
        weights: cell.weights(),
        scheduler: scheduler.to_owned(),
        tenants,
        worst_sliding,
        worst_aligned: executed.aligned(from),
        worst_sliding_unpaused: executed.sliding_of(from, is_unpaused),
        worst_sliding_occupied: occupied.sliding(from),
        worst_aligned_occupied: occupied.aligned(from),
        worst_sliding_worked: worked.sliding(from),
        worst_aligned_worked: worked.aligned(from),
        useful_percent: percent(all_executed, wall_ns),
        busy_while_others_idle_percent: alone(
            cell,
            &executed.received,
            &lossless(&cell.tenants, count)?,
            from,
        ),
        daemon_cpu_percent: report.cpu_percent,
        gate_cpu_percent: report.gate_cpu_percent,
        figures: report.figures.clone(),
        warnings: report.warnings.clone(),
    })
}

/// Executed time of the busy tenants, in percent of wall-clock time, over the buckets in which no
/// other tenant wants or executes anything. `wanted` is what a GPU without losses serves: a bucket
/// in which the real GPU served nothing may still have demand.
fn alone(cell: &Cell, executed: &[Vec<u64>], wanted: &[Vec<u64>], from: usize) -> Option<f64> {
    let modest: Vec<usize> = (0..cell.tenants.len())
        .filter(|&index| matches!(cell.tenants[index].pattern, Pattern::Bursty | Pattern::Idle))
        .collect();
    let count = executed.first().map_or(0, Vec::len);
    if modest.is_empty() || modest.len() == cell.tenants.len() {
        return None;
    }
    let quiet = |bucket: &usize| {
        modest
            .iter()
            .all(|&index| executed[index][*bucket] == 0 && wanted[index][*bucket] == 0)
    };
    let buckets: Vec<usize> = (from..count).filter(quiet).collect();
    let received: u64 = buckets
        .iter()
        .flat_map(|&bucket| executed.iter().map(move |tenant| tenant[bucket]))
        .sum();
    (!buckets.is_empty()).then(|| percent(received, BUCKET_NS * buckets.len() as u64))
}

#[cfg(test)]
mod tests;
