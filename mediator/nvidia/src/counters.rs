//! The performance counters where the GPU's own processor puts them each 100 ms: pages of the host's memory, mapped.
//!
//! ```text
//!   stamp | block of counters | stamp | ...
//! ```
//!
//! They are there for whoever makes an object of the counter collection unit (SOURCE: `kernel_ccu.c`: `_kccuAllocMemory`); the management library
//! copies them into its samples. Reading them takes a few nanoseconds, where the library takes 0.25 ms of processor time for a sample: it maps the
//! pages anew each time (measured).
//!
//! An update takes 50 to 70 us. Its first stamp names the moment in which the counters were *collected*; when all is written, both stamps are of *that*
//! moment, 2 to 100 ms later (measured). So whoever looks while they are written learns how old they are.

use turnstile_accounting::Moment;

use super::rm::{RmClient, RmError};
use super::sys::SharedPages;
use super::sys::abi;

/// The block begins behind the first stamp.
const BLOCK_AT: usize = 8;

/// The pages of one GPU.
#[derive(Debug)]
pub(super) struct CounterPages {
    pages: SharedPages,
    /// Where the second stamp is.
    tail_at: usize,
}

impl CounterPages {
    /// Maps those of the client's GPU.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn map(client: &RmClient) -> Result<Self, RmError> {
        let gpu = client.subdevice();
        let counters = client.alloc_plain("count", gpu, abi::CLASS_COUNTERS)?;
        let mut params = abi::SubscribeParams::default();
        let command = abi::COUNTERS_SUBSCRIBE;
        client.control("subscribe to counters", counters, command, &mut params)?;
        let pages = client.map(gpu, counters, params.buffer_bytes)?;
        let tail_at = BLOCK_AT + params.block_bytes as usize;
        Ok(Self { pages, tail_at })
    }

    fn word_at(&self, at: usize) -> u64 {
        // What is not there is zero, and no counter.
        self.pages.read(at).map_or(0, u64::from_le_bytes)
    }

    /// Both stamps.
    pub(super) fn stamps(&self) -> Stamps {
        let tail = self.word_at(self.tail_at);
        Stamps {
            head: self.word_at(0),
            tail,
        }
    }

    /// The words of 8 bytes of the block that are at `places`, of one update, and the moment in which it was whole; `None` while the next is
    /// written.
    pub(super) fn latched<const N: usize>(&self, places: [usize; N]) -> Option<(Moment, [u64; N])> {
        let before = self.stamps();
        let words = places.map(|at| self.word_at(at));
        let after = self.stamps();
        (before == after && before.is_whole()).then_some((Moment(before.head), words))
    }
}

/// The stamps on either side of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) head: u64,
    pub(super) tail: u64,
}

impl Stamps {
    const fn is_whole(self) -> bool {
        self.head == self.tail
    }
}

/// An update that is looked at again and again until it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    before: u64,
    /// Another first stamp that was seen since.
    first: Option<u64>,
}

impl Update {
    /// The next after that stamp.
    pub(super) const fn after(before: u64) -> Self {
        Self {
            before,
            first: None,
        }
    }

    /// These are the stamps now. When the counters were collected, and when all of them was written, as soon as they are; of the former, nothing if
    /// that was not seen.
    pub(super) fn saw(&mut self, stamps: Stamps) -> Option<(Option<Moment>, Moment)> {
        if stamps.head == self.before {
            return None;
        }
        if stamps.is_whole() {
            let latched = self.first.filter(|first| *first < stamps.head);
            return Some((latched.map(Moment), Moment(stamps.head)));
        }
        self.first.get_or_insert(stamps.head);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For whoever adds a driver version, or another GPU: what updates show is printed, beside the GPU's clock.
    #[test]
    fn what_updates_of_a_gpu_show() {
        use crate::{clock::GpuClock, version};
        use std::time::{Duration, Instant};
        if std::env::var("TURNSTILE_COUNTERS").is_err() {
            println!("SKIPPED: TURNSTILE_COUNTERS is not set (it needs an NVIDIA GPU, and root)");
            return;
        }
        let client = RmClient::open(0).unwrap();
        let pages = CounterPages::map(&client).unwrap();
        let clock = GpuClock::start(&client, &version::detect().unwrap()).unwrap();
        let begin = Instant::now();
        let mut before = pages.stamps();
        while begin.elapsed() < Duration::from_secs(2) {
            let now = pages.stamps();
            if now != before {
                println!(
                    "{} us: head {} (+{}), tail {} (+{})",
                    clock.now().0 / 1_000,
                    now.head / 1_000,
                    now.head.wrapping_sub(before.head) / 1_000,
                    now.tail / 1_000,
                    now.tail.wrapping_sub(before.tail) / 1_000,
                );
                before = now;
            }
        }
    }

    fn update(stamps: &[(u64, u64)]) -> Option<(Option<Moment>, Moment)> {
        let mut update = Update::after(100);
        let mut saw = stamps.iter().map(|(head, tail)| {
            update.saw(Stamps {
                head: *head,
                tail: *tail,
            })
        });
        saw.find_map(|saw| saw)
    }

    #[test]
    fn the_first_stamp_of_an_update_says_when_the_counters_were_latched() {
        let seen = Some((Some(Moment(170)), Moment(200)));
        assert_eq!(
            update(&[(100, 100), (170, 100), (170, 100), (200, 200)]),
            seen
        );
        assert_eq!(
            update(&[(170, 100), (170, 200), (200, 200)]),
            seen,
            "the second stamp first"
        );
        assert_eq!(
            update(&[(100, 100), (200, 200)]),
            Some((None, Moment(200))),
            "not seen"
        );
        assert_eq!(
            update(&[(200, 100), (200, 200)]),
            Some((None, Moment(200))),
            "too late"
        );
        assert_eq!(update(&[(100, 100), (170, 100)]), None);
    }
}
