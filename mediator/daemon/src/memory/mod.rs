//! GPU memory beyond the card's size: which chunks are on it or at the host, which tenants run.
//!
//! ```text
//!   allocated, freed, moved (the GPU) ----+
//!   wants, used (the meter, each period) -+-> MemoryManager::step -> hold | release | move so many chunks
//!   quiet (the GPU) ----------------------+
//! ```
//!
//! The manager is pure and the same for every GPU: time is a parameter, it has no clock, lock,
//! thread or I/O. The GPU moves the bytes, into host memory. A tenant runs only with its whole set
//! on the card, as it is not known which memory it will touch. Which tenants run and where memory
//! is are therefore one decision.
//!
//! # Which tenants run
//! While the sets of all tenants that want the engine fit on the card together, the scheduling
//! policy alone decides. Only memory of tenants that do not want the engine is moved out. Otherwise
//! there are *turns* ([`turns`]). The tenant with the smallest virtual time leads. Others run
//! beside it if their sets fit and they are not too far ahead. All other tenants wait and are
//! charged nothing.
//!
//! # What moves
//! Memory of tenants that may run is brought first. Then, while those run, the next tenant's memory
//! is brought. It goes where there is room. Room is made at the expense of tenants that do not want
//! the engine, then of those furthest from their turn. Among both, tenants above their share
//! ([`Entitlement`]) come first, and each loses its coldest chunk. A chunk is not copied again
//! while the host still has its content, that is, if its owner has not run since.
//!
//! # Properties
//! - *Conservation*: resident + swapped + moving bytes of a tenant are what it allocated. What is
//!   resident fits on the card.
//! - *Running tenants stay*: a running tenant's chunks do not move. By construction: moves begin in
//!   `owner.rs` alone, and only for a tenant that is still.
//! - *Reserves*: no tenant's resident memory is taken below its `memory.min`.
//! - *Entitlements*: no tenant at or below its share loses a chunk while another, as far from
//!   running and above its share, has one to give.
//! - *No thrashing*: a turn lasts at least [`MemoryConfig::turn_factor`] times as long as its
//!   copies keep the engine waiting. It also lasts at least as long as the copies for the next turn
//!   (Share-a-GPU, eq. 1), by the measured rate.
//! - *No starvation*: a waiting tenant's clock stands still while the turns of others advance
//!   theirs. It leads next once its clock is the smallest.

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
