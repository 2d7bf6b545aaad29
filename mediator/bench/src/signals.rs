//! `turnstile bench signals`: what the GPU shows of its engines and channels, read without a pause.
//!
//! Reads only. Prints each signal's self-test, and what was seen: residency by channel group, work
//! by engine status and by the busy counter, and the status of channels. `--out` keeps every change
//! as a line of JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use turnstile_accounting::{Moment, Nanos};
use turnstile_figures::output::{Output, OutputArgs};
use turnstile_nvidia::observe::{BusyTime, ChannelStatus, Kind, Observation, Signals};

use super::{GpuArg, progress};

/// Interval of the search for channels in use.
const POLL_INTERVAL: Nanos = Nanos::from_ms(500);

/// Arguments of `bench signals`.
#[derive(clap::Args, Debug)]
pub(super) struct SignalsArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// How long to read
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// File that gets each change as a line of JSON
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Parts of the time in which a channel was so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Channel {
    queued_ns: u64,
    works_ns: u64,
    waits_ns: u64,
    off_schedule_ns: u64,
}

/// What was seen. A reading counts until the next one.
#[derive(Debug, Default, Serialize)]
// FIELDS: a report: one figure each.
struct Summary {
    rounds: u64,
    length_ns: u64,
    /// By engine, 0 for compute.
    busy_ns: BTreeMap<u8, u64>,
    /// By channel group, on the compute engine.
    resident_ns: BTreeMap<u16, u64>,
    /// By the busy counter.
    counted_ns: u64,
    /// Time of which the busy counter shows nothing.
    uncounted_ns: u64,
    /// Between readings that all found some engine at work: the time, and what was counted.
    surely_busy_ns: u64,
    surely_counted_ns: u64,
    channels: BTreeMap<u32, Channel>,
    #[serde(skip)]
    busy: BusyTime,
    #[serde(skip)]
    busy_before: bool,
    #[serde(skip)]
    at: Moment,
}

impl Summary {
    /// A round of readings, at one moment.
    fn take(&mut self, round: &[Observation]) {
        let Some(at) = round.first().map(|first| first.at) else {
            return;
        };
        let length = if self.rounds == 0 {
            0
        } else {
            at.since(self.at).0
        };
        (self.rounds, self.at) = (self.rounds + 1, at);
        self.length_ns += length;
        let busy = |seen: &Observation| matches!(seen.kind, Kind::Engine { busy: true, .. });
        let any_busy = round.iter().any(busy);
        for seen in round {
            match seen.kind {
                Kind::Engine {
                    engine,
                    group,
                    busy,
                } => {
                    *self.busy_ns.entry(engine).or_default() += u64::from(busy) * length;
                    if let Some(group) = group.filter(|_| engine == 0) {
                        *self.resident_ns.entry(group).or_default() += length;
                    }
                }
                Kind::Busy { count } => match self.busy.take(at, count) {
                    Some(worked) => {
                        self.counted_ns += worked.0;
                        if any_busy && self.busy_before {
                            self.surely_busy_ns += length;
                            self.surely_counted_ns += worked.0;
                        }
                    }
                    None => self.uncounted_ns += length,
                },
                Kind::Channel { channel, word } => {
                    let status = ChannelStatus(word);
                    let seen = self.channels.entry(channel).or_default();
                    seen.queued_ns += u64::from(status.is_queued()) * length;
                    seen.works_ns += u64::from(status.works()) * length;
                    seen.waits_ns += u64::from(status.waits()) * length;
                    seen.off_schedule_ns += u64::from(!status.is_enabled()) * length;
                }
            }
        }
        self.busy_before = any_busy;
    }

    fn percent(&self, part_ns: u64) -> f64 {
        100.0 * part_ns as f64 / self.length_ns.max(1) as f64
    }

    fn print(&self) {
        let percent = |part_ns| self.percent(part_ns);
        println!(
            "{} rounds of {:.1} us",
            self.rounds,
            self.length_ns as f64 / 1e3 / self.rounds.max(1) as f64
        );
        println!(
            "busy counter       {:7.3} % of the time; unknown {:.3} %",
            percent(self.counted_ns),
            percent(self.uncounted_ns)
        );
        if self.surely_busy_ns > 0 {
            let part = self.surely_counted_ns as f64 / self.surely_busy_ns as f64;
            println!(
                "  while an engine is busy in each reading: {:.3} %",
                100.0 * part
            );
        }
        for (engine, busy_ns) in &self.busy_ns {
            let name = match engine {
                0 => "compute engine".to_owned(),
                copy => format!("copy engine {copy}"),
            };
            println!("{name:18} {:7.3} % busy", percent(*busy_ns));
        }
        for (group, resident_ns) in &self.resident_ns {
            println!("group {group:<12} {:7.3} % resident", percent(*resident_ns));
        }
        for (channel, seen) in self.channels.iter().filter(|(_, seen)| seen.queued_ns > 0) {
            println!(
                "channel {channel:<10} {:7.3} % queued, {:.3} works, {:.3} waits, {:.3} off the schedule",
                percent(seen.queued_ns),
                percent(seen.works_ns),
                percent(seen.waits_ns),
                percent(seen.off_schedule_ns)
            );
        }
    }
}

/// Keeps each change of a signal as a line; counts of the busy counter always.
struct Changes {
    file: BufWriter<File>,
    engines: BTreeMap<u8, Kind>,
    channels: BTreeMap<u32, Kind>,
}

impl Changes {
    fn take(&mut self, round: &[Observation]) -> anyhow::Result<()> {
        for Observation { at, kind } in round {
            let before = match kind {
                Kind::Engine { engine, .. } => self.engines.insert(*engine, *kind),
                Kind::Channel { channel, .. } => self.channels.insert(*channel, *kind),
                Kind::Busy { .. } => None,
            };
            if before != Some(*kind) {
                serde_json::to_writer(
                    &mut self.file,
                    &Observation {
                        at: *at,
                        kind: *kind,
                    },
                )?;
                self.file.write_all(b"\n")?;
            }
        }
        Ok(())
    }
}

/// A signal's self-test as a line.
fn verdict(name: &str, tested: Result<(), &str>) {
    match tested {
        Ok(()) => println!("{name:18} passes its self-test"),
        Err(reason) => println!("{name:18} absent: {reason}"),
    }
}

pub(super) fn run(args: &SignalsArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let signals = Signals::of(args.device).context("Registers are mapped for root alone")?;
    if args.output.form() == Output::Table {
        let engines = match signals.engines() {
            0 => Err("the table of engines may not be read"),
            _ => Ok(()),
        };
        verdict("engine status", engines);
        verdict("busy counter", signals.busy_counter());
        verdict("channel status", signals.channel_status());
    }
    let mut changes = match &args.out {
        Some(path) => Some(Changes {
            file: BufWriter::new(File::create(path)?),
            engines: BTreeMap::new(),
            channels: BTreeMap::new(),
        }),
        None => None,
    };
    let bar = progress(args.seconds as usize);
    let (start, mut summary, mut round) = (Instant::now(), Summary::default(), Vec::new());
    let (mut channels, mut poll_at) = (Vec::new(), Moment(0));
    // CAST: an hour at most.
    let now = || Moment(start.elapsed().as_nanos() as u64);
    let end = Moment(u64::from(args.seconds) * 1_000_000_000);
    loop {
        let at = now();
        if at >= end {
            break;
        }
        if at >= poll_at {
            channels = signals.used_channels();
            poll_at = at + POLL_INTERVAL;
            bar.set_position(at.0 / 1_000_000_000);
            continue;
        }
        round.clear();
        signals.read(&channels, now, |seen| round.push(seen));
        summary.take(&round);
        if let Some(changes) = &mut changes {
            changes.take(&round)?;
        }
    }
    bar.finish_and_clear();
    Ok(args.output.print(&summary, Summary::print)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn a_reading_counts_until_the_next_one() {
        let mut summary = Summary::default();
        let round = |at, busy, count, word| {
            let kinds = [
                Kind::Engine {
                    engine: 0,
                    group: Some(7),
                    busy,
                },
                Kind::Busy { count },
                Kind::Channel { channel: 3, word },
            ];
            let at = Moment(at * US);
            kinds.map(|kind| Observation { at, kind })
        };
        summary.take(&round(0, true, 0, 0x8ce));
        summary.take(&round(10, true, 5_400, 0x8ce));
        summary.take(&round(20, false, 8_100, 0x10c));
        assert_eq!((summary.rounds, summary.length_ns), (3, 20 * US));
        assert_eq!(summary.busy_ns[&0], 10 * US);
        assert_eq!(summary.resident_ns[&7], 20 * US);
        assert_eq!((summary.counted_ns, summary.uncounted_ns), (15 * US, 0));
        assert_eq!(
            (summary.surely_busy_ns, summary.surely_counted_ns),
            (10 * US, 10 * US)
        );
        let seen = Channel {
            queued_ns: 20 * US,
            works_ns: 10 * US,
            waits_ns: 0,
            off_schedule_ns: 10 * US,
        };
        assert_eq!(summary.channels[&3], seen);
    }
}
