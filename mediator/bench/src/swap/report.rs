//! Figures of `bench swap`, and their table.
//!
//! In go times and rates of each size, and bytes that others can allocate; out comes a table, or
//! JSON. The bench fills and prints them.

use serde::Serialize;

/// One direction of one move.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Way {
    /// From the first call after the suspension to the last before the resumption.
    pub(super) took_ns: u64,
    /// Part of it in the tenant: unmapping, or mapping; both overlap the copies, but for the first
    /// or the last.
    pub(super) tenant_ns: u64,
    /// Part of it on the link, as the mover reports it.
    pub(super) link_ns: u64,
    pub(super) bytes_per_second: u64,
    pub(super) percent_of_link: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Vendor {
    pub(super) out_ns: u64,
    pub(super) in_ns: u64,
    /// How many times as long as ours, suspension and resumption included.
    pub(super) out_times: f64,
    pub(super) in_times: f64,
    pub(super) wrong_words: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Size {
    pub(super) gib: u64,
    pub(super) extents: usize,
    pub(super) suspend_ns: u64,
    pub(super) resume_ns: u64,
    pub(super) out: Way,
    pub(super) r#in: Way,
    /// Counts of the kernel per millisecond: running, suspended, and after the memory has come
    /// back.
    pub(super) counts: [f64; 3],
    pub(super) wrong_words: u64,
    pub(super) vendor: Option<Vendor>,
    pub(super) vendor_missing: Option<String>,
}

/// What other processes can allocate: with the tenant resident, swapped out, and swapped out while
/// one of its handles is kept.
#[derive(Debug, Serialize)]
pub(super) struct Returned {
    pub(super) tenant_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) swapped_bytes: u64,
    pub(super) leaked_handle_bytes: u64,
    pub(super) leaked_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) driver: &'static str,
    pub(super) link_out_bytes_per_second: u64,
    pub(super) link_in_bytes_per_second: u64,
    pub(super) pinning_bytes_per_second: u64,
    pub(super) sizes: Vec<Size>,
    pub(super) returned: Returned,
}

pub(super) fn print(report: &Report) {
    let gb = |rate: u64| rate as f64 / 1e9;
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "driver {}; link {:.1} GB/s out, {:.1} GB/s in; pinning {:.1} GB/s",
        report.driver,
        gb(report.link_out_bytes_per_second),
        gb(report.link_in_bytes_per_second),
        gb(report.pinning_bytes_per_second)
    );
    println!(
        "{:>4} {:>26} {:>26} {:>9} {:>9} {:>6} {:>24}",
        "GiB", "out", "in", "suspend", "resume", "wrong", "vendor's checkpoint"
    );
    for size in &report.sizes {
        let way = |way: &Way| {
            format!(
                "{:.1} ms {:.1} GB/s {:.1} %",
                ms(way.took_ns),
                gb(way.bytes_per_second),
                way.percent_of_link
            )
        };
        let vendor = size.vendor.as_ref().map_or_else(
            || size.vendor_missing.clone().unwrap_or_default(),
            |vendor| {
                format!(
                    "{:.0} ms ({:.1}x) {:.0} ms ({:.1}x)",
                    ms(vendor.out_ns),
                    vendor.out_times,
                    ms(vendor.in_ns),
                    vendor.in_times
                )
            },
        );
        println!(
            "{:>4} {:>26} {:>26} {:>6.2} ms {:>6.2} ms {:>6} {vendor:>24}",
            size.gib,
            way(&size.out),
            way(&size.r#in),
            ms(size.suspend_ns),
            ms(size.resume_ns),
            size.wrong_words,
        );
    }
    let returned = &report.returned;
    println!(
        "others can allocate {} MiB with a tenant of {} MiB there, {} MiB with it swapped out, {} MiB if a handle of {} MiB is kept",
        returned.resident_bytes >> 20,
        returned.tenant_bytes >> 20,
        returned.swapped_bytes >> 20,
        returned.leaked_bytes >> 20,
        returned.leaked_handle_bytes >> 20
    );
}
