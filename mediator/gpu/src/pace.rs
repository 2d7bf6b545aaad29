//! Intervals for polling doorbells behind open gates, and words for which channels wait.

use std::time::Duration;

use turnstile_accounting::Nanos;

/// Interval between two polls, by the time without an event. The last one applies to all longer
/// times: a doorbell behind an open gate is seen within it.
const PAUSES: [(Nanos, Duration); 3] = [
    (Nanos(2_000_000), Duration::from_micros(20)),
    (Nanos(20_000_000), Duration::from_micros(50)),
    (Nanos(u64::MAX), Duration::from_micros(200)),
];
/// Time after an event in which a watcher polls without a pause.
const SPIN: Nanos = Nanos(20_000);

/// Pause before the next poll after `quiet` without an event. None means to poll at once.
pub fn pause(quiet: Nanos) -> Option<Duration> {
    if quiet < SPIN {
        return None;
    }
    let pause = PAUSES.iter().find(|(bound, _)| quiet < *bound);
    Some(pause.map_or(PAUSES[2].1, |(_, pause)| *pause))
}
