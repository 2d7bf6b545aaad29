//! CloudEvents 1.0 in JSON, one per line. Nanoseconds are strings, as JSON readers convert numbers
//! to floats.

use super::{ExportError, Exported, Request, Writer, show_time};
use crate::ids::entry_id;
use crate::record::{Body, Entry, GpuIdentity, TenantRecord};
use serde::Serialize;
use std::io::Write;

const USAGE: &str = "dev.turnstile.vm.gpu_usage.v1";
const CONSERVATION: &str = "dev.turnstile.gpu.conservation.v1";
const GAP: &str = "dev.turnstile.gpu.gap.v1";

/// One event. `time` is the window's end, equal each time the event is sent: some receivers detect
/// copies by id and time.
#[derive(Serialize)]
struct Event<'a, D> {
    specversion: &'a str,
    r#type: &'a str,
    source: &'a str,
    subject: &'a str,
    id: String,
    time: String,
    datacontenttype: &'a str,
    data: D,
}

/// The stretch of time and the GPU.
#[derive(Serialize)]
struct Place<'a> {
    window_start: String,
    window_end: String,
    window_ns: String,
    gpu_uuid: &'a str,
    gpu_model: &'a str,
    boot_id: String,
    seq: String,
}

#[derive(Serialize)]
struct Usage<'a> {
    #[serde(flatten)]
    place: Place<'a>,
    tenant: &'a str,
    kind: &'a str,
    account: Option<&'a str>,
    gpu_ns: String,
    estimated_ns: String,
    fault_ns: String,
    copy_ns: String,
    copy_bytes: Option<String>,
    held_ns: String,
    wait_ns: String,
    memory_byte_ns: Option<String>,
    weight: u32,
    cap: Option<Cap>,
    signals: String,
    error_bound_ns: String,
}

#[derive(Serialize)]
struct Cap {
    quota_ns: String,
    period_ns: String,
}

#[derive(Serialize)]
struct Conservation<'a> {
    #[serde(flatten)]
    place: Place<'a>,
    engines: Vec<Engine>,
    digest: String,
}

#[derive(Serialize)]
struct Engine {
    engine: u8,
    compute: bool,
    used_ns: String,
    fault_ns: String,
    switching_ns: String,
    idle_ns: String,
    unobserved_ns: String,
    gap_ns: String,
    error_bound_ns: String,
}

#[derive(Serialize)]
struct Gap<'a> {
    #[serde(flatten)]
    place: Place<'a>,
    cause: &'a str,
    digest: String,
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

    fn write<D: Serialize>(
        &mut self,
        gpu: &GpuIdentity,
        entry: &Entry,
        (r#type, subject, id): (&str, &str, uuid::Uuid),
        data: D,
    ) -> Result<(), ExportError> {
        let event = Event {
            specversion: "1.0",
            r#type,
            source: &format!("/nodes/{}", gpu.node),
            subject,
            id: id.to_string(),
            time: show_time(entry.stretch.end),
            datacontenttype: "application/json",
            data,
        };
        serde_json::to_writer(&mut self.out, &event)?;
        self.out.write_all(b"\n")?;
        self.exported.rows += 1;
        Ok(())
    }
}

fn place<'a>(gpu: &'a GpuIdentity, entry: &Entry) -> Place<'a> {
    let stretch = &entry.stretch;
    Place {
        window_start: show_time(stretch.start),
        window_end: show_time(stretch.end),
        window_ns: stretch.length_ns.0.to_string(),
        gpu_uuid: &gpu.gpu,
        gpu_model: &gpu.model,
        boot_id: stretch.boot.to_string(),
        seq: stretch.seq.to_string(),
    }
}

fn usage<'a>(place: Place<'a>, record: &'a TenantRecord) -> Usage<'a> {
    Usage {
        place,
        tenant: &record.tenant.name,
        kind: record.tenant.kind.as_str(),
        account: record.tenant.account.as_deref(),
        gpu_ns: record.engine_ns.0.to_string(),
        estimated_ns: record.estimated_ns.0.to_string(),
        fault_ns: record.fault_ns.0.to_string(),
        copy_ns: record.copy_ns.0.to_string(),
        copy_bytes: record.copy_bytes.map(|bytes| bytes.to_string()),
        held_ns: record.held_ns.0.to_string(),
        wait_ns: record.waiting_ns.0.to_string(),
        memory_byte_ns: record.memory_byte_ns.map(|wide| wide.to_string()),
        weight: record.weight,
        cap: record.cap.map(|cap| Cap {
            quota_ns: cap.quota_ns.0.to_string(),
            period_ns: cap.period_ns.0.to_string(),
        }),
        signals: record.signals.to_string(),
        error_bound_ns: record.error_bound_ns.0.to_string(),
    }
}

impl Writer for Events<'_> {
    fn entry(&mut self, gpu: &GpuIdentity, entry: &Entry) -> Result<(), ExportError> {
        let id = entry_id(gpu, &entry.stretch);
        let whole = self.request.tenant.is_none();
        match &entry.body {
            Body::Gap { cause } if whole => {
                let data = Gap {
                    place: place(gpu, entry),
                    cause: cause.as_str(),
                    digest: entry.digest.to_string(),
                };
                self.write(gpu, entry, (GAP, &gpu.gpu, id), data)?;
            }
            Body::Gap { .. } => {}
            Body::Window { tenants, engines } => {
                for record in tenants {
                    if self.request.wants(record.tenant.id, &record.tenant.name) {
                        let subject = record.tenant.id.to_string();
                        let data = usage(place(gpu, entry), record);
                        self.write(gpu, entry, (USAGE, &subject, record.id), data)?;
                        self.exported.engine_ns += u128::from(record.engine_ns.0);
                    }
                }
                if whole {
                    let engine = |record: &crate::record::EngineRecord| Engine {
                        engine: record.engine.0,
                        compute: record.compute,
                        used_ns: record.used_ns.0.to_string(),
                        fault_ns: record.fault_ns.0.to_string(),
                        switching_ns: record.switching_ns.0.to_string(),
                        idle_ns: record.idle_ns.0.to_string(),
                        unobserved_ns: record.unobserved_ns.0.to_string(),
                        gap_ns: record.gap_ns.0.to_string(),
                        error_bound_ns: record.error_bound_ns.0.to_string(),
                    };
                    let data = Conservation {
                        place: place(gpu, entry),
                        engines: engines.iter().map(engine).collect(),
                        digest: entry.digest.to_string(),
                    };
                    self.write(gpu, entry, (CONSERVATION, &gpu.gpu, id), data)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Exported, ExportError> {
        self.out.flush()?;
        Ok(self.exported)
    }
}
