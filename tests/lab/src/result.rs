//! The result of an experiment: quantities with the paper's value, ours, a tolerance, a verdict.
//!
//! A quantity is built from our values, compared once with what is expected, and then read by
//! [`crate::page`], which makes the tables, the JSON and the chart.

use serde::Serialize;

/// Difference up to which two numbers are equal.
pub const EXACT_MAX: f64 = 1e-9;

/// An experiment ended early: the law that was broken, with seed and moment, or a refused input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// How far a quantity agrees with what is expected. The order is that of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Equal, or within [`EXACT_MAX`].
    Exact,
    /// Within the tolerance.
    Within,
    /// Only the order or the sign was promised, and holds.
    Shape,
    /// Within the tolerance, of a table to which parameters were fitted: no evidence.
    Fitted,
    /// The model lacks a part of the paper's machine.
    NotModelled,
    /// Outside of the tolerance.
    Differs,
}

impl Verdict {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Within => "within",
            Self::Shape => "shape",
            Self::Fitted => "fitted",
            Self::NotModelled => "not modelled",
            Self::Differs => "differs",
        }
    }
}

/// Value of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Paper {
    /// The paper has no number.
    NotPrinted,
    /// A number.
    Value(f64),
    /// From the first to the second.
    Range(f64, f64),
}

/// Our value over the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ours {
    /// Mean over the seeds.
    pub mean: f64,
    /// Standard deviation over the seeds; zero of a single one.
    pub deviation: f64,
    /// The value that is farthest from what is expected, or from zero without an expectation.
    pub worst: f64,
}

/// A number with a verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// What it is.
    pub name: String,
    /// Its unit; empty for counts and ratios.
    pub unit: &'static str,
    /// The paper's value.
    pub paper: Paper,
    /// Ours.
    pub ours: Ours,
    /// What was demanded, in words.
    pub tolerance: String,
    /// The verdict; none if nothing was demanded.
    pub verdict: Option<Verdict>,
    /// Why it differs, is not modelled, or is only reported.
    pub reason: String,
    /// Line of the chart, and position on it.
    #[serde(skip)]
    pub point: Option<(String, f64)>,
    #[serde(skip)]
    values: Vec<f64>,
}

impl Quantity {
    /// A quantity of one value.
    pub fn of(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self::over(name, unit, vec![value])
    }

    /// A quantity of one value per seed.
    pub fn over(name: impl Into<String>, unit: &'static str, values: Vec<f64>) -> Self {
        let (mean, deviation) = mean_and_deviation(&values);
        Self {
            name: name.into(),
            unit,
            paper: Paper::NotPrinted,
            ours: Ours {
                mean,
                deviation,
                worst: farthest(&values, 0.0),
            },
            tolerance: "reported".to_owned(),
            verdict: None,
            reason: String::new(),
            point: None,
            values,
        }
    }

    /// A statement that holds or does not: 1 or 0, of which 1 is expected.
    pub fn holds(name: impl Into<String>, holds: bool) -> Self {
        Self::of(name, "", f64::from(u8::from(holds))).exactly(1.0)
    }

    /// With the paper's value.
    pub fn paper(mut self, value: f64) -> Self {
        self.paper = Paper::Value(value);
        self
    }

    /// With the paper's range.
    pub fn paper_range(mut self, from: f64, to: f64) -> Self {
        self.paper = Paper::Range(from, to);
        self
    }

    /// On the line `series` of the chart, at `x`.
    pub fn at(mut self, series: impl Into<String>, x: f64) -> Self {
        self.point = Some((series.into(), x));
        self
    }

    /// Why it differs, is not modelled, or is only reported.
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Each value is `expected`.
    pub fn exactly(self, expected: f64) -> Self {
        let demand = format!("= {}", number(expected));
        self.demand(expected, demand, Verdict::Exact, |value| {
            (value - expected).abs() <= EXACT_MAX * expected.abs().max(1.0)
        })
    }

    /// The mean over the seeds is at most `tolerance` from `expected`.
    pub fn within(self, expected: f64, tolerance: f64) -> Self {
        let demand = format!("{} +-{}", number(expected), number(tolerance));
        let near = (self.ours.mean - expected).abs() <= tolerance + EXACT_MAX;
        self.demand(expected, demand, Verdict::Within, |_| near)
    }

    /// Each value is at least `least` and at most `most`.
    pub fn between(self, least: f64, most: f64) -> Self {
        let demand = match (least.is_finite(), most.is_finite()) {
            (true, true) => format!("{} to {}", number(least), number(most)),
            (true, false) => format!(">= {}", number(least)),
            _ => format!("<= {}", number(most)),
        };
        let middle = match (least.is_finite(), most.is_finite()) {
            // Of an error, none is best.
            (true, true) if least == 0.0 => 0.0,
            (true, true) => (least + most) / 2.0,
            (true, false) => f64::MAX,
            _ => 0.0,
        };
        self.demand(middle, demand, Verdict::Within, |value| {
            (least - EXACT_MAX..=most + EXACT_MAX).contains(&value)
        })
    }

    /// The mean over the seeds is at least `least` and at most `most`.
    pub fn between_mean(self, least: f64, most: f64) -> Self {
        let half = (most - least) / 2.0;
        self.within(least + half, half)
    }

    /// An order or a sign that is promised in words.
    pub fn shape(self, promise: impl Into<String>, holds: bool) -> Self {
        self.demand(0.0, promise.into(), Verdict::Shape, |_| holds)
    }

    /// What holds so far is no evidence, as parameters were fitted to this table.
    pub fn fitted(mut self) -> Self {
        if matches!(self.verdict, Some(Verdict::Exact | Verdict::Within)) {
            self.verdict = Some(Verdict::Fitted);
        }
        self
    }

    /// The paper has a number that the model cannot give.
    pub fn not_modelled(name: impl Into<String>, unit: &'static str, missing: &str) -> Self {
        Self {
            verdict: Some(Verdict::NotModelled),
            reason: missing.to_owned(),
            ..Self::over(name, unit, Vec::new())
        }
    }

    /// Whether our value exists.
    pub const fn has_value(&self) -> bool {
        !self.values.is_empty()
    }

    fn demand(
        mut self,
        expected: f64,
        demand: String,
        verdict: Verdict,
        holds: impl Fn(f64) -> bool,
    ) -> Self {
        self.ours.worst = farthest(&self.values, expected);
        let all = self.values.iter().all(|value| holds(*value));
        self.verdict = Some(if all { verdict } else { Verdict::Differs });
        self.tolerance = demand;
        self
    }
}

/// Where the parameters of a table are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// Printed in the paper.
    pub paper: &'static str,
    /// Fitted, and to which table.
    pub fitted: &'static str,
    /// Chosen by us.
    pub chosen: &'static str,
}

/// Result of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// One line that describes what was run.
    pub title: String,
    /// Where its parameters are from.
    pub parameters: Parameters,
    /// Its quantities, in the order of the table.
    pub quantities: Vec<Quantity>,
    /// Conclusions, one line each.
    pub notes: Vec<String>,
    /// Labels of the chart's axes, for quantities that have a position.
    pub axes: (&'static str, &'static str),
}

impl Report {
    /// The weakest verdict of its quantities. What is not modelled counts if there is no other.
    pub fn verdict(&self) -> Option<Verdict> {
        let all = || self.quantities.iter().filter_map(|one| one.verdict);
        let modelled = all()
            .filter(|verdict| *verdict != Verdict::NotModelled)
            .max();
        modelled.or_else(|| all().next())
    }
}

/// The value that is farthest from `from`; zero of none.
fn farthest(values: &[f64], from: f64) -> f64 {
    let far = |value: &f64| (value - from).abs();
    let farthest = values.iter().max_by(|a, b| far(a).total_cmp(&far(b)));
    farthest.copied().unwrap_or(0.0)
}

/// Mean and standard deviation.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values
        .iter()
        .map(|value| (value - mean) * (value - mean))
        .sum();
    (mean, (squares / count).sqrt())
}

/// A number in a table: four significant digits after the first, and no trailing zeros.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1_000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.1 => 3,
        _ => 5,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    if text == "-0" { "0" } else { text }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_from_values_and_demand() {
        let over = || Quantity::over("x", "", vec![1.0, 1.2]);
        assert_eq!(over().within(1.1, 0.05).verdict, Some(Verdict::Within));
        assert_eq!(over().exactly(1.0).verdict, Some(Verdict::Differs));
        assert_eq!(over().between(0.9, 1.1).verdict, Some(Verdict::Differs));
        assert_eq!(over().between(0.9, 1.1).ours.worst, 1.2);
        assert_eq!(
            over().between(0.9, 1.2).fitted().verdict,
            Some(Verdict::Fitted)
        );
        assert_eq!(over().shape("rises", false).verdict, Some(Verdict::Differs));
        assert_eq!(
            over().shape("rises", true).fitted().verdict,
            Some(Verdict::Shape)
        );
        assert_eq!(over().verdict, None);
        assert_eq!(Quantity::holds("y", false).verdict, Some(Verdict::Differs));
        let report = Report {
            quantities: vec![over(), over().within(1.1, 0.05), Quantity::holds("y", true)],
            ..Report::default()
        };
        assert_eq!(report.verdict(), Some(Verdict::Within));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [
            (0.0, "0"),
            (-0.000_001, "0"),
            (1.5, "1.5"),
            (12_345.6, "12346"),
        ];
        for (value, text) in texts {
            assert_eq!(number(value), text);
        }
    }
}
