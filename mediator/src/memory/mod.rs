//! GPU memory beyond what the card has: whose chunks are on it, whose at the host, and who may run.
//!
//! ```text
//!   allocated, freed, moved (the GPU) ----+
//!   wants, used (the meter, each period) -+-> MemoryManager::step -> hold | release | move so many chunks
//!   quiet (the GPU) ----------------------+
//! ```
//!
//! The manager is pure and the same for every GPU: time is a parameter, it has no clock, lock, thread or I/O. The GPU moves
//! the bytes, into a [`pool`]. A tenant runs only with its whole set on the card, as nobody knows what it will touch; so
//! who runs and whose memory is where are one decision.
//!
//! # Who runs
//! As long as the sets of those who want the engine fit on the card together, the scheduling policy alone decides, and
//! memory of those who do not want it is what goes. Otherwise there are *turns* ([`turns`]): the one furthest behind leads,
//! others run beside him if their sets fit and they are not ahead, everybody else waits and is charged nothing.
//!
//! # What moves
//! Whoever may run comes first, then, while those run, whoever is due next: its memory is brought while others compute. It
//! goes where there is room, and room is made at the expense of those who do not want the engine, then of those whose turn
//! is furthest away; in both, of those first who have more than they are entitled to ([`Entitlement`]), and of anybody the
//! coldest chunk. What the host still has of a chunk, because its owner has not run since, is not copied again.
//!
//! # Properties
//! - *Conservation*: resident + swapped + moving bytes of a tenant are what it allocated; what is resident fits on the card.
//! - *Whoever runs stays*: a running tenant's chunks do not move. By construction: moves begin in `owner.rs` alone, and
//!   only of one that is still.
//! - *Reserves*: nobody's resident memory is taken below his `memory.min`.
//! - *Entitlements*: nobody at or below what he is entitled to loses a chunk while, of those as far from running, someone
//!   above has one to give.
//! - *No thrashing*: a turn is at least [`MemoryConfig::turn_factor`] times what its copies held the engine up, and at
//!   least what the copies for the next one take (Share-a-GPU, eq. 1), by the measured rate.
//! - *No starvation*: who waits is behind, gets nothing but turns that bring others ahead of him, and leads next once he
//!   is furthest behind.

mod entitlement;
mod keeper;
mod link;
mod manager;
mod owner;
#[cfg(test)]
mod tests;
mod turns;

pub use entitlement::{Entitlement, EntitlementError};
pub use keeper::{KeeperNews, MemoryKeeper};
pub use link::LinkRate;
pub use manager::{Action, MemoryConfig, MemoryManager, MemoryTotals};
pub use owner::{Bytes, Place, Run};
