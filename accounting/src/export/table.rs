//! Rows of cells, and the trait of their files.

use super::ExportError;
use rust_decimal::Decimal;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text; also times and UUIDs.
    Text,
    /// A whole number.
    Integer,
    /// An exact decimal.
    Decimal,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// No value: in CSV an empty field.
    Null,
    /// Text, never empty.
    Text(String),
    /// A whole number.
    Integer(u64),
    /// An exact decimal.
    Decimal(Decimal),
}

/// A column.
pub(super) type Column = (&'static str, Kind);

/// A file that takes rows.
pub(super) trait Table {
    fn row(&mut self, cells: &[Cell]) -> Result<(), ExportError>;
    fn finish(self: Box<Self>) -> Result<(), ExportError>;
}

impl Cell {
    /// Text, or no value if it is empty.
    pub(super) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_empty() {
            Self::Null
        } else {
            Self::Text(text)
        }
    }

    /// The text, or no value.
    pub(super) fn maybe(text: Option<&String>) -> Self {
        text.map_or(Self::Null, Self::text)
    }

    /// As written to a CSV.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Decimal(number) => show_decimal(*number),
        }
    }
}

/// A decimal without trailing zeros, and with a point: a column of whole numbers would otherwise be
/// read as integers.
pub(super) fn show_decimal(number: Decimal) -> String {
    let text = number.normalize().to_string();
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_a_point_and_no_idle_zeros() {
        let shown = |text: &str| show_decimal(text.parse().unwrap());
        assert_eq!(shown("1512"), "1512.0");
        assert_eq!(shown("1512.250"), "1512.25");
        assert_eq!(shown("0.000000000"), "0.0");
        assert_eq!(shown("3600000000000.000000001"), "3600000000000.000000001");
    }
}
