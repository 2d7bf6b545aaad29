//! Results of the demo, and their table.

use serde::{Deserialize, Serialize};

/// A VM's guest at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestReport {
    /// A KVM guest; else a thread that stands in for one.
    pub(crate) kvm: bool,
    /// Correct results.
    pub(crate) verified: u64,
    /// Wrong results.
    pub(crate) failed: u64,
    /// Kernels launched.
    pub(crate) launches: u64,
    /// Doorbell writes that left the guest.
    pub(crate) doorbell_exits: u64,
    /// Doorbell writes in all.
    pub(crate) doorbells: u64,
    /// Reason of a failure, if there was one.
    pub(crate) error: Option<String>,
}

/// One VM's line.
#[derive(Clone, Debug, Serialize)]
// FIELDS: a line of results: one figure each.
pub(crate) struct VmLine {
    pub(crate) name: String,
    pub(crate) weight: u32,
    /// Length of its kernels; 0 where it launches none.
    pub(crate) kernel_us: u64,
    /// Time of copy engines charged in the window to a VM that copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copied_ns: Option<u64>,
    pub(crate) depth: u32,
    /// Compute time in the measured window, by the engine's own log.
    pub(crate) gpu_ns: u64,
    /// Compute time charged in it.
    pub(crate) charged_ns: u64,
    pub(crate) entitled_share_percent: f64,
    pub(crate) share_percent: f64,
    pub(crate) held_ns: u64,
    pub(crate) gate_moves: u64,
    /// Its memory, where that moves.
    #[serde(flatten)]
    pub(crate) memory: Option<MemoryLine>,
    #[serde(flatten)]
    pub(crate) guest: GuestReport,
}

impl VmLine {
    fn work(&self) -> String {
        match self.copied_ns {
            Some(_) => "copies".to_owned(),
            None => format!("{} us", self.kernel_us),
        }
    }
}

/// A VM's memory in the measured window.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemoryLine {
    /// Bytes copied to the host.
    pub(crate) swapped_out_bytes: u64,
    /// Bytes copied back.
    pub(crate) swapped_in_bytes: u64,
    /// Bytes on the card at the end.
    pub(crate) resident_bytes: u64,
    /// Bytes allocated at the end.
    pub(crate) allocated_bytes: u64,
    /// Bytes copied because of it.
    pub(crate) moved_bytes: u64,
    /// Time of copy engines charged to it.
    pub(crate) copy_ns: u64,
}

/// The whole demo.
#[derive(Clone, Debug, Serialize)]
// FIELDS: a report: one figure each.
pub(crate) struct DemoReport {
    /// Work of the VMs, if a scene was chosen.
    pub(crate) scene: Option<&'static str>,
    /// All guests ran under KVM.
    pub(crate) kvm: bool,
    /// Reason why not.
    pub(crate) kvm_missing: Option<String>,
    pub(crate) gpu: &'static str,
    pub(crate) policy: String,
    pub(crate) meter: &'static str,
    /// What the GPU cannot do on this host: then `gpu_ns` is what was charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lacks: Option<String>,
    /// Length of the measured window.
    pub(crate) window_ns: u64,
    pub(crate) vms: Vec<VmLine>,
    /// Largest difference between a VM's share of all VMs' compute time and its entitled share.
    pub(crate) max_share_error_points: f64,
    /// The largest one of any second in it, at any offset. There is none in less than a second, and
    /// none without an NVIDIA GPU.
    pub(crate) worst_second_points: Option<f64>,
    /// Largest difference of a VM's charged time from its time in the engine's log, in percent of
    /// the latter.
    pub(crate) max_charge_error_percent: f64,
    /// Part of the window in which the compute engine ran some VM.
    pub(crate) engine_busy_percent: f64,
    pub(crate) results_verified: u64,
    pub(crate) results_failed: u64,
    /// VM time + switching + idle + fault minus engines x wall time, since the daemon began.
    pub(crate) conservation_error_ns: i128,
    pub(crate) ledger_errors: u64,
}

impl DemoReport {
    /// Whether all results are correct, time is conserved, and no guest or ledger failed.
    pub(crate) fn sound(&self) -> bool {
        self.results_failed == 0
            && self.results_verified > 0
            && self.conservation_error_ns == 0
            && self.ledger_errors == 0
            && self.vms.iter().all(|vm| vm.guest.error.is_none())
    }

    /// A table, with a bar for each share and a mark where it should end.
    pub(crate) fn print(&self) {
        let guests = if self.kvm {
            "KVM guests"
        } else {
            "thread guests (no VMs)"
        };
        println!(
            "{} {guests} on one {} GPU, policy {}, meter {}, {:.1} s measured",
            self.vms.len(),
            self.gpu,
            self.policy,
            self.meter,
            self.window_ns as f64 / 1e9
        );
        if let Some(scene) = self.scene {
            println!("Scene: {scene}");
        }
        if let Some(reason) = &self.kvm_missing {
            println!("KVM is not used: {reason}");
        }
        if self.lacks.is_some() {
            println!("The log of this GPU is not known: received is what was charged");
        }
        println!();
        println!(
            "{:<12} {:>6} {:>9} {:>5} {:>9} {:>9}  {:<42} {:>8} {:>8} {:>9}",
            "VM",
            "weight",
            "kernel",
            "depth",
            "entitled",
            "received",
            "",
            "held",
            "launches",
            "verified"
        );
        for vm in &self.vms {
            println!(
                "{:<12} {:>6} {:>9} {:>5} {:>7.1} % {:>7.1} %  {:<42} {:>6.2} s {:>8} {:>9}",
                vm.name,
                vm.weight,
                vm.work(),
                vm.depth,
                vm.entitled_share_percent,
                vm.share_percent,
                bar(vm.share_percent, vm.entitled_share_percent),
                vm.held_ns as f64 / 1e9,
                vm.guest.launches,
                vm.guest.verified,
            );
            if let Some(memory) = &vm.memory {
                let mib = |bytes: u64| bytes >> 20;
                println!(
                    "             {} MiB allocated, {} of them on the card at the end; {} MiB swapped out, {} in",
                    mib(memory.allocated_bytes),
                    mib(memory.resident_bytes),
                    mib(memory.swapped_out_bytes),
                    mib(memory.swapped_in_bytes),
                );
            }
            if let Some(ns) = vm.copied_ns {
                println!(
                    "             copies took {:.2} s of copy engines",
                    ns as f64 / 1e9
                );
            }
            if let Some(error) = &vm.guest.error {
                println!("             {error}");
            }
        }
        println!();
        println!("{COLUMNS}");
        println!();
        println!(
            "largest share error   {:.2} points",
            self.max_share_error_points
        );
        if let Some(points) = self.worst_second_points {
            println!("  of any second       {points:.2} points");
        }
        if self.lacks.is_none() {
            println!(
                "largest charge error  {:.3} %",
                self.max_charge_error_percent
            );
        }
        println!("engine busy           {:.1} %", self.engine_busy_percent);
        println!(
            "results               {} verified, {} failed",
            self.results_verified, self.results_failed
        );
        println!("conservation error    {} ns", self.conservation_error_ns);
    }
}

/// Explanation of the table's columns.
const COLUMNS: &str = "\
kernel: length of a kernel; depth: kernels, or copies, that the guest keeps in flight
entitled: its weight, of the weights of all VMs with kernels; received: compute time that it got, of what all VMs got
bar: received, with | at entitled; held: time in which it was not permitted to run
launches: kernels since its load began; verified: results that the guest compared";

/// Forty cells for 100 %: filled as far as received, with a mark at what was entitled.
fn bar(received: f64, entitled: f64) -> String {
    let cell = |percent: f64| ((percent / 100.0 * 40.0).round() as usize).min(40);
    let mut cells: Vec<char> = (0..40)
        .map(|i| if i < cell(received) { '█' } else { '·' })
        .collect();
    cells.insert(cell(entitled), '|');
    cells.into_iter().collect()
}
