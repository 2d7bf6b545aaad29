//! Points of the calendar as exports write them: UTC, always with a Z.

use crate::record::UnixNanos;
use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime, Time};

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600 * SECOND_NS;

fn date_time(at: UnixNanos) -> OffsetDateTime {
    // PANIC: none; 64 bits of nanoseconds end in 2554, this calendar in 9999
    OffsetDateTime::from_unix_timestamp_nanos(at.0.into()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn nanos(at: OffsetDateTime) -> Option<UnixNanos> {
    u64::try_from(at.unix_timestamp_nanos()).ok().map(UnixNanos)
}

/// To the second, as FOCUS requires.
pub(super) fn show_second(at: UnixNanos) -> String {
    let t = date_time(at);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        t.year(),
        u8::from(t.month()),
        t.day(),
        t.hour(),
        t.minute(),
        t.second()
    )
}

/// To the nanosecond, always nine digits.
pub fn show_time(at: UnixNanos) -> String {
    let mut text = show_second(at);
    text.pop();
    format!("{text}.{:09}Z", at.0 % SECOND_NS)
}

/// A point of the calendar in the form of RFC 3339, in any zone; none for another form, or a time
/// before 1970.
pub fn parse_time(text: &str) -> Option<UnixNanos> {
    nanos(OffsetDateTime::parse(text, &Rfc3339).ok()?)
}

/// Beginning of the UTC hour.
pub const fn hour_of(at: UnixNanos) -> UnixNanos {
    UnixNanos(at.0 / HOUR_NS * HOUR_NS)
}

/// End of the UTC hour that begins at `hour`.
pub(super) const fn hour_after(hour: UnixNanos) -> UnixNanos {
    UnixNanos(hour.0.saturating_add(HOUR_NS))
}

/// Beginning and end of the UTC month.
pub(super) fn month_of(at: UnixNanos) -> (UnixNanos, UnixNanos) {
    let t = date_time(at);
    let begin = |year, month: Month| {
        let date = Date::from_calendar_date(year, month, 1).ok()?;
        nanos(OffsetDateTime::new_utc(date, Time::MIDNIGHT))
    };
    let (year, month) = (t.year(), t.month());
    let next = if month == Month::December {
        year + 1
    } else {
        year
    };
    // PANIC: none; months of years that exist
    let start = begin(year, month).unwrap_or_default();
    (start, begin(next, month.next()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_and_read_back() {
        let at = parse_time("2026-11-20T14:30:00.5+01:00").unwrap();
        assert_eq!(show_time(at), "2026-11-20T13:30:00.500000000Z");
        assert_eq!(show_second(hour_of(at)), "2026-11-20T13:00:00Z");
        assert_eq!(parse_time(&show_time(at)), Some(at));
        for bad in [
            "2026-11-20 13:00:00",
            "2026-11-20T13:00:00",
            "yesterday",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
        assert_eq!(show_second(UnixNanos(u64::MAX)), "2554-07-21T23:34:33Z");
    }

    #[test]
    fn months_end_where_the_next_begin() {
        let month = |text| {
            let (start, end) = month_of(parse_time(text).unwrap());
            (show_second(start), show_second(end))
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            month("2026-12-31T23:59:59.9Z"),
            pair("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
        );
        assert_eq!(
            month("2028-02-29T00:00:00Z"),
            pair("2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z")
        );
    }
}
