//! The columns of `turnstile top`: one table, for the screen, for text and for CSV.

use turnstile_api::view::{AccountRow, Row, View, WaitingSample};

/// A column.
pub(super) struct Column {
    /// Its head.
    pub(super) head: &'static str,
    /// Characters that it takes.
    pub(super) width: usize,
    /// Shown on screens of at least this width.
    pub(super) from_width: u16,
    /// Text is left-aligned, numbers are right-aligned.
    pub(super) left: bool,
    /// Its text for a tenant.
    pub(super) cell: fn(&Row) -> String,
    /// Its sort key, the largest first; text is sorted by the cell.
    pub(super) key: Option<fn(&Row) -> f64>,
}

/// The bars of entitled and received time follow this many columns.
pub(super) const BARS_AFTER: usize = 6;

/// The columns, from left to right.
pub(super) const COLUMNS: [Column; 15] = [
    text("TENANT", 20, 0, |row| row.name.clone()),
    text("STATE", 5, 0, |row| row.doing.name().to_owned()),
    number(
        "WEIGHT",
        6,
        60,
        |row| f64::from(row.weight),
        |row| row.weight.to_string(),
    ),
    number(
        "CAP%",
        6,
        80,
        |row| row.cap.unwrap_or(1.0),
        |row| row.cap.map_or_else(|| "max".to_owned(), percent),
    ),
    number(
        "ENTITLED%",
        9,
        0,
        |row| row.entitled,
        |row| percent(row.entitled),
    ),
    number(
        "GPU%",
        6,
        0,
        |row| row.received,
        |row| percent(row.received),
    ),
    number(
        "WAIT%",
        6,
        72,
        |row| row.waiting,
        |row| percent(row.waiting),
    ),
    number("HELD%", 6, 72, |row| row.held, |row| percent(row.held)),
    number(
        "COPY%",
        6,
        88,
        |row| row.copying,
        |row| percent(row.copying),
    ),
    number(
        "SW/S",
        6,
        80,
        |row| row.switches_per_s,
        |row| format!("{:.0}", row.switches_per_s),
    ),
    number(
        "MEM",
        8,
        96,
        |row| on_the_gpu(row).map_or(0.0, |bytes| bytes as f64),
        |row| bytes(on_the_gpu(row)),
    ),
    number("SWAPPED", 8, 96, swapped, |row| {
        bytes(row.memory.map(|memory| memory.swapped_bytes))
    }),
    number("PINNED", 8, 176, pinned, |row| {
        bytes(row.memory.map(|memory| memory.pinned_bytes))
    }),
    number(
        "GPU-SEC",
        10,
        0,
        |row| row.gpu_seconds,
        |row| format!("{:.1}", row.gpu_seconds),
    ),
    text("ACCOUNT", 14, 180, |row| row.account.clone()),
];

/// What accounts received of what they were entitled to, where there are several.
pub(super) fn accounts(view: &View) -> Option<String> {
    if view.accounts.len() < 2 {
        return None;
    }
    let account = |row: &AccountRow| {
        let (received, entitled) = (percent(row.received), percent(row.entitled));
        format!("{} {received} of {entitled}%", row.name)
    };
    let accounts: Vec<String> = view.accounts.iter().map(account).collect();
    Some(format!("accounts: {}", accounts.join(", ")))
}

/// VMs that wait for a place, in line, and why the first does.
pub(super) fn waiting(view: &View) -> Option<String> {
    let first = view.waiting.first()?;
    let one = |(place, vm): (usize, &WaitingSample)| format!("{place} {}", vm.name);
    let line: Vec<String> = (1..).zip(&view.waiting).map(one).collect();
    Some(format!("waiting: {} ({})", line.join(", "), first.reason))
}

const fn text(
    head: &'static str,
    width: usize,
    from_width: u16,
    cell: fn(&Row) -> String,
) -> Column {
    Column {
        head,
        width,
        from_width,
        left: true,
        cell,
        key: None,
    }
}

const fn number(
    head: &'static str,
    width: usize,
    from_width: u16,
    key: fn(&Row) -> f64,
    cell: fn(&Row) -> String,
) -> Column {
    Column {
        head,
        width,
        from_width,
        left: false,
        cell,
        key: Some(key),
    }
}

fn on_the_gpu(row: &Row) -> Option<u64> {
    let resident = row.memory.map(|memory| memory.resident_bytes);
    resident.or(row.held_bytes)
}

fn swapped(row: &Row) -> f64 {
    row.memory.map_or(0.0, |memory| memory.swapped_bytes as f64)
}

fn pinned(row: &Row) -> f64 {
    row.memory.map_or(0.0, |memory| memory.pinned_bytes as f64)
}

/// The GPU of a view, by its identity where that is known.
pub(super) fn gpu(view: &View) -> String {
    match view.gpu.as_str() {
        "" => "GPU".to_owned(),
        gpu => format!("GPU {gpu}"),
    }
}

/// A part of one GPU as percent.
pub(super) fn percent(part: f64) -> String {
    format!("{:.1}", part * 100.0)
}

/// Bytes for reading; nothing where memory does not move and is not counted.
pub(super) fn bytes(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else {
        return "-".to_owned();
    };
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 10_240.0 {
        format!("{mib:.0}M")
    } else {
        format!("{:.1}G", mib / 1024.0)
    }
}

impl Column {
    /// A tenant's cell, cut or filled to the column's width.
    pub(super) fn padded(&self, text: &str) -> String {
        let width = self.width;
        if text.chars().count() > width {
            let kept: String = text.chars().take(width - 1).collect();
            return format!("{kept}…");
        }
        if self.left {
            format!("{text:<width$}")
        } else {
            format!("{text:>width$}")
        }
    }
}

/// The column of this head, in any case.
pub(super) fn by_head(head: &str) -> Option<usize> {
    let wanted = head.trim_end_matches('%');
    COLUMNS.iter().position(|column| {
        column
            .head
            .trim_end_matches('%')
            .eq_ignore_ascii_case(wanted)
    })
}

/// Sorts by a column.
pub(super) fn sort(rows: &mut [Row], by: usize) {
    let Some(column) = COLUMNS.get(by) else {
        return;
    };
    match column.key {
        Some(key) => rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.tenant.cmp(&b.tenant))),
        None => rows.sort_by_key(|row| ((column.cell)(row), row.tenant)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, received: f64) -> Row {
        Row {
            name: name.to_owned(),
            received,
            ..Row::default()
        }
    }

    #[test]
    fn numbers_sort_down_and_names_up() {
        let mut rows = [row("b", 0.1), row("c", 0.7), row("a", 0.2)];
        let names = |rows: &[Row]| rows.iter().map(|row| row.name.clone()).collect::<String>();
        sort(&mut rows, by_head("gpu").unwrap());
        assert_eq!(names(&rows), "cab");
        sort(&mut rows, by_head("TENANT").unwrap());
        assert_eq!(names(&rows), "abc");
        assert_eq!(by_head("nonsense"), None);
    }

    #[test]
    fn a_cell_is_as_wide_as_its_column() {
        for column in &COLUMNS {
            for text in [
                "",
                "x",
                "a name that is longer than any column, with ümlauts",
            ] {
                assert_eq!(column.padded(text).chars().count(), column.width);
            }
        }
    }

    #[test]
    fn bytes_are_short() {
        assert_eq!(bytes(None), "-");
        assert_eq!(bytes(Some(64 << 20)), "64M");
        assert_eq!(bytes(Some(141 << 30)), "141.0G");
    }
}
