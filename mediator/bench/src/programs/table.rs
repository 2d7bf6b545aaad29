//! Lines for people: the table at the end, and one for each row meanwhile.

use turnstile_figures::columns;

use super::super::table::{list, optional};
use super::judge::{Line, Mean, Share};
use super::runs::{Figures, Report, Run};

const HEAD: [&str; 12] = [
    "ROW",
    "MODE",
    "PART",
    "PROGRESS",
    "SUM",
    "P99-MS",
    "WORST-2S",
    "CHARGED-%",
    "DAEMON-%",
    "0.9-PART",
    "NATIVE",
    "NATIVE-SUM",
];
/// Stands before a row that falls short of a promise.
const MARK: &str = "! ";

const COLUMNS: &str = "\
part: a program's weight, of the weights of all; progress: its rate over its rate alone, of infer its median latency
alone over its median latency; worst 2 s: its least rate of any 2 s, over its rate alone; charged: by the daemon,
of the time; daemon: its processor time, of one core; where the row begins with ! it falls short of a promise:
0.9 part: each progress is at least 0.9 x its part; native: and at least min(native's, its part) - 0.03;
native sum: the sum is at least native's - 0.03 (- 0.1 with decode)";

/// A promise's cell.
fn kept(kept: Option<bool>) -> String {
    match kept {
        None => "-",
        Some(true) => "ok",
        Some(false) => "SHORT",
    }
    .into()
}

/// The cells of these lines.
fn cells(lines: &[Line]) -> Vec<Vec<String>> {
    let of = |line: &Line| {
        let short = line.verdict.is_some_and(|verdict| !verdict.is_kept());
        let programs = |text: fn(&Share) -> String| list(&line.programs, text);
        let promise =
            |of: fn(super::judge::Verdict) -> Option<bool>| kept(line.verdict.and_then(of));
        vec![
            format!("{}{}", if short { MARK } else { "  " }, line.row),
            line.mode.to_string(),
            programs(|share| format!("{:.3}", share.part)),
            programs(|share| format!("{:.3}", share.progress)),
            format!("{:.3}", line.sum),
            programs(|share| optional(share.p99_ms, 1)),
            programs(|share| optional(share.worst_2s, 3)),
            programs(|share| optional(share.charged_percent, 1)),
            optional(line.daemon_cpu_percent, 2),
            promise(|verdict| Some(verdict.part)),
            promise(|verdict| verdict.native),
            promise(|verdict| verdict.sum),
        ]
    };
    lines.iter().map(of).collect()
}

/// The title of a report.
pub(super) fn title(report: &Report) -> String {
    let setting = &report.setting;
    format!(
        "{}, driver {}, policy {}, windows of {} s, {} s after the last arrival, {}",
        setting.card.as_deref().unwrap_or("no NVIDIA GPU"),
        setting.driver.as_deref().unwrap_or("-"),
        setting.policy.as_deref().unwrap_or("by default"),
        setting.seconds,
        setting.skip,
        report.date
    )
}

/// The line of the mean of sums.
fn of_mean(mean: &Mean) -> String {
    format!(
        "mean of the sums of {} rows: native {:.3}, turnstile {:.3}, {:.3} of native's (at least 0.98: {})",
        mean.rows,
        mean.native,
        mean.turnstile,
        mean.turnstile / mean.native,
        kept(Some(mean.kept))
    )
}

/// Prints the report to standard output.
pub(super) fn print(report: &Report, lines: &[Line], mean: Option<&Mean>) {
    println!("{}", title(report));
    if !lines.is_empty() {
        println!();
        columns::table(&HEAD, &cells(lines));
        println!("{COLUMNS}");
    }
    if let Some(mean) = mean {
        println!("{}", of_mean(mean));
    }
}

/// What did not run, for standard error.
pub(super) fn problems(report: &Report) -> Vec<String> {
    let failures = report.failures.iter().map(|failure| {
        let program = failure.program.as_ref();
        let program = program.map_or_else(String::new, |program| format!(" {}", program.name()));
        format!("{}{program}: {}", failure.mode, failure.error)
    });
    let left_out = report.left_out.iter().map(|left_out| {
        let row = left_out.row.as_ref();
        let row = row.map_or_else(String::new, |row| format!(" {row}"));
        format!("{}{row} is left out: {}", left_out.mode, left_out.reason)
    });
    failures.chain(left_out).collect()
}

/// The line of a run that has just ended.
pub(super) fn progress(run: &Run) -> String {
    let programs = |text: fn(&Figures) -> String| list(&run.programs, text);
    let sum: f64 = run.programs.iter().map(|figures| figures.progress).sum();
    let mut text = format!(
        "{:<9} {:<22} {} sum {sum:.3}  p99 {} ms",
        run.mode.to_string(),
        run.row.to_string(),
        programs(|figures| format!("{:.3}", figures.progress)),
        programs(|figures| optional(figures.window.p99_ms, 1)),
    );
    if let Some(cpu) = run.daemon_cpu_percent {
        let charged = programs(|figures| optional(figures.charged_percent, 1));
        text.push_str(&format!("  charged {charged} %  daemon {cpu:.2} %"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::judge::{lines, mean};
    use super::super::rows::Mode;
    use super::super::runs::Window;
    use super::*;

    fn run(mode: Mode, row: &str, progress: [f64; 2]) -> Run {
        let row: super::super::rows::Row = row.parse().unwrap();
        let figures = |(program, progress): (&_, f64)| Figures {
            program: Clone::clone(program),
            window: Window {
                p99_ms: Some(12.34),
                ..Window::default()
            },
            progress,
            worst_2s: None,
            charged_percent: (mode == Mode::Turnstile).then_some(49.96),
        };
        Run {
            mode,
            round: 0,
            programs: row.programs().zip(progress).map(figures).collect(),
            row,
            daemon_cpu_percent: (mode == Mode::Turnstile).then_some(1.234),
        }
    }

    #[test]
    fn row_below_its_target_is_marked_short() {
        let runs = [
            run(Mode::Native, "train+small", [0.6, 0.4]),
            run(Mode::Turnstile, "train+small", [0.5, 0.45]),
        ];
        let lines = lines(&runs);
        let cells = cells(&lines);
        assert!(cells.iter().all(|cells| cells.len() == HEAD.len()));
        assert_eq!(cells[0][0], "  train+small 1:1");
        assert_eq!(&cells[0][7..], ["- / -", "-", "-", "-", "-"]);
        assert_eq!(
            cells[1].join(" | "),
            "! train+small 1:1 | turnstile | 0.500 / 0.500 | 0.500 / 0.450 | 0.950 | 12.3 / 12.3 \
             | - / - | 50.0 / 50.0 | 1.23 | ok | ok | SHORT"
        );
        let mean = of_mean(&mean(&lines).unwrap());
        assert!(
            mean.ends_with("0.950 of native's (at least 0.98: SHORT)"),
            "{mean}"
        );
    }

    #[test]
    fn the_line_of_a_run_has_the_daemon_where_there_is_one() {
        let native = progress(&run(Mode::Native, "train+small", [0.6, 0.4]));
        assert!(native.contains("0.600 / 0.400 sum 1.000") && !native.contains("daemon"));
        let turnstile = progress(&run(Mode::Turnstile, "train+small", [0.6, 0.4]));
        assert!(
            turnstile.ends_with("charged 50.0 / 50.0 %  daemon 1.23 %"),
            "{turnstile}"
        );
    }
}
