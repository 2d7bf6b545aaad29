//! A daemon's trace of its engine polls in a run, beside the truth by the loads' timestamps.

use super::FINE_PER_BUCKET;
use super::load::LoadReport;
use super::spans::coarser;

/// Value of `RUST_LOG` with which a daemon traces what a recording needs.
pub const TRACED: &str = "warn,turnstile::looks=trace";

/// Text in front of each traced reading in the log.
const TARGET: &str = " turnstile::looks] ";

/// Time from the first moment of a recording to the beginning of the loads.
const LEAD_NS: u64 = 3_000_000_000;

/// Makes a recording from a daemon's log, `messages`, and from the tenants' numbers and reports,
/// `loads`. The loads began at `start_ns` of the wall clock; `title` is the first line. Moments are
/// on the clock of the GPU that all of them share.
pub fn recording(
    title: &str,
    messages: &str,
    start_ns: u64,
    loads: &[(u64, &LoadReport)],
) -> String {
    let offset_ns = loads.first().map_or(0, |(_, load)| load.clock_offset_ns);
    let start_ns = start_ns.saturating_sub_signed(offset_ns);
    let base_ns = start_ns.saturating_sub(LEAD_NS);
    // A number over half of `start_ns` is a moment since 1970; no length is as large.
    let relative = |word: &str| match word.parse::<u64>() {
        Ok(number) if number > start_ns / 2 => number.saturating_sub(base_ns).to_string(),
        _ => word.to_owned(),
    };
    let mut lines = vec![format!("# {title}")];
    let lines_of_target = messages.lines().filter_map(|line| line.split_once(TARGET));
    lines.extend(lines_of_target.map(|(_, line)| {
        let words: Vec<String> = line.split(' ').map(relative).collect();
        words.join(" ")
    }));
    for (tenant, load) in loads {
        let truths = [("executed", &load.executed_ns), ("worked", &load.worked_ns)];
        for (name, fine) in truths {
            let whole = fine.len() / FINE_PER_BUCKET * FINE_PER_BUCKET;
            let steps = coarser(&fine[..whole], FINE_PER_BUCKET);
            let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
            lines.push(format!("{name} {tenant} {}", steps.join(" ")));
        }
        let on_gpu = |at_ns: u64| {
            at_ns
                .saturating_sub_signed(offset_ns)
                .saturating_sub(base_ns)
        };
        for (name, spans) in [("gap", &load.gap_list), ("pause", &load.pause_list)] {
            lines.extend(spans.iter().map(|span| {
                let (begin, end) = (on_gpu(span.begin_ns), on_gpu(span.end_ns));
                format!("{name} {tenant} {begin} {end}")
            }));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::spans::Span;
    use super::*;

    #[test]
    fn recording_has_times_relative_to_its_start() {
        let messages = "[2026-11-22T01:00:00Z TRACE turnstile::looks] active 7 1795302236974611520 552 314\n\
            [2026-11-22T01:00:00Z WARN  other] something\n\
            [2026-11-22T01:00:00Z TRACE turnstile::looks] seen 2 true 1795302237000000000\n";
        let load = LoadReport {
            executed_ns: vec![100; 25],
            worked_ns: vec![101; 25],
            gap_list: vec![Span::new(
                1_795_302_237_000_000_000,
                1_795_302_237_000_000_100,
            )],
            clock_offset_ns: -500,
            ..LoadReport::default()
        };
        let recorded = recording("a cell", messages, 1_795_302_236_999_999_500, &[(2, &load)]);
        let expected = "# a cell\nactive 7 2974611520 552 314\nseen 2 true 3000000000\n\
            executed 2 1000 1000\nworked 2 1010 1010\ngap 2 3000000500 3000000600\n";
        assert_eq!(recorded, expected);
    }
}
