//! The matrix as a picture: progress of each program of each row, by mode, beside its part.
//!
//! In: the judged lines. Out: an SVG document. Rows of one program are left out: their progress is
//! one by definition.

use std::fmt::Write;

use super::judge::Line;
use super::rows::Mode;

/// Lengths are pixels.
const LABEL_WIDTH: f64 = 250.0;
const PLOT_WIDTH: f64 = 520.0;
const LANE_HEIGHT: f64 = 17.0;
const ROW_GAP: f64 = 8.0;
const HEAD_HEIGHT: f64 = 70.0;
const FOOT_HEIGHT: f64 = 34.0;
/// Progress at the right end; more stands there.
const PROGRESS_MAX: f64 = 1.3;
/// Steps of the scale.
const TICKS: [f64; 6] = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25];

/// Progress that a program is promised, of its part.
const PROMISED: f64 = 0.9;

fn x(progress: f64) -> f64 {
    LABEL_WIDTH + PLOT_WIDTH * progress.clamp(0.0, PROGRESS_MAX) / PROGRESS_MAX
}

/// The mark of a mode around a point.
fn mark(mode: Mode, x: f64, y: f64) -> String {
    match mode {
        Mode::Native => format!(
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="#fff" stroke="#8a5a00" stroke-width="1.8"/>"##
        ),
        Mode::Turnstile => {
            format!(r##"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="#0b62c4"/>"##)
        }
        Mode::Mps => format!(
            r##"<rect x="{:.1}" y="{:.1}" width="7" height="7" fill="#5f8a3a"/>"##,
            x - 3.5,
            y - 3.5
        ),
    }
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    format!(r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"##)
}

/// Lines of one row, which stand behind each other.
fn rows(lines: &[Line]) -> Vec<&[Line]> {
    let several = lines.chunk_by(|a, b| a.row == b.row);
    several.filter(|lines| !lines[0].row.is_alone()).collect()
}

/// The picture of these lines under a title.
pub(super) fn svg(title: &str, lines: &[Line]) -> String {
    let rows = rows(lines);
    let height = |row: &[Line]| LANE_HEIGHT * row[0].programs.len() as f64 + ROW_GAP;
    let plot: f64 = rows.iter().map(|row| height(row)).sum();
    let (width, bottom) = (LABEL_WIDTH + PLOT_WIDTH + 20.0, HEAD_HEIGHT + plot);
    let mut parts = vec![text(12.0, 20.0, "start", title)];
    let mut legend_x = 12.0;
    for mode in [Mode::Native, Mode::Turnstile, Mode::Mps] {
        if lines.iter().any(|line| line.mode == mode) {
            parts.push(mark(mode, legend_x + 5.0, 38.0));
            parts.push(text(legend_x + 14.0, 42.0, "start", &mode.to_string()));
            legend_x += 90.0;
        }
    }
    let promise = "| 0.9 of the program's part; the scale is progress: rate over the rate alone";
    parts.push(text(legend_x, 42.0, "start", promise));
    for tick in TICKS {
        let at = x(tick);
        parts.push(format!(
            r##"<line x1="{at:.1}" y1="{HEAD_HEIGHT}" x2="{at:.1}" y2="{bottom:.1}" stroke="#ddd"/>"##
        ));
        parts.push(text(at, bottom + 18.0, "middle", &tick.to_string()));
    }
    let mut top = HEAD_HEIGHT;
    for row in rows {
        let name = row[0].row.to_string();
        parts.push(text(12.0, top + LANE_HEIGHT - 4.0, "start", &name));
        for (index, share) in row[0].programs.iter().enumerate() {
            let middle = top + LANE_HEIGHT * (index as f64 + 0.5);
            let program = share.program.name();
            parts.push(text(LABEL_WIDTH - 10.0, middle + 4.0, "end", program));
            let due = x(PROMISED * share.part);
            parts.push(format!(
                r##"<line x1="{due:.1}" y1="{:.1}" x2="{due:.1}" y2="{:.1}" stroke="#b00020" stroke-width="2"/>"##,
                middle - 7.0,
                middle + 7.0
            ));
            for line in row {
                if let Some(share) = line.programs.get(index) {
                    parts.push(mark(line.mode, x(share.progress), middle));
                }
            }
        }
        top += height(row);
    }
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{:.0}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>
{}
</svg>
"##,
        bottom + FOOT_HEIGHT,
        parts.join("\n")
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::super::judge::lines;
    use super::super::runs::{Figures, Run, Window};
    use super::*;

    fn run(mode: Mode, row: &str, progress: &[f64]) -> Run {
        let row: super::super::rows::Row = row.parse().unwrap();
        let programs = row.programs().zip(progress);
        let programs = programs.map(|(program, progress)| Figures {
            program: program.clone(),
            window: Window::default(),
            progress: *progress,
            worst_2s: None,
            charged_percent: None,
        });
        Run {
            mode,
            round: 0,
            programs: programs.collect(),
            row,
            daemon_cpu_percent: None,
        }
    }

    #[test]
    fn each_program_has_a_mark_for_each_mode_and_its_promise() {
        let runs = [
            run(Mode::Native, "train+small 1:3", &[0.75, 0.5]),
            run(Mode::Turnstile, "train+small 1:3", &[0.25, 2.0]),
            run(Mode::Native, "train", &[1.0]),
        ];
        let svg = svg("H100 & more", &lines(&runs));
        // One mark of each mode is the legend's.
        assert_eq!(svg.matches("stroke=\"#8a5a00\"").count(), 3);
        assert_eq!(svg.matches("fill=\"#0b62c4\"").count(), 3);
        assert_eq!(svg.matches("stroke=\"#b00020\"").count(), 2);
        assert!(!svg.contains("#5f8a3a"), "MPS did not run");
        assert!(svg.contains("H100 &amp; more") && svg.contains("train+small 1:3"));
        let right = format!("cx=\"{:.1}\"", LABEL_WIDTH + PLOT_WIDTH);
        assert!(
            svg.contains(&right),
            "what is beyond the scale stands at its end"
        );
        let due = format!("x1=\"{:.1}\"", x(0.9 * 0.25));
        assert!(svg.contains(&due), "{due}");
    }
}
