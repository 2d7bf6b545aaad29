//! CloudEvents 1.0 in JSON, one per line. Numbers are strings, as JSON readers convert them to
//! floats.
//!
//! The data of a usage and of unknown time has the columns of the table of rows, by their names.
//! [`schema()`] describes them; each event names its schema.

use super::rows::{COLUMNS, cells, unknown_cells};
use super::table::{Cell, Column, Kind};
use super::unknown::Unknown;
use super::{ExportError, Exported, Request, Writer, show_time};
use crate::ids::entry_id;
use crate::record::{Body, EngineRecord, Entry, GpuIdentity, TenantRecord, UnixNanos};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::Write;

/// What one tenant used in one window.
const USAGE: &str = "dev.turnstile.vm.gpu_usage.v2";
/// Where the time of a GPU's engines went in one window.
const CONSERVATION: &str = "dev.turnstile.gpu.conservation.v2";
/// Time without a record.
const UNKNOWN: &str = "dev.turnstile.gpu.unknown.v2";

/// The schema of the data of a type of event.
const SCHEMA: &str = "https://turnstile.dev/schemas/events-v2.json";

/// Quantities of an engine, by the names of its record.
const ENGINE: [&str; 9] = [
    "engine",
    "compute",
    "used_ns",
    "fault_ns",
    "switching_ns",
    "idle_ns",
    "unobserved_ns",
    "gap_ns",
    "error_bound_ns",
];

/// One event. `time` is the window's end, equal each time the event is sent: some receivers detect
/// copies by id and time.
#[derive(Serialize)]
struct Event<'a> {
    specversion: &'a str,
    r#type: &'a str,
    source: &'a str,
    subject: &'a str,
    id: String,
    time: String,
    datacontenttype: &'a str,
    dataschema: String,
    data: Map<String, Value>,
}

/// What an event is of.
struct Head<'a> {
    r#type: &'a str,
    subject: String,
    id: uuid::Uuid,
    end: UnixNanos,
}

pub(super) struct Events<'a> {
    request: &'a Request,
    out: &'a mut (dyn Write + Send),
    exported: Exported,
}

impl<'a> Events<'a> {
    pub(super) fn new(request: &'a Request, out: &'a mut (dyn Write + Send)) -> Self {
        let exported = Exported::default();
        Self {
            request,
            out,
            exported,
        }
    }

    fn write(
        &mut self,
        gpu: &GpuIdentity,
        head: &Head<'_>,
        data: Map<String, Value>,
    ) -> Result<(), ExportError> {
        let event = Event {
            specversion: "1.0",
            r#type: head.r#type,
            source: &format!("/nodes/{}", gpu.node),
            subject: &head.subject,
            id: head.id.to_string(),
            time: show_time(head.end),
            datacontenttype: "application/json",
            dataschema: format!("{SCHEMA}#/$defs/{}", head.r#type),
            data,
        };
        serde_json::to_writer(&mut self.out, &event)?;
        self.out.write_all(b"\n")?;
        self.exported.rows += 1;
        Ok(())
    }
}

/// The columns of a row that have something to say of every event of its type, with their values.
fn data(row: Vec<Cell>, has: fn(&str) -> bool) -> Map<String, Value> {
    let value = |(column, cell): (&Column, Cell)| {
        let value = match cell {
            Cell::Null => Value::Null,
            cell => cell.shown().into(),
        };
        (column.0.to_owned(), value)
    };
    let chosen = COLUMNS.iter().zip(row).filter(|(column, _)| has(column.0));
    chosen.map(value).collect()
}

/// Columns of time without a record; the others are a tenant's.
fn of_unknown(name: &str) -> bool {
    [
        "node",
        "gpu",
        "gpu_model",
        "boot_id",
        "seq",
        "window_start",
        "window_end",
        "window_ns",
        "unknown_ns",
        "unknown_cause",
    ]
    .contains(&name)
}

fn of_usage(name: &str) -> bool {
    !["event_id", "unknown_ns", "unknown_cause"].contains(&name)
}

fn of_conservation(name: &str) -> bool {
    of_unknown(name) && of_usage(name)
}

fn engine(record: &EngineRecord) -> Value {
    let ns = |name: &str| match name {
        "engine" => record.engine.0.into(),
        "compute" => record.compute.into(),
        "used_ns" => record.used_ns.0.to_string().into(),
        "fault_ns" => record.fault_ns.0.to_string().into(),
        "switching_ns" => record.switching_ns.0.to_string().into(),
        "idle_ns" => record.idle_ns.0.to_string().into(),
        "unobserved_ns" => record.unobserved_ns.0.to_string().into(),
        "gap_ns" => record.gap_ns.0.to_string().into(),
        _ => Value::String(record.error_bound_ns.0.to_string()),
    };
    let named = ENGINE.map(|name| (name.to_owned(), ns(name)));
    Value::Object(named.into_iter().collect())
}

impl Writer for Events<'_> {
    fn unknown(&mut self, gpu: &GpuIdentity, unknown: Unknown<'_>) -> Result<(), ExportError> {
        let head = Head {
            r#type: UNKNOWN,
            subject: gpu.gpu.clone(),
            id: unknown.id(gpu),
            end: unknown.end,
        };
        let mut data = data(unknown_cells(gpu, &unknown), of_unknown);
        let digest = unknown.entry.map(|entry| entry.digest.to_string());
        data.insert("digest".to_owned(), digest.into());
        self.write(gpu, &head, data)?;
        self.exported.unknown_ns += unknown.unknown_ns;
        Ok(())
    }

    fn window(
        &mut self,
        gpu: &GpuIdentity,
        entry: &Entry,
        tenants: &[TenantRecord],
    ) -> Result<(), ExportError> {
        let end = entry.stretch.end;
        for record in tenants {
            if self.request.wants(record.tenant.id, &record.tenant.name) {
                let head = Head {
                    r#type: USAGE,
                    subject: record.tenant.id.to_string(),
                    id: record.id,
                    end,
                };
                self.write(gpu, &head, data(cells(gpu, entry, record), of_usage))?;
                self.exported.engine_ns += u128::from(record.engine_ns.0);
            }
        }
        let Body::Window { engines, .. } = &entry.body else {
            return Ok(());
        };
        if self.request.tenant.is_some() {
            return Ok(());
        }
        let head = Head {
            r#type: CONSERVATION,
            subject: gpu.gpu.clone(),
            id: entry_id(gpu, &entry.stretch),
            end,
        };
        let whole = Unknown {
            cause: "",
            entry: Some(entry),
            start: entry.stretch.start,
            end,
            unknown_ns: 0,
        };
        let mut data = data(unknown_cells(gpu, &whole), of_conservation);
        data.insert("engines".to_owned(), engines.iter().map(engine).collect());
        data.insert("digest".to_owned(), entry.digest.to_string().into());
        self.write(gpu, &head, data)
    }

    fn finish(self: Box<Self>) -> Result<Exported, ExportError> {
        self.out.flush()?;
        Ok(self.exported)
    }
}

/// The JSON schema of the data of all events, by type.
pub fn schema() -> Value {
    let text = |pattern: &str| json!({ "type": ["string", "null"], "pattern": pattern });
    let column = |(name, kind): &Column| match kind {
        Kind::Integer => text("^[0-9]+$"),
        _ if *name == "memory_byte_ns" => text("^[0-9]+$"),
        _ => json!({ "type": ["string", "null"] }),
    };
    let object = |has: fn(&str) -> bool, more: &[(&str, Value)]| {
        let columns = COLUMNS.iter().filter(|of| has(of.0));
        let columns = columns.map(|of| (of.0.to_owned(), column(of)));
        let more = more
            .iter()
            .map(|(name, of)| ((*name).to_owned(), of.clone()));
        let properties: Map<String, Value> = columns.chain(more).collect();
        let required: Vec<&String> = properties.keys().collect();
        json!({ "type": "object", "required": required, "properties": properties })
    };
    let digest = ("digest", json!({ "type": ["string", "null"] }));
    let engine = ENGINE.map(|name| {
        let of = match name {
            "engine" => json!({ "type": "integer" }),
            "compute" => json!({ "type": "boolean" }),
            _ => text("^[0-9]+$"),
        };
        (name.to_owned(), of)
    });
    let engine: Map<String, Value> = engine.into_iter().collect();
    let engines = json!({ "type": "array", "items": { "type": "object", "properties": engine } });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "$defs": {
            USAGE: object(of_usage, &[]),
            CONSERVATION: object(of_conservation, &[("engines", engines), digest.clone()]),
            UNKNOWN: object(of_unknown, &[digest]),
        },
    })
}
