//! The file formats of tables.

use super::ExportError;
use super::table::{Cell, Column, Table};
use std::io::Write;

/// Format of a table's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Container {
    /// Comma-separated text, quoted where necessary (RFC 4180, lines end in a line feed).
    #[default]
    Csv,
    /// Apache Parquet; needs the feature of this name.
    Parquet,
}

impl Container {
    /// Begins a file with these columns.
    pub(super) fn open<'a>(
        self,
        columns: &[Column],
        out: &'a mut (dyn Write + Send),
    ) -> Result<Box<dyn Table + 'a>, ExportError> {
        match self {
            Self::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                writer.write_record(columns.iter().map(|column| column.0))?;
                Ok(Box::new(Csv(writer)))
            }
            #[cfg(feature = "parquet")]
            Self::Parquet => super::parquet::open(columns, out),
            #[cfg(not(feature = "parquet"))]
            Self::Parquet => Err(ExportError::NoParquet),
        }
    }
}

struct Csv<W: Write>(csv::Writer<W>);

impl<W: Write> Table for Csv<W> {
    fn row(&mut self, cells: &[Cell]) -> Result<(), ExportError> {
        Ok(self.0.write_record(cells.iter().map(Cell::shown))?)
    }

    fn finish(mut self: Box<Self>) -> Result<(), ExportError> {
        Ok(self.0.flush()?)
    }
}
