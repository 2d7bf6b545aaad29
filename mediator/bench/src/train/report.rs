//! Figures of `bench train`, and their table.
//!
//! In go times, losses and moved bytes of trainings of one size; out comes a table, or JSON. The
//! bench fills and prints them.

use serde::Serialize;
use turnstile_figures::train::Stretch;

/// One of the trainings.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) seed: u64,
    pub(super) alone_s: f64,
    pub(super) alone_step_ms: f64,
    pub(super) shared_s: f64,
    /// Bit for bit, with the run alone.
    pub(super) losses_equal: bool,
    pub(super) weights_equal: bool,
}

/// Trainings of one size: one after another, and together under the daemon.
#[derive(Debug, Serialize)]
// FIELDS: a report: one figure each.
pub(super) struct Run {
    pub(super) allocated_gib: f64,
    pub(super) card_bytes: u64,
    pub(super) host_pool_bytes: u64,
    pub(super) rows: Vec<Row>,
    pub(super) serial_s: f64,
    pub(super) shared_s: f64,
    /// Steps in a second of all, in percent of those one after another.
    pub(super) percent_of_serial: f64,
    /// Half of the time between exchanges was in turns of at least this length.
    pub(super) turn_s: Option<f64>,
    /// From the first beginning to the last end.
    pub(super) out_bytes: u64,
    pub(super) in_bytes: u64,
    pub(super) stretches: Vec<Stretch>,
}

impl Run {
    pub(super) fn is_equal(&self) -> bool {
        let equal = |row: &Row| row.losses_equal && row.weights_equal;
        self.rows.iter().all(equal)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) driver: &'static str,
    pub(super) steps: u64,
    pub(super) over: Run,
    pub(super) beside: Option<Run>,
}

pub(super) fn print(run: &Run) {
    let gib = |bytes: u64| bytes >> 30;
    println!(
        "{} of {:.1} GiB on {} GiB of the card, host {} GiB: {:.2} s together, {:.2} s one after another: {:.1} %",
        run.rows.len(),
        run.allocated_gib,
        gib(run.card_bytes),
        gib(run.host_pool_bytes),
        run.shared_s,
        run.serial_s,
        run.percent_of_serial
    );
    let turn = run.turn_s.map(|turn| format!(", turns of {turn:.1} s"));
    println!(
        "  moved {} GiB out, {} GiB in{}",
        gib(run.out_bytes),
        gib(run.in_bytes),
        turn.unwrap_or_default()
    );
    let word = |equal: bool| if equal { "equal" } else { "DIFFERENT" };
    for row in &run.rows {
        println!(
            "  training {}: {:.2} s alone ({:.1} ms a step), {:.2} s together; losses {}, weights {}",
            row.seed,
            row.alone_s,
            row.alone_step_ms,
            row.shared_s,
            word(row.losses_equal),
            word(row.weights_equal)
        );
    }
    for part in &run.stretches {
        println!(
            "  {:>7.2} s {:>6.2} s, engine {:>5.1} %, {:>3} GiB out {:>3} GiB in, there: {}",
            part.from_s,
            part.length_s,
            part.busy_percent,
            gib(part.out_bytes),
            gib(part.in_bytes),
            part.here.join(" ")
        );
    }
}
