//! The span of time of `usage show` and `usage export`, as it is written on a command line.
//!
//! In: options, and the time now. Out: beginning and end. Both subcommands call it. Times without a
//! zone are UTC, as in the ledger.

use std::time::{SystemTime, UNIX_EPOCH};

use turnstile_accounting::Nanos;
use turnstile_accounting::export::{day_of, hour_of, month_of, parse_date};
use turnstile_accounting::record::UnixNanos;

/// Which span of time.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct Span {
    /// Windows that begin at or after this time: 2026-11-20, "2026-11-20 13:00", 13:00, yesterday;
    /// UTC without a zone
    #[arg(long, value_parser = time, conflicts_with_all = ["last", "day", "month"])]
    from: Option<UnixNanos>,
    /// Windows that begin before this time; now unless named
    #[arg(long, value_parser = time, requires = "from")]
    to: Option<UnixNanos>,
    /// The time until now: 90s, 30m, 1h, 7d
    #[arg(long, value_name = "LENGTH", value_parser = length, conflicts_with_all = ["day", "month"])]
    last: Option<Nanos>,
    /// One day (UTC), today unless named
    #[arg(long, value_name = "DATE", value_parser = time, num_args = 0..=1, conflicts_with = "month")]
    day: Option<Option<UnixNanos>>,
    /// One month (UTC) as 2026-11, the present one unless named
    #[arg(long, value_name = "MONTH", value_parser = time, num_args = 0..=1)]
    month: Option<Option<UnixNanos>>,
}

/// The time now.
pub(super) fn now() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // CAST: until 2554
    UnixNanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// A time of the command line.
pub(super) fn time(text: &str) -> Result<UnixNanos, String> {
    parse_date(text, now())
        .ok_or_else(|| "not a time as 2026-11-20, \"2026-11-20 13:00\", 13:00 or yesterday".into())
}

/// A length of time: numbers and units, the units in descending order or alone.
fn length(text: &str) -> Result<Nanos, String> {
    let refused = || "not a length of time as 90s, 30m, 1h30m or 7d".to_owned();
    let (mut sum, mut rest) = (0_u64, text.trim());
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| refused())?;
        let unit = rest[digits..].chars().next().ok_or_else(refused)?;
        let unit_s = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return Err(refused()),
        };
        let length = number.checked_mul(unit_s * 1_000_000_000);
        sum = length
            .and_then(|length| sum.checked_add(length))
            .ok_or_else(refused)?;
        rest = &rest[digits + 1..];
    }
    if sum == 0 {
        Err(refused())
    } else {
        Ok(Nanos(sum))
    }
}

impl Span {
    /// Beginning and end; none if no option names any.
    pub(super) fn named(&self, now: UnixNanos) -> Option<(UnixNanos, UnixNanos)> {
        if let Some(last) = self.last {
            return Some((UnixNanos(now.0.saturating_sub(last.0)), now));
        }
        if let Some(day) = self.day {
            return Some(day_of(day.unwrap_or(now)));
        }
        if let Some(month) = self.month {
            return Some(month_of(month.unwrap_or(now)));
        }
        Some((self.from?, self.to.unwrap_or(now)))
    }

    /// Beginning and end of what a running daemon is to show: this hour unless named, and not after
    /// now.
    pub(super) fn shown(&self, now: UnixNanos) -> (UnixNanos, UnixNanos) {
        let (from, to) = self.named(now).unwrap_or((hour_of(now), now));
        (from, to.min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use turnstile_accounting::export::show_time;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        span: Span,
    }

    fn now() -> UnixNanos {
        parse_date("2026-11-28 03:45:10", UnixNanos(0)).unwrap()
    }

    fn span(args: &[&str]) -> Option<Span> {
        let line = Line::try_parse_from(["usage"].iter().chain(args));
        line.ok().map(|line| line.span)
    }

    #[test]
    fn spans_match_their_options() {
        let shown = |args: &[&str]| {
            let (from, to) = span(args).unwrap().shown(now());
            let short = |at| show_time(at)[..16].to_owned();
            (short(from), short(to))
        };
        let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let end = "2026-11-28T03:45";
        assert_eq!(shown(&[]), pair("2026-11-28T03:00", end));
        assert_eq!(shown(&["--last", "1h"]), pair("2026-11-28T02:45", end));
        assert_eq!(shown(&["--last", "1h30m"]), pair("2026-11-28T02:15", end));
        assert_eq!(shown(&["--last", "7d"]), pair("2026-11-21T03:45", end));
        assert_eq!(shown(&["--day"]), pair("2026-11-28T00:00", end));
        assert_eq!(
            shown(&["--day", "2026-11-20"]),
            pair("2026-11-20T00:00", "2026-11-21T00:00")
        );
        assert_eq!(shown(&["--month"]), pair("2026-11-01T00:00", end));
        assert_eq!(
            shown(&["--month", "2026-10"]),
            pair("2026-10-01T00:00", "2026-11-01T00:00")
        );
        assert_eq!(
            shown(&["--from", "2026-11-20 13:00", "--to", "2026-11-20T14:00:00Z"]),
            pair("2026-11-20T13:00", "2026-11-20T14:00")
        );
        assert_eq!(
            shown(&["--from", "2026-11-20"]),
            pair("2026-11-20T00:00", end)
        );
        assert_eq!(span(&[]).unwrap().named(now()), None);
    }

    #[test]
    fn contradictory_and_empty_spans_are_refused() {
        for args in [
            &["--last", "1h", "--day"][..],
            &["--month", "--day"],
            &["--from", "2026-11-20", "--last", "1h"],
            &["--to", "2026-11-20"],
            &["--last", "1x"],
            &["--last", "0s"],
            &["--last", "h"],
            &["--last", "99999999999w"],
            &["--day", "2026-13-01"],
        ] {
            assert!(span(args).is_none(), "{args:?}");
        }
    }
}
