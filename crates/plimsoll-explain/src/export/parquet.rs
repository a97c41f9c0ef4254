//! Tables as Apache Parquet files, uncompressed, in row groups of a hundred thousand rows.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::table::{Cell, ColumnKind, Table};
use super::{Export, Written};

/// Rows of one group.
const GROUP: usize = 100_000;

/// Writes a table as a Parquet file.
///
/// # Errors
/// What the receiver or the format's writer reports.
pub fn write_parquet(export: &Export<'_, '_>, table: Table, to: impl Write + Send) -> Written {
    write(export, table, to).map_err(std::io::Error::other)
}

/// Values of one column of a group, with a mark for each row that has one.
#[derive(Default)]
struct Values {
    integers: Vec<i64>,
    texts: Vec<ByteArray>,
    present: Vec<i16>,
}

fn write(export: &Export<'_, '_>, table: Table, to: impl Write + Send) -> Result<()> {
    let fields: Result<Vec<_>> = table
        .columns()
        .iter()
        .map(|column| {
            let (physical, logical) = match column.kind {
                ColumnKind::Integer => (Physical::INT64, ConvertedType::NONE),
                ColumnKind::Text => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
            };
            Type::primitive_type_builder(column.name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_converted_type(logical)
                .build()
                .map(Arc::new)
        })
        .collect();
    let schema = Type::group_type_builder(table.name()).with_fields(fields?).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(to, Arc::new(schema), properties)?;
    let mut columns: Vec<Values> = table.columns().iter().map(|_| Values::default()).collect();
    table.rows(export, &mut |cells| {
        for (values, cell) in columns.iter_mut().zip(cells) {
            match cell {
                Cell::Null => values.present.push(0),
                Cell::Integer(number) => {
                    values.present.push(1);
                    values.integers.push(number.cast_signed());
                }
                Cell::Text(text) => {
                    values.present.push(1);
                    values.texts.push(ByteArray::from(*text));
                }
            }
        }
        if columns.first().is_some_and(|values| values.present.len() == GROUP) {
            flush(&mut writer, &mut columns).map_err(std::io::Error::other)?;
        }
        Ok(())
    })?;
    if columns.first().is_some_and(|values| !values.present.is_empty()) {
        flush(&mut writer, &mut columns)?;
    }
    writer.close()?;
    Ok(())
}

fn flush<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    columns: &mut [Values],
) -> Result<()> {
    let mut group = writer.next_row_group()?;
    for values in columns {
        let Values { integers, texts, present } = std::mem::take(values);
        let Some(mut column) = group.next_column()? else { break };
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(typed) => {
                typed.write_batch(&integers, Some(&present), None)?;
            }
            ColumnWriter::ByteArrayColumnWriter(typed) => {
                typed.write_batch(&texts, Some(&present), None)?;
            }
            // The schema has no other types.
            _ => {}
        }
        column.close()?;
    }
    group.close()?;
    Ok(())
}
