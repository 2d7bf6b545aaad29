//! Tables as Apache Parquet: columns and values as in the CSV, uncompressed, in groups of rows.

use super::ExportError;
use super::table::{Cell, Column, Kind, Table};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use std::io::Write;
use std::sync::Arc;

/// Digits after the point, as a column has one scale: nine of a quantity and nine of a price.
const SCALE: i32 = 18;
/// Most decimal digits that 128 bits hold.
const PRECISION: i32 = 38;
/// Rows kept in memory before a group is written.
const GROUP_ROWS: usize = 16_384;

struct File<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    kinds: Vec<Kind>,
    rows: Vec<Vec<Cell>>,
}

pub(super) fn open<'a>(
    columns: &[Column],
    out: &'a mut (dyn Write + Send),
) -> Result<Box<dyn Table + 'a>, ExportError> {
    let fields: Result<Vec<TypePtr>, ParquetError> = columns
        .iter()
        .map(|(name, kind)| Ok(Arc::new(field(name, *kind)?)))
        .collect();
    let schema = Type::group_type_builder("turnstile")
        .with_fields(fields?)
        .build()?;
    let properties = WriterProperties::builder()
        .set_created_by(concat!("turnstile ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    Ok(Box::new(File {
        writer: SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?,
        kinds: columns.iter().map(|column| column.1).collect(),
        rows: Vec::new(),
    }))
}

fn field(name: &str, kind: Kind) -> Result<Type, ParquetError> {
    let of = |physical| {
        Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL)
    };
    match kind {
        Kind::Text => of(Physical::BYTE_ARRAY).with_logical_type(Some(LogicalType::String)),
        Kind::Integer => of(Physical::INT64),
        Kind::Decimal => of(Physical::FIXED_LEN_BYTE_ARRAY)
            .with_length(16)
            .with_precision(PRECISION)
            .with_scale(SCALE)
            .with_logical_type(Some(LogicalType::decimal(SCALE, PRECISION))),
    }
    .build()
}

fn wrong(cell: &Cell) -> ParquetError {
    ParquetError::General(format!("{cell:?} does not fit its column"))
}

fn integer(cell: &Cell) -> Result<i64, ParquetError> {
    match cell {
        Cell::Integer(number) => i64::try_from(*number).map_err(|_| wrong(cell)),
        _ => Err(wrong(cell)),
    }
}

fn text(cell: &Cell) -> Result<ByteArray, ParquetError> {
    match cell {
        Cell::Text(text) => Ok(ByteArray::from(text.as_str())),
        _ => Err(wrong(cell)),
    }
}

fn decimal(cell: &Cell) -> Result<FixedLenByteArray, ParquetError> {
    let Cell::Decimal(number) = cell else {
        return Err(wrong(cell));
    };
    let missing = u32::try_from(SCALE)
        .unwrap_or_default()
        .checked_sub(number.scale());
    let shifted = missing
        .and_then(|missing| 10_i128.checked_pow(missing))
        .and_then(|factor| number.mantissa().checked_mul(factor))
        .ok_or_else(|| wrong(cell))?;
    Ok(ByteArray::from(shifted.to_be_bytes().to_vec()).into())
}

impl<W: Write + Send> File<W> {
    fn flush(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for index in 0..self.kinds.len() {
            let column = || rows.iter().map(|row| &row[index]);
            let present: Vec<i16> = column()
                .map(|cell| i16::from(*cell != Cell::Null))
                .collect();
            let values = || column().filter(|cell| **cell != Cell::Null);
            let Some(mut writer) = group.next_column()? else {
                return Err(ParquetError::General("fewer columns than kinds".into()));
            };
            match writer.untyped() {
                ColumnWriter::Int64ColumnWriter(writer) => {
                    let values: Result<Vec<_>, _> = values().map(integer).collect();
                    writer.write_batch(&values?, Some(&present), None)?;
                }
                ColumnWriter::ByteArrayColumnWriter(writer) => {
                    let values: Result<Vec<_>, _> = values().map(text).collect();
                    writer.write_batch(&values?, Some(&present), None)?;
                }
                ColumnWriter::FixedLenByteArrayColumnWriter(writer) => {
                    let values: Result<Vec<_>, _> = values().map(decimal).collect();
                    writer.write_batch(&values?, Some(&present), None)?;
                }
                _ => return Err(ParquetError::General("a column of another kind".into())),
            }
            writer.close()?;
        }
        group.close()?;
        Ok(())
    }
}

impl<W: Write + Send> Table for File<W> {
    fn row(&mut self, cells: &[Cell]) -> Result<(), ExportError> {
        self.rows.push(cells.to_vec());
        if self.rows.len() >= GROUP_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), ExportError> {
        self.flush()?;
        self.writer.close()?;
        Ok(())
    }
}
