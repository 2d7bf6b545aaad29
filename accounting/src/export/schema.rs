//! The columns of a bill, for programs that load it: the schema metadata of FOCUS. SOURCE:
//! focus.finops.org, "Metadata", Schema: SchemaId, FocusVersion, CreationDate, DataGenerator,
//! ColumnDefinition.

use super::focus::{FocusVersion, columns};
use super::table::Kind;
use crate::ids::NAMESPACE;
use serde_json::{Value, json};
use uuid::Uuid;

/// Time of the last change of the columns; the id changes with it.
const CREATED: &str = "2026-11-28T00:00:00Z";

/// The schema of the bills of one version, equal each time.
pub fn schema(version: FocusVersion) -> Value {
    let definitions: Vec<Value> = columns(version)
        .into_iter()
        .map(|(name, kind)| json!({ "ColumnName": name, "DataType": data_type(name, kind) }))
        .collect();
    let version = match version {
        FocusVersion::V1_2 => "1.2",
        FocusVersion::V1_4 => "1.4",
    };
    let id = format!("focus schema\n{version}\n{CREATED}");
    json!({
        "SchemaId": Uuid::new_v5(&NAMESPACE, id.as_bytes()),
        "FocusVersion": version,
        "CreationDate": CREATED,
        "DataGenerator": concat!("turnstile ", env!("CARGO_PKG_VERSION")),
        "ColumnDefinition": definitions,
    })
}

fn data_type(name: &str, kind: Kind) -> &'static str {
    match kind {
        Kind::Integer | Kind::Decimal => "DECIMAL",
        Kind::Text if name.ends_with("PeriodStart") || name.ends_with("PeriodEnd") => "DATETIME",
        Kind::Text if ["SkuPriceDetails", "Tags"].contains(&name) => "JSON",
        Kind::Text => "STRING",
    }
}
