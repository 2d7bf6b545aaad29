//! The subcommands.

pub(crate) mod account;
mod admin;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod gpu;
pub(crate) mod guest;
mod ledger;
pub(crate) mod manual;
pub(crate) mod nvidia;
pub(crate) mod nvidia_worker;
pub(crate) mod options;
mod report;
pub(crate) mod run;
pub(crate) mod sealed_memory;
pub(crate) mod serve;
mod service;
pub(crate) mod soft_gpu;
pub(crate) mod top;
pub(crate) mod ui;
pub(crate) mod usage;
pub(crate) mod vfio_user;
pub(crate) mod vm;
pub(crate) mod vmm;
