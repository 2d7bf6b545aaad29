//! The subcommands.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod nvidia;
pub(crate) mod nvidia_worker;
mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod vmm;
