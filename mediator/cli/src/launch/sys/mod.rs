//! The launcher's unsafe code: signals as a file, and senders of datagrams.
#![allow(unsafe_code)]

mod datagram;
mod mounts;
mod signals;

pub(super) use datagram::{receive, want_senders};
pub(super) use mounts::own_mounts;
pub(super) use signals::{Received, Signals};
