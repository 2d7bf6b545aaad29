//! `turnstile top` without a screen: text, JSON lines, CSV.

use std::io::{self, Write};

use turnstile_api::view::View;

use super::Output;
use super::columns::{self, COLUMNS, bytes, percent};

/// Writes intervals one after the other.
pub(super) struct Batch<W: Write> {
    out: W,
    output: Output,
    /// Whether a table has heads: on a terminal and with `--batch`, not in a pipe (as
    /// systemd-cgtop). CSV always has them.
    heads: bool,
    started: bool,
}

impl<W: Write> Batch<W> {
    pub(super) fn new(out: W, output: Output, heads: bool) -> Self {
        Self {
            out,
            output,
            heads,
            started: false,
        }
    }

    /// Writes one interval.
    pub(super) fn write(&mut self, view: &View) -> anyhow::Result<()> {
        match self.output {
            Output::Json => {
                serde_json::to_writer_pretty(&mut self.out, view)?;
                writeln!(self.out)?;
            }
            Output::Ndjson => {
                serde_json::to_writer(&mut self.out, view)?;
                writeln!(self.out)?;
            }
            Output::Csv => self.csv(view)?,
            Output::Table => self.table(view)?,
        }
        self.started = true;
        Ok(self.out.flush()?)
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
