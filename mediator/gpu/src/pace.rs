//! How often doorbells behind open gates, and words that channels wait for, are looked at.

use std::time::Duration;

use turnstile_accounting::Nanos;

/// How long a watcher pauses between two looks, by how long nothing has happened. The last holds
/// for ever after: a doorbell behind an open gate is seen within it.
const PAUSES: [(Nanos, Duration); 3] = [
    (Nanos(2_000_000), Duration::from_micros(20)),
    (Nanos(20_000_000), Duration::from_micros(50)),
    (Nanos(u64::MAX), Duration::from_micros(200)),
];
/// How long it looks without a pause after something happened.
const SPIN: Nanos = Nanos(20_000);

/// What to do before the next look, when nothing has happened for `quiet`: None is to look at once.
pub fn pause(quiet: Nanos) -> Option<Duration> {
    if quiet < SPIN {
        return None;
    }
    let pause = PAUSES.iter().find(|(bound, _)| quiet < *bound);
    Some(pause.map_or(PAUSES[2].1, |(_, pause)| *pause))
}
