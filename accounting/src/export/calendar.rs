//! Points of the calendar as exports write them: UTC, always with a Z.

use crate::record::UnixNanos;
use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime, Time};

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600 * SECOND_NS;
const DAY_NS: u64 = 24 * HOUR_NS;

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

/// A point of the calendar as people write it, in UTC without a zone. Forms: those of
/// [`parse_time`], a date with or without a time, a month (its beginning), a time of the present
/// day, `now`, `today` and `yesterday`.
pub fn parse_date(text: &str, now: UnixNanos) -> Option<UnixNanos> {
    let text = text.trim().to_uppercase();
    let today = day_of(now).0;
    match text.as_str() {
        "NOW" => return Some(now),
        "TODAY" => return Some(today),
        "YESTERDAY" => return Some(day_of(UnixNanos(today.0.saturating_sub(1))).0),
        _ => {}
    }
    let text = text.replacen(' ', "T", 1);
    let present = show_second(today);
    let day = present.trim_end_matches("00:00:00Z");
    let forms = [
        ("", ""),
        ("", "Z"),
        ("", ":00Z"),
        ("", "T00:00:00Z"),
        ("", "-01T00:00:00Z"),
        (day, "Z"),
        (day, ":00Z"),
    ];
    let mut read = forms.map(|(before, after)| parse_time(&format!("{before}{text}{after}")));
    read.iter_mut().find_map(Option::take)
}

/// Beginning and end of the UTC day.
pub const fn day_of(at: UnixNanos) -> (UnixNanos, UnixNanos) {
    let start = at.0 / DAY_NS * DAY_NS;
    (UnixNanos(start), UnixNanos(start.saturating_add(DAY_NS)))
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
pub fn month_of(at: UnixNanos) -> (UnixNanos, UnixNanos) {
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
    fn dates_are_read_as_people_write_them() {
        let now = parse_time("2026-11-28T03:45:10Z").unwrap();
        for (text, expected) in [
            ("2026-11-20T14:30:00+01:00", "2026-11-20T13:30:00Z"),
            ("2026-11-20 13:30:05", "2026-11-20T13:30:05Z"),
            ("2026-11-20 13:30", "2026-11-20T13:30:00Z"),
            ("2026-11-20t13:30:00z", "2026-11-20T13:30:00Z"),
            (" 2026-11-20 ", "2026-11-20T00:00:00Z"),
            ("2026-11", "2026-11-01T00:00:00Z"),
            ("13:30", "2026-11-28T13:30:00Z"),
            ("13:30:07", "2026-11-28T13:30:07Z"),
            ("now", "2026-11-28T03:45:10Z"),
            ("today", "2026-11-28T00:00:00Z"),
            ("Yesterday", "2026-11-27T00:00:00Z"),
        ] {
            let read = parse_date(text, now).map(show_second);
            assert_eq!(read.as_deref(), Some(expected), "{text}");
        }
        for bad in ["", "2026", "2026-13", "2026-11-31", "25:00", "tomorrow's"] {
            assert_eq!(parse_date(bad, now), None, "{bad}");
        }
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
