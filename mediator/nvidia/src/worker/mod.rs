//! One process per VM that executes the VM's commands on the GPU.
//!
//! ```text
//!  daemon                       worker process                                  GPU
//!  Worker --- orders, answers --> serve -------- memory, modules -----------> context
//!    |  \---- shared page ------> engine: ring -> checked command -> executor -> a stream each
//!    |                              ^    \<- marks (words that streams write) <---/
//!  VMM, guest --- doorbell pages ---+     \-> state blocks, fences, interrupts
//! ```
//!
//! The worker has access to one VM only: its memory, doorbells and vectors, and a GPU context of
//! its own. The hardware's page tables keep VMs apart. A kernel can write to all host memory that
//! its process has mapped for the GPU, including the vendor library's rings. The worker is
//! therefore trusted as little as the VM. The daemon keeps the tables: ownership, amounts, limits.
//! It checks everything that the worker reports, waits for answers with a deadline, and never reads
//! a ring.
//!
//! A context ends as a whole: a kernel that faults, or that has to be ended, ends the VM's process.
//! The daemon then reports the open channels as faulted. At the VM's next request it starts another
//! process with the same modules and, by the descriptors that it keeps, the same memory. The
//! channels stay ended.

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
pub(crate) use serve::now as wall_clock;
pub use serve::{WorkerError, run};
