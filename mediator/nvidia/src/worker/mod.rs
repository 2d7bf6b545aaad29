//! One process per VM that executes the VM's commands on the GPU.
//!
//! ```text
//!  daemon                         worker process                                GPU
//!  Worker --- orders, answers --> serve ----------- memory, modules --------> context
//!    |  \---- board (words) ----> engine: ring -> checked command -> executor -> one stream per channel
//!    |                               ^    \<- marks (words that streams write) <---/
//!  VMM, guest --- doorbell pages ----+     \-> state blocks, fences, interrupts
//! ```
//!
//! The worker sees nothing but its VM: that VM's memory, doorbells and vectors, and a context of its own, so that the
//! hardware's page tables keep VMs apart. A kernel can write wherever its process has host memory mapped for the GPU, the
//! vendor library's rings included: the worker is as trusted as the VM is. The daemon keeps the tables (who owns what, how
//! much, limits), takes what the worker says as an allegation, waits for it with a deadline, and never reads a ring.
//!
//! A context dies as a whole: a kernel that faults or must be ended takes the VM's process with it. The daemon then reports
//! what is left to report and starts another at the VM's next request, with the same memory (by the descriptors that it
//! keeps) and modules; the channels stay ended.

mod board;
mod config;
mod confine;
mod cuda;
mod engine;
mod executor;
mod handle;
mod process;
mod protocol;
mod serve;
#[cfg(test)]
mod tests;

pub use config::WorkerConfig;
pub use handle::Worker;
pub use process::Facts;
pub use serve::{WorkerError, run};
