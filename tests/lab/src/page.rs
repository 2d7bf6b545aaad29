//! Tables, charts and JSON of results: the one place where they are made.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::chart::{Chart, Series};
use crate::experiments::Experiment;
use crate::result::{Paper, Quantity, Verdict, number};
use crate::run::Run;

/// Head of every table.
const HEAD: [&str; 9] = [
    "quantity",
    "unit",
    "paper",
    "ours",
    "deviation",
    "worst",
    "demanded",
    "verdict",
    "reason",
];

/// Widest line of prose on the page.
const COLUMNS_MAX: usize = 100;

impl Run {
    /// Whether the weakest verdict is the recorded one. What is not built agrees with itself.
    pub fn agrees(&self) -> bool {
        match &self.result {
            None => true,
            Some(Ok(report)) => report.verdict() == self.row.verdict,
            Some(Err(_)) => false,
        }
    }

    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match &self.result {
            None => "not built",
            Some(Ok(report)) => verdict_name(report.verdict()),
            Some(Err(_)) => "failed",
        }
    }

    /// The section of the page.
    pub fn section(&self) -> String {
        let Self { row, seeds, .. } = self;
        let mut text = format!("## `{}`: {}\n\n", row.id, row.about);
        let report = match &self.result {
            None => return text + "not built\n",
            Some(Err(failure)) => return text + &format!("failed: {failure}\n"),
            Some(Ok(report)) => report,
        };
        let last = seeds.first() + seeds.count() - 1;
        let range = match row.seeds {
            1 => "no random numbers, or one seed".to_owned(),
            _ => format!("seeds {} to {last}", seeds.first()),
        };
        let or_none = |text: &'static str| if text.is_empty() { "none" } else { text };
        let parameters = &report.parameters;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{}. {}; {range}. Verdict: **{}**.\n\nParameters. Of the paper: {}. Fitted: {}. \
             Chosen: {}.\n\n{}",
            report.title,
            row.source,
            verdict_name(report.verdict()),
            or_none(parameters.paper),
            or_none(parameters.fitted),
            or_none(parameters.chosen),
            table(&report.quantities),
        );
        for note in &report.notes {
            let _ = write!(text, "\n- {note}\n");
        }
        text
    }

    /// The result as JSON.
    pub fn json(&self) -> Value {
        let Self { row, seeds, .. } = self;
        let (report, failure) = match &self.result {
            Some(Ok(report)) => (Some(report), None),
            Some(Err(failure)) => (None, Some(failure.to_string())),
            None => (None, None),
        };
        json!({
            "id": row.id, "paper": row.source, "first_seed": seeds.first(),
            "seeds": seeds.count(), "verdict": self.verdict(), "report": report,
            "failure": failure,
        })
    }

    /// The chart, if it was built.
    pub fn chart(&self) -> Option<Chart> {
        let report = self.result.as_ref()?.as_ref().ok()?;
        let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let placed = report.quantities.iter().any(|one| one.point.is_some());
        let with_value = report.quantities.iter().enumerate();
        for (index, one) in with_value.filter(|(_, one)| one.has_value()) {
            let (series, x) = match &one.point {
                Some((series, x)) => (series.clone(), *x),
                None if placed => continue,
                None => ("ours".to_owned(), index as f64),
            };
            let paper = match one.paper {
                Paper::Value(paper) => Some(paper),
                Paper::Range(_, _) | Paper::NotPrinted => None,
            };
            if let Some(paper) = paper {
                let name = format!("{series}, paper");
                lines.entry(name).or_default().push((x, paper));
            }
            lines.entry(series).or_default().push((x, one.ours.mean));
        }
        let (x, y) = match report.axes {
            ("", "") => ("row of the table", ""),
            axes => axes,
        };
        let series = lines.into_iter();
        Some(Chart {
            title: format!("{}: {}", self.row.id, self.row.about),
            x: x.to_owned(),
            y: y.to_owned(),
            series: series
                .map(|(name, points)| Series { name, points })
                .collect(),
        })
    }
}

fn verdict_name(verdict: Option<Verdict>) -> &'static str {
    verdict.map_or("-", Verdict::name)
}

fn cells(one: &Quantity) -> [String; 9] {
    let paper = match one.paper {
        Paper::NotPrinted => "-".to_owned(),
        Paper::Value(value) => number(value),
        Paper::Range(from, to) => format!("{} to {}", number(from), number(to)),
    };
    let ours = |value| match one.has_value() {
        true => number(value),
        false => "-".to_owned(),
    };
    [
        one.name.clone(),
        one.unit.to_owned(),
        paper,
        ours(one.ours.mean),
        ours(one.ours.deviation),
        ours(one.ours.worst),
        one.tolerance.clone(),
        verdict_name(one.verdict).to_owned(),
        one.reason.clone(),
    ]
}

/// Quantities as a table of Markdown, with columns of one width.
fn table(quantities: &[Quantity]) -> String {
    let rows: Vec<[String; 9]> = std::iter::once(HEAD.map(str::to_owned))
        .chain(quantities.iter().map(cells))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len() - 1)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let width = widths.get(column).copied().unwrap_or(0);
            let _ = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if index == 0 {
            text.push_str(&"|---".repeat(HEAD.len()));
            text.push_str("|\n");
        }
    }
    text
}

/// The page of all results.
pub fn page(runs: &[Run]) -> String {
    let mut text = String::from(
        "# Results of the experiment lab\n\nMade by `turnstile-lab run --all --page \
         docs/RESULTS.md`; do not edit. Each quantity of the papers stands beside ours.\n\n\
         Verdicts: *exact* (equal, or within 1e-9); *within* (the tolerance); *shape* (only an \
         order or a sign was promised, and holds); *fitted* (within the tolerance, of a table to \
         which parameters were fitted: no evidence); *not modelled*; *differs*. An experiment has \
         the weakest verdict of its quantities. Ours is the mean over the seeds, and *worst* is \
         the value that is farthest from what is demanded. A statement that holds is 1.\n\n\
         Numbers that we promise are in [the specification](SPECIFICATION.md), tables of runs on \
         hardware in [results](results/README.md).\n\n| experiment | paper | kind | verdict |\n\
         |---|---|---|---|\n",
    );
    for run in runs {
        let Experiment {
            id, source, kind, ..
        } = run.row;
        let _ = writeln!(
            text,
            "| `{id}` | {source} | {} | {} |",
            kind.name(),
            run.verdict()
        );
    }
    text.push('\n');
    text.push_str(&crate::mistakes::section(runs));
    for run in runs.iter().filter(|run| run.result.is_some()) {
        text.push('\n');
        text.push_str(&run.section());
    }
    text.lines().map(wrapped).collect()
}

/// A line of prose as lines of at most [`COLUMNS_MAX`] columns. Tables and headings stay as they
/// are.
fn wrapped(line: &str) -> String {
    if line.starts_with(['|', '#']) {
        return format!("{line}\n");
    }
    let indent = if line.starts_with("- ") { "  " } else { "" };
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS_MAX {
            text.push('\n');
            text.push_str(indent);
            column = indent.len();
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

/// The cells of each quantity on a page, by experiment and name.
pub fn rows(page: &str) -> BTreeMap<(String, String), Vec<String>> {
    let (mut id, mut found) = (String::new(), BTreeMap::new());
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("## `") {
            id = head.split('`').next().unwrap_or_default().to_owned();
        }
        let cells = line.trim_matches('|').split('|');
        let cells: Vec<String> = cells.map(|cell| cell.trim().to_owned()).collect();
        let is_row = cells.len() == HEAD.len() && !cells[0].starts_with("---");
        if is_row && cells[0] != HEAD[0] && !id.is_empty() {
            found.insert((id.clone(), cells[0].clone()), cells);
        }
    }
    found
}
