//! The columns: names, types, and how to get their values from a record.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use weir_flow::{FlowRecord, Totals, community_id};
use weir_frame::headers::protocol;

use crate::export::{Origin, Owner};
use crate::json::addresses_text;
use crate::patient_writer::PatientWriter;

/// Records of a row group.
pub(super) struct Group<'a> {
    pub records: &'a [FlowRecord],
    /// Origins, indexed by a record's interface.
    pub origins: &'a [Origin],
    pub is_biflow: bool,
}

/// A record, with its origin.
struct Row<'a> {
    record: &'a FlowRecord,
    origin: Option<&'a Origin>,
    is_biflow: bool,
}

/// A column of the file.
struct Column {
    name: &'static str,
    /// Whether values may be null.
    is_optional: bool,
    values: Values,
}

/// Type of a column, and the function that gets a value.
enum Values {
    /// Nanoseconds since the Unix epoch.
    Times(fn(&Row) -> u64),
    /// Unsigned numbers with this number of bits.
    Numbers(i8, fn(&Row) -> Option<u64>),
    Texts(fn(&Row) -> Option<String>),
}

use Values::{Numbers, Texts, Times};

const fn always(name: &'static str, values: Values) -> Column {
    Column { name, is_optional: false, values }
}

const fn optional(name: &'static str, values: Values) -> Column {
    Column { name, is_optional: true, values }
}

/// The columns, in the order of the fields in the JSON lines, except for the owner.
const COLUMNS: [Column; 22] = [
    always("start", Times(|row| row.record.first_ns)),
    always("end", Times(|row| row.record.last_ns)),
    optional("interface", Texts(|row| Some(row.origin?.interface.clone()))),
    optional("vlan", Numbers(16, |row| row.record.vlan.map(u64::from))),
    always("src_ip", Texts(|row| Some(addresses(row)[0].clone()))),
    always("dst_ip", Texts(|row| Some(addresses(row)[1].clone()))),
    optional("src_port", Numbers(16, |row| row.port(row.record.key.src_port))),
    optional("dst_port", Numbers(16, |row| row.port(row.record.key.dst_port))),
    always("proto", Numbers(8, |row| Some(row.record.key.protocol.into()))),
    optional("icmp_type", Numbers(8, |row| row.record.icmp.map(|(kind, _)| kind.into()))),
    optional("icmp_code", Numbers(8, |row| row.record.icmp.map(|(_, code)| code.into()))),
    always("packets", Numbers(64, |row| Some(row.record.forward.packets))),
    always("bytes", Numbers(64, |row| Some(row.record.forward.bytes))),
    optional("tcp_flags", Numbers(8, |row| row.flags(&row.record.forward))),
    optional("reverse_packets", Numbers(64, |row| Some(row.reverse()?.packets))),
    optional("reverse_bytes", Numbers(64, |row| Some(row.reverse()?.bytes))),
    optional("reverse_tcp_flags", Numbers(8, |row| row.flags(row.reverse()?))),
    always("end_reason", Texts(|row| Some(row.record.reason.name().to_owned()))),
    always(COMMUNITY_ID, Texts(|row| Some(community_id(&row.record.key, row.record.icmp)))),
    optional("owner_kind", Texts(|row| Some(row.owner()?.kind.clone()))),
    optional("owner_name", Texts(|row| Some(row.owner()?.name.clone()))),
    optional("owner_id", Texts(|row| row.owner()?.id.clone())),
];

const COMMUNITY_ID: &str = "community_id";

fn addresses(row: &Row) -> [String; 2] {
    addresses_text(&row.record.key.addresses)
}

impl<'a> Row<'a> {
    fn owner(&self) -> Option<&'a Owner> {
        self.origin?.owner.as_ref()
    }

    fn port(&self, port: u16) -> Option<u64> {
        self.record.key.has_known_ports().then_some(port.into())
    }

    fn reverse(&self) -> Option<&'a Totals> {
        self.is_biflow.then_some(&self.record.reverse)
    }

    fn flags(&self, totals: &Totals) -> Option<u64> {
        (self.record.key.protocol == protocol::TCP).then_some(totals.tcp_flags.into())
    }
}

/// Returns the schema, which is the same for every file.
pub(super) fn schema() -> TypePtr {
    let fields = COLUMNS.iter().map(|column| Arc::new(column.schema())).collect();
    let schema = Type::group_type_builder("flow").with_fields(fields).build();
    Arc::new(schema.expect("the names differ"))
}

impl Column {
    fn schema(&self) -> Type {
        let (physical, logical) = match self.values {
            // Timestamps are adjusted to UTC. Readers show them in UTC or in their own time zone.
            Times(_) => (Physical::INT64, LogicalType::timestamp(true, TimeUnit::NANOS)),
            Numbers(bits @ 64, _) => (Physical::INT64, LogicalType::integer(bits, false)),
            Numbers(bits, _) => (Physical::INT32, LogicalType::integer(bits, false)),
            Texts(_) => (Physical::BYTE_ARRAY, LogicalType::String),
        };
        let repetition = if self.is_optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let column = Type::primitive_type_builder(self.name, physical)
            .with_logical_type(Some(logical))
            .with_repetition(repetition);
        column.build().expect("the logical type fits the physical one")
    }

    /// Writes this column of a row group.
    fn write(
        &self,
        group: &Group,
        writer: &mut SerializedColumnWriter,
    ) -> Result<(), ParquetError> {
        let is_optional = self.is_optional;
        // Parquet stores unsigned numbers in signed types of the same width; the logical type marks them as unsigned.
        match self.values {
            Times(of) => {
                let times = group.rows().map(|row| Some(of(&row).try_into().unwrap_or(i64::MAX)));
                put::<Int64Type>(times, is_optional, writer)
            }
            Numbers(64, of) => put::<Int64Type>(
                group.rows().map(|row| Some(of(&row)? as i64)),
                is_optional,
                writer,
            ),
            Numbers(_, of) => put::<Int32Type>(
                group.rows().map(|row| Some(of(&row)? as i32)),
                is_optional,
                writer,
            ),
            Texts(of) => {
                let texts = group.rows().map(|row| Some(ByteArray::from(of(&row)?.into_bytes())));
                put::<ByteArrayType>(texts, is_optional, writer)
            }
        }
    }
}

/// Writes the values of a column. For a null, the definition level is 0 and there is no value.
fn put<T: DataType>(
    values: impl Iterator<Item = Option<T::T>>,
    is_optional: bool,
    writer: &mut SerializedColumnWriter,
) -> Result<(), ParquetError> {
    let (mut present, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    let levels = is_optional.then_some(&levels[..]);
    writer.typed::<T>().write_batch(&present, levels, None)?;
    Ok(())
}

/// Returns the settings for writing.
pub(super) fn properties() -> WriterPropertiesPtr {
    // Repeated values are stored in a dictionary. Start times and Community IDs rarely repeat.
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("weir version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_column_dictionary_enabled(ColumnPath::from(COMMUNITY_ID), false);
    for column in COLUMNS.iter().filter(|column| matches!(column.values, Times(_))) {
        properties = properties
            .set_column_dictionary_enabled(ColumnPath::from(column.name), false)
            .set_column_encoding(ColumnPath::from(column.name), Encoding::DELTA_BINARY_PACKED);
    }
    Arc::new(properties.build())
}

impl<'a> Group<'a> {
    /// Writes the records column by column, so that memory holds only one encoded column.
    pub fn write(
        &self,
        file: &mut SerializedFileWriter<PatientWriter<File>>,
    ) -> Result<(), ParquetError> {
        let mut group = file.next_row_group()?;
        for column in &COLUMNS {
            let mut writer = group.next_column()?.expect("a writer for each column of the schema");
            column.write(self, &mut writer)?;
            writer.close()?;
        }
        group.close()?;
        Ok(())
    }

    fn rows(&self) -> impl Iterator<Item = Row<'a>> {
        let Group { records, origins, is_biflow } = *self;
        records.iter().map(move |record| {
            let origin = origins.get(record.interface as usize);
            Row { record, origin, is_biflow }
        })
    }
}
