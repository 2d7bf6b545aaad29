//! A software GPU of which a thread has ended.

use std::time::{Duration, Instant};

use turnstile_accounting::record::{Body, GapCause};
use turnstile_accounting::store::{Selection, SqliteStore, Store};

use super::Bench;
use super::http::{PATIENCE, get};

fn until(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn software_gpu_that_falls_silent_is_not_ready_until_it_was_taken_back_and_leaves_a_gap() {
    let mut bench = Bench::new();
    let ready = || get(&bench.socket(), "/readyz");
    until(|| bench.periods() > 0 && ready().status == 200);
    bench.soft().break_engine();
    until(|| ready().status == 503);
    let reply = ready();
    assert!(reply.body.contains("gpu-compute has ended"), "{reply:?}");
    assert_eq!(get(&bench.socket(), "/healthz").status, 200);
    until(|| ready().status == 200);
    let events = get(&bench.socket(), "/v1/events").body;
    assert!(events.contains("gpu_silent") && events.contains("gpu_back"));
    bench.stop();
    let (mut gap_ns, cause) = (0, GapCause::Silent);
    let mut store = SqliteStore::read(&bench.path("ledger")).unwrap();
    let mut visit = |_: &_, entry: turnstile_accounting::record::Entry| {
        if entry.body == (Body::Gap { cause }) {
            gap_ns += entry.stretch.length_ns.0;
        }
        Ok(true)
    };
    store.query(&Selection::default(), &mut visit).unwrap();
    // It is taken back after a second.
    assert!((900_000_000..60_000_000_000).contains(&gap_ns), "{gap_ns}");
}
