//! `turnstile top` without a screen: text, JSON, YAML, CSV.

use std::io::{self, Write};

use turnstile_api::view::View;
use turnstile_figures::output::Output;

use super::Form;
use super::columns::{self, COLUMNS, bytes, percent};

/// Writes intervals one after the other.
pub(super) struct Batch<W: Write> {
    out: W,
    form: Form,
    /// Whether a table has heads: on a terminal and with `--batch`, not in a pipe (as
    /// systemd-cgtop). CSV always has them.
    heads: bool,
    started: bool,
}

impl<W: Write> Batch<W> {
    pub(super) fn new(out: W, form: Form, heads: bool) -> Self {
        Self {
            out,
            form,
            heads,
            started: false,
        }
    }

    /// Writes one interval.
    pub(super) fn write(&mut self, view: &View) -> anyhow::Result<()> {
        match self.form {
            Form::Json => self.object(Output::Json, view)?,
            Form::Yaml => {
                writeln!(self.out, "---")?;
                self.object(Output::Yaml, view)?;
            }
            Form::Ndjson => {
                serde_json::to_writer(&mut self.out, view)?;
                writeln!(self.out)?;
            }
            Form::Csv => self.csv(view)?,
            Form::Table => self.table(view)?,
        }
        self.started = true;
        Ok(self.out.flush()?)
    }

    fn object(&mut self, form: Output, view: &View) -> anyhow::Result<()> {
        let text = form.text(view)?.unwrap_or_default();
        Ok(self.out.write_all(text.as_bytes())?)
    }

    fn table(&mut self, view: &View) -> io::Result<()> {
        if self.started {
            writeln!(self.out)?;
        }
        if self.heads {
            writeln!(
                self.out,
                "{} used {}% switching {}% idle {}%, {:.0} switches/s, {} of {} used, last {:.1} s",
                columns::gpu(view),
                percent(view.engine.used),
                percent(view.engine.switching),
                percent(view.engine.idle),
                view.switches_per_s,
                bytes(Some(view.memory_held_bytes)),
                bytes(Some(view.memory_bytes)),
                view.interval_ns as f64 / 1e9,
            )?;
            if let Some(accounts) = columns::accounts(view) {
                writeln!(self.out, "{accounts}")?;
            }
            if let Some(waiting) = columns::waiting(view) {
                writeln!(self.out, "{waiting}")?;
            }
            let heads: Vec<String> = COLUMNS
                .iter()
                .map(|column| column.padded(column.head))
                .collect();
            writeln!(self.out, "{}", heads.join(" ").trim_end())?;
        }
        for row in &view.tenants {
            let cells: Vec<String> = COLUMNS
                .iter()
                .map(|column| column.padded(&(column.cell)(row)))
                .collect();
            writeln!(self.out, "{}", cells.join(" ").trim_end())?;
        }
        Ok(())
    }

    fn csv(&mut self, view: &View) -> anyhow::Result<()> {
        let mut csv = csv::Writer::from_writer(&mut self.out);
        if !self.started {
            let heads = COLUMNS
                .iter()
                .map(|column| column.head.to_lowercase().replace('%', "_percent"));
            csv.write_record(std::iter::once("at_ns".to_owned()).chain(heads))?;
        }
        for row in &view.tenants {
            let cells = COLUMNS.iter().map(|column| (column.cell)(row));
            csv.write_record(std::iter::once(view.at_ns.to_string()).chain(cells))?;
        }
        Ok(csv.flush()?)
    }
}
