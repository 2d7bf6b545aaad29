//! The bench's arithmetic: what the loads' own time stamps say about who had the GPU, and what would have been fair.
//!
//! ```text
//!   spans, gaps (device time) -> clock -> executed, occupied -> buckets of 10 ms -> windows: shares, errors
//!   matrix -> cells -> weights, bursts -> entitlement (accounting's fluid server) -----^
//! ```
//!
//! Everything here is pure; the loads run in `turnstile_nvidia::load`, the `bench` subcommands start processes.
#![deny(unsafe_code)]

pub mod bursts;
pub mod cell;
pub mod entitlement;
pub mod load;
pub mod matrix;
pub mod pairs;
pub mod percentile;
pub mod readings;
pub mod recording;
pub mod spans;
pub mod suspend;
pub mod train;
pub mod windows;

/// Width of the buckets that a load reports, so that what lies between two moments is known to a fraction of it.
pub const FINE_NS: u64 = 1_000_000;

/// Width of a bucket. Shares of any stretch of time are sums of these.
pub const BUCKET_NS: u64 = 10_000_000;

/// Buckets that a load reports, in one of those.
// CAST: ten.
const FINE_PER_BUCKET: usize = (BUCKET_NS / FINE_NS) as usize;

/// Buckets in a second.
pub const BUCKETS_PER_SECOND: usize = 100;

/// A load whose host is not at it for so long tells of it: a fifth of a point of a second that nobody can give it.
pub const HOST_PAUSE_NS: u64 = 2_000_000;
