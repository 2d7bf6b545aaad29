//! The admin API beside a daemon with VMs as processes, and as the command serves it.

#[path = "../../../api/tests/api/bench.rs"]
mod bench;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../api/tests/api/http.rs"]
#[allow(dead_code, reason = "the API's own tests use the rest")]
mod http;
mod identity;
mod reload;
mod restart;
mod running;
