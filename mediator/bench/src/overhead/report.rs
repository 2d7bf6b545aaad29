//! Figures of `bench overhead`: the extra time of one way over another, and their text.
//!
//! In go blocks of launches or steps; out come excesses in percent, as a table or as JSON. The
//! bench calls this for each kind of work, and once at the end.

use anyhow::Context;
use serde::Serialize;
use turnstile_figures::load::Block;
use turnstile_figures::pairs::Excess;
use turnstile_figures::percentile::median;

use super::groups::{Round, Work};

/// Blocks of a round: those under test, and those that they are compared with.
pub(super) type Pair = (Block, Block);

/// Extra time of one way over another.
#[derive(Debug, Serialize)]
pub(super) struct Against {
    what: &'static str,
    /// By the median piece of each block.
    by_median: Excess,
    /// By the mean.
    by_mean: Excess,
}

impl Against {
    pub(super) fn of(what: &'static str, groups: &[Vec<Pair>]) -> anyhow::Result<Self> {
        let excess = |of: fn(&Block) -> f64| {
            let both = |(one, other): &Pair| (of(one), of(other));
            let groups: Vec<Vec<_>> = groups
                .iter()
                .map(|rounds| rounds.iter().map(both).collect())
                .collect();
            Excess::of(&groups).context("Nothing was measured")
        };
        Ok(Self {
            what,
            by_median: excess(|block| block.median_ns)?,
            by_mean: excess(|block| block.mean_ns)?,
        })
    }
}

/// One kind of work.
#[derive(Debug, Serialize)]
pub(super) struct Measure {
    pub(super) what: &'static str,
    /// A launch and wait, or a step, natively.
    pub(super) native_us: f64,
    pub(super) against: Vec<Against>,
    /// Calls that suspended or resumed a tenant while the daemon was stopped and continued; none is
    /// expected.
    pub(super) suspensions: u64,
}

impl Measure {
    pub(super) fn print(&self) {
        println!("{}: natively {:.3} us", self.what, self.native_us);
        for Against {
            what,
            by_median,
            by_mean,
        } in &self.against
        {
            println!(
                "  {what:<42} {} by medians, {} by means; {} processes, {} rounds",
                text(by_median),
                text(by_mean),
                by_median.groups_percent.len(),
                by_median.rounds,
            );
        }
        if self.suspensions > 0 {
            println!(
                "  tenants were suspended meanwhile: {} calls",
                self.suspensions
            );
        }
    }
}

/// Each side of the groups against the native one.
pub(super) fn sides(work: &Work, groups: &[Vec<Round>]) -> anyhow::Result<Vec<Against>> {
    let sides = work.sides.iter().enumerate().skip(1);
    let against = sides.map(|(index, side)| {
        let pairs = |round: &Round| (round[index], round[0]);
        let groups: Vec<Vec<Pair>> = groups
            .iter()
            .map(|rounds| rounds.iter().map(pairs).collect())
            .collect();
        Against::of(side.name(), &groups)
    });
    against.collect()
}

pub(super) fn native_us(natively: impl Iterator<Item = Block>) -> anyhow::Result<f64> {
    let medians = natively.map(|block| block.median_ns).collect();
    Ok(median(medians).context("Nothing was measured")? / 1e3)
}

fn text(excess: &Excess) -> String {
    let [low, high] = excess.interval_percent;
    format!("{:+.3} % ({low:+.3} to {high:+.3})", excess.median_percent)
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) measures: Vec<Measure>,
    pub(super) skipped: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::super::groups::tests::{nothing, shell};
    use super::super::groups::{Groups, Side};
    use super::*;

    #[test]
    fn sides_are_identified_in_any_order() {
        let work = nothing(3);
        let started = Groups::start(&work, |side| {
            Ok(shell(match side {
                Side::Native => 1_000,
                Side::NativeAgain => 1_001,
                Side::Tenant | Side::Movable => 1_020,
            }))
        });
        let mut groups = started.unwrap().unwrap();
        let rounds: Vec<Vec<Round>> = groups
            .0
            .iter_mut()
            .map(|group| group.rounds(work.seconds, work.pieces).unwrap())
            .collect();
        drop(groups);
        let native = native_us(rounds.iter().flatten().map(|round| round[0])).unwrap();
        assert!((native - 1.0).abs() < 1e-9);
        let against = sides(&work, &rounds).unwrap();
        let medians: Vec<f64> = against
            .iter()
            .map(|against| against.by_median.median_percent)
            .collect();
        assert!((medians[0] - 0.1).abs() < 1e-9 && (medians[1] - 2.0).abs() < 1e-9);
        assert_eq!(against[1].by_mean.median_percent, 0.0);
        assert_eq!(against[0].by_median.groups_percent.len(), 3);
        assert!(sides(&work, &[]).is_err());
    }
}
