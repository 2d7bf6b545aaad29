//! Reports of several calls to one.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::runs::Report;

/// Largest file that is read: a report of the whole matrix is some hundred KiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why reports are not merged.
#[derive(Debug, thiserror::Error)]
pub(super) enum MergeError {
    #[error("No report is named")]
    None,
    #[error("Reading {0} failed")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} is no report of `bench programs`")]
    Format(PathBuf, #[source] serde_json::Error),
    #[error(
        "{0} was measured otherwise than {1}: card, driver, policy, --seconds or --skip differ"
    )]
    Setting(PathBuf, PathBuf),
}

/// Reads and joins the reports in these files.
pub(super) fn files(files: &[PathBuf]) -> Result<Report, MergeError> {
    let read = |file: &PathBuf| Ok((file.clone(), report(file)?));
    let reports: Result<Vec<_>, MergeError> = files.iter().map(read).collect();
    merge(reports?)
}

fn report(file: &Path) -> Result<Report, MergeError> {
    let failed = |error| MergeError::Read(file.to_owned(), error);
    let mut text = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    let mut opened = opened.take(FILE_BYTES_MAX);
    opened.read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| MergeError::Format(file.to_owned(), error))
}

/// Joins reports that were measured in the same way. A row in several of them has as many rounds.
fn merge(reports: Vec<(PathBuf, Report)>) -> Result<Report, MergeError> {
    let mut reports = reports.into_iter();
    let (first, mut all) = reports.next().ok_or(MergeError::None)?;
    for (file, report) in reports {
        if report.setting != all.setting {
            return Err(MergeError::Setting(file, first));
        }
        let rounds = all.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
        all.runs.extend(report.runs.into_iter().map(|mut run| {
            run.round += rounds;
            run
        }));
        all.failures.extend(report.failures);
        all.left_out.extend(report.left_out);
        all.interrupted |= report.interrupted;
        // Dates have one form, which sorts as time does.
        all.date = all.date.max(report.date);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::judge::lines;
    use super::super::rows::{Mode, Row};
    use super::super::runs::{Figures, Run, Setting, Window};
    use super::*;
    use proptest::prelude::*;

    fn report(date: &str, runs: &[(&str, f64)]) -> Report {
        let run = |(row, progress): &(&str, f64)| {
            let row: Row = row.parse().unwrap();
            let figures = |program: &_| Figures {
                program: Clone::clone(program),
                window: Window::default(),
                progress: *progress,
                worst_2s: None,
                charged_percent: None,
            };
            Run {
                mode: Mode::Turnstile,
                round: 0,
                programs: row.programs().map(figures).collect(),
                row,
                daemon_cpu_percent: Some(1.0),
            }
        };
        Report {
            setting: Setting {
                card: Some("GPU".into()),
                driver: None,
                policy: None,
                seconds: 10.0,
                skip: 10.0,
            },
            date: date.into(),
            runs: runs.iter().map(run).collect(),
            failures: Vec::new(),
            left_out: Vec::new(),
            interrupted: false,
        }
    }

    fn named(reports: Vec<Report>) -> Vec<(PathBuf, Report)> {
        let name = |(index, report)| (PathBuf::from(format!("{index}.json")), report);
        reports.into_iter().enumerate().map(name).collect()
    }

    #[test]
    fn rows_of_several_files_stand_together_and_equal_ones_are_rounds() {
        let one = report("2026-02-01", &[("train", 1.0), ("train+small", 0.4)]);
        let other = report("2026-01-01", &[("train", 0.9), ("train+loader", 0.5)]);
        let all = merge(named(vec![one, other])).unwrap();
        let lines = lines(&all.runs);
        let names: Vec<String> = lines.iter().map(|line| line.row.to_string()).collect();
        assert_eq!(names, ["train", "train+small 1:1", "train+loader 1:1"]);
        assert_eq!(lines[0].rounds, 2);
        assert!((lines[0].sum - 0.95).abs() < 1e-9);
        assert_eq!(all.date, "2026-02-01");
        let rounds: Vec<u32> = all.runs.iter().map(|run| run.round).collect();
        assert_eq!(rounds, [0, 0, 1, 1]);
    }

    #[test]
    fn another_card_is_refused_by_its_file() {
        let one = report("2026-01-01", &[]);
        let mut other = one.clone();
        other.setting.card = None;
        let error = merge(named(vec![one, other])).unwrap_err().to_string();
        assert!(
            error.starts_with("1.json") && error.contains("0.json"),
            "{error}"
        );
        assert!(matches!(merge(Vec::new()), Err(MergeError::None)));
    }

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        assert!(matches!(
            files(std::slice::from_ref(&file)),
            Err(MergeError::Read(..))
        ));
        std::fs::write(&file, "{}").unwrap();
        assert!(matches!(files(&[file]), Err(MergeError::Format(..))));
    }

    proptest! {
        #[test]
        fn a_report_survives_its_file(quarters in 0u8..9, rows in 0usize..4) {
            let progress = f64::from(quarters) / 4.0;
            let runs = [("train", progress), ("all", progress / 8.0), ("train+small 1:3", 0.25)];
            let whole = report("2026-01-01", &runs[..rows.min(3)]);
            let text = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), whole);
        }
    }
}
