//! The admin API as its callers see it: over its sockets, beside a daemon without processes.

mod accounts;
mod bench;
mod declared;
mod document;
mod http;
mod requests;
mod roles;
mod silence;
#[cfg(feature = "tls")]
mod tls;

use bench::Bench;
