//! The bench's arithmetic: from the loads' own timestamps to the GPU time of each tenant, and to
//! its fair share.
//!
//! ```text
//!   spans, gaps (device time) -> clock -> executed, occupied -> buckets of 10 ms -> windows: shares, errors
//!   matrix -> cells -> weights, bursts -> entitlement (accounting's fluid server) -----^
//! ```
//!
//! Everything here is pure but for [`columns`] and [`output`], which print. The loads run in
//! `turnstile_nvidia::load`; `turnstile-bench` starts processes.
#![deny(unsafe_code)]

pub mod bursts;
pub mod cell;
pub mod columns;
pub mod entitlement;
pub mod load;
pub mod matrix;
pub mod output;
pub mod pairs;
pub mod percentile;
pub mod readings;
pub mod recording;
pub mod spans;
pub mod suspend;
pub mod train;
pub mod windows;

/// Width of the buckets that a load reports. A sum between two moments is known to a fraction of
/// it.
pub const FINE_NS: u64 = 1_000_000;

/// Width of a bucket. Shares of any stretch of time are sums of these.
pub(crate) const BUCKET_NS: u64 = 10_000_000;

/// Buckets of [`FINE_NS`] in one of [`BUCKET_NS`].
// CAST: ten.
const FINE_PER_BUCKET: usize = (BUCKET_NS / FINE_NS) as usize;

/// Buckets in a second.
pub const BUCKETS_PER_SECOND: usize = 100;

/// Shortest pause of its host that a load reports: 0.2 percentage points of a second, which no
/// scheduler can give it.
pub const HOST_PAUSE_NS: u64 = 2_000_000;
