//! Replays what the daemon read of an H100, and compares the charges with the loads' time stamps.
//!
//! Each file is 2 s of a recording by `turnstile bench share --gpu nvidia --seconds 16 --skip 10
//! --record FOLDER` on an H100 80GB HBM3 with driver 580.159.04, 28 November 2026. The edges of the
//! model come from other runs. Lines:
//!
//! ```text
//! active|saved SEQ AT_NS PID TENANT SLICE_NS HELD_SINCE_NS     a record of the log
//! busy AT_NS NS                                                a look, and the counter since the
//! last read TENANT WORKS COPIES BESIDE                              a reading of the engine's
//! status worked TENANT FROM_NS NS...                                  the truth, in steps of 10 ms
//! ```

use std::collections::BTreeMap;
use std::str::{FromStr, SplitWhitespace};

use turnstile_accounting::meter::{Case, WorkedMeter};
use turnstile_accounting::{Moment, Nanos, TenantId, Window};
use turnstile_gpu::COMPUTE;

use super::context_switches::{ContextSwitches, Owner};
use super::log_watch::LogWatch;
use crate::events::{Change, SwitchRecord};
use crate::models::Edges;

const RECORDINGS: [(&str, &str); 5] = [
    (
        "full queues",
        include_str!("recordings/h100-200us-deep+2ms-deep-1-1.txt"),
    ),
    (
        "full queues, 1:3",
        include_str!("recordings/h100-2ms-deep+200us-deep-1-3.txt"),
    ),
    (
        "launch and wait",
        include_str!("recordings/h100-200us+2ms-1-1.txt"),
    ),
    (
        "kernels longer than a slice",
        include_str!("recordings/h100-50us+50ms-1-1.txt"),
    ),
    (
        "four tenants",
        include_str!("recordings/h100-50us+200us+2ms+50ms-1-1-1-1.txt"),
    ),
];

const STEP_NS: u64 = 10_000_000;

/// A tenant's worked time by its time stamps, from a moment on.
struct Truth {
    from: u64,
    steps: Vec<u64>,
}

impl Truth {
    fn end(&self) -> u64 {
        self.from + STEP_NS * self.steps.len() as u64
    }

    /// Worked time up to a moment; within a step it is spread evenly.
    fn until(&self, at: Moment) -> f64 {
        let passed = at.0.saturating_sub(self.from);
        let whole = (passed / STEP_NS) as usize;
        let sum: u64 = self.steps.iter().take(whole).sum();
        let part = self.steps.get(whole).copied().unwrap_or_default();
        sum as f64 + part as f64 * (passed % STEP_NS) as f64 / STEP_NS as f64
    }
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> T {
    let word = words.next().expect("a word");
    word.parse()
        .unwrap_or_else(|_| panic!("{word:?} is not what it has to be"))
}

fn record(change: Change, words: &mut SplitWhitespace<'_>) -> (SwitchRecord, Owner) {
    let (seq, at, pid) = (next(words), Moment(next(words)), next(words));
    let owner = match words.next().expect("a tenant") {
        "preemptor" => Owner::Preemptor,
        "unknown" => Owner::Unknown,
        tenant => Owner::Tenant {
            tenant: TenantId(tenant.parse().expect("a number")),
            slice: Nanos(next(words)),
            held: Some(Moment(next(words))).filter(|since| since.0 > 0),
        },
    };
    let record = SwitchRecord {
        seq,
        at,
        pid,
        context: pid,
        change,
    };
    (record, owner)
}

/// The largest difference of a tenant's charge from its worked time, in percent of the engine's
/// time.
fn worst_error_percent(recording: &str) -> f64 {
    let mut switches = ContextSwitches::new(Edges::H100);
    let mut meter = WorkedMeter::new(COMPUTE);
    let (mut polls, mut truths) = (Vec::new(), BTreeMap::new());
    for line in recording.lines() {
        let mut words = line.split_whitespace();
        let words = &mut words;
        match words.next() {
            Some("active") => {
                let (record, owner) = record(Change::Active, words);
                switches.take(record, owner);
            }
            Some("saved") => {
                let (record, owner) = record(Change::Saved, words);
                switches.take(record, owner);
            }
            Some("busy") => polls.push((Moment(next(words)), Nanos(next(words)))),
            Some("read") => {
                let tenant = TenantId(next(words));
                let works = next(words);
                let (copies, beside) = (next(words), next(words));
                meter.read(tenant, works, Case { copies, beside });
            }
            Some("worked") => {
                let (tenant, from) = (TenantId(next(words)), next(words));
                let steps = words.map(|word| word.parse().expect("a number")).collect();
                truths.insert(tenant, Truth { from, steps });
            }
            _ => {}
        }
    }
    switches.drain().for_each(|event| meter.switched(event));
    let (from, to) = truths
        .values()
        .next()
        .map(|t: &Truth| (t.from, t.end()))
        .expect("the truth");
    let mut charged: BTreeMap<TenantId, f64> = BTreeMap::new();
    let mut span: Option<(Moment, Moment)> = None;
    for pair in polls.windows(2) {
        let ((begin, _), (end, busy)) = (pair[0], pair[1]);
        let case = Case {
            copies: false,
            beside: true,
        };
        let window = Window::starting(begin, end.since(begin));
        let worked = meter.close(window, Some(busy), case);
        if begin.0 < from || end.0 > to {
            continue;
        }
        span = Some((span.map_or(begin, |(first, _)| first), end));
        for used in &worked.usage.engines[0].tenants {
            *charged.entry(used.tenant).or_default() += used.used_ns.0 as f64;
        }
    }
    let (begin, end) = span.expect("a window");
    let errors = truths.iter().map(|(tenant, truth)| {
        let charged = charged.get(tenant).copied().unwrap_or_default();
        let worked = truth.until(end) - truth.until(begin);
        (charged - worked).abs() / end.since(begin).0 as f64 * 100.0
    });
    errors.fold(0.0, f64::max)
}

/// The polls of a recording: when, the tenant on the engine, and whether the log had a record.
fn polls(recording: &str) -> Vec<(Moment, Option<TenantId>, bool)> {
    let mut polls: Vec<(Moment, Option<TenantId>, bool)> = Vec::new();
    for line in recording.lines() {
        let mut words = line.split_whitespace();
        let words = &mut words;
        match (words.next(), polls.last_mut()) {
            (Some("busy"), _) => polls.push((Moment(next(words)), None, false)),
            (Some("read"), Some((_, on, _))) => *on = Some(TenantId(next(words))),
            (Some("active" | "saved"), Some((_, _, logged))) => *logged = true,
            _ => {}
        }
    }
    polls
}

/// The log of each recording is complete. One that was cut off is silent a second later.
#[test]
fn log_that_stops_while_tenants_take_turns_is_silent_and_known_until_then() {
    for (name, recording) in RECORDINGS {
        let polls = polls(recording);
        let mut watch = LogWatch::default();
        for (at, on, logged) in &polls {
            watch.take(*at, *on, *logged);
            assert_eq!(watch.silence(), None, "{name}");
            let known = watch.known_until().unwrap_or(*at);
            assert!(at.since(known) < Nanos::from_ms(200), "{name}");
        }
        let cut = polls[0].0 + Nanos::from_ms(500);
        let mut watch = LogWatch::default();
        let mut rest = polls.iter();
        let found = rest.find(|(at, on, logged)| {
            watch.take(*at, *on, *logged && *at < cut);
            watch.silence().is_some()
        });
        let (at, ..) = found.unwrap_or_else(|| panic!("{name} is not silent"));
        assert!(at.since(cut) < Nanos::from_ms(1_400), "{name}: {at:?}");
        let known = watch.known_until().expect("a time");
        assert!(known.0.abs_diff(cut.0) < 200_000_000, "{name}: {known:?}");
    }
}

#[test]
fn charges_are_within_one_percent_of_the_engine() {
    for (name, recording) in RECORDINGS {
        let error = worst_error_percent(recording);
        println!("{name}: {error:.2} % of the engine");
        assert!(error <= 1.0, "{name}: {error:.2}");
    }
}
