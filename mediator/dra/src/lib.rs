//! The DRA driver of Kubernetes: claims for shares of GPUs are tenants of the daemon.
//!
//! ```text
//! kubelet --gRPC, two sockets--> driver --admin API--> daemon
//!                                  |  \--writes--> CDI document of a claim -> container runtime
//!                                  +--HTTPS--> API server: claims read, one ResourceSlice written
//! ```
//!
//! - In: claims that the scheduler has allocated: GPU, share, memory; opaque configuration.
//! - Out: for each GPU of a claim a declared VM, or the settings of a program, with the share as
//!   its weight; the devices of the node, and their health.
//! - Invariants: preparing and unpreparing may be repeated. The driver keeps no state: tenants are
//!   found again by names that follow from the claim's uid. Text of a claim becomes part of a path
//!   or name after one check ([`claim::ClaimId::new`]).
//! - Bounds: 64 claims and 256 KiB of a request, 32 GPUs of a claim, 128 of a node; 4 watchers of
//!   health, each with one report.
//! - Threads: two serve sockets and the API server; calls of the daemon wait on others.
#![forbid(unsafe_code)]

pub mod cdi;
pub mod claim;
pub mod cluster;
pub mod config;
pub mod daemon;
pub mod domain;
pub mod driver;
pub mod grpc;
pub mod health;
pub mod names;
pub mod proto;
mod quantity;
pub mod slice;
