//! `turnstile top`: each tenant's use of the GPU beside its entitlement.

mod batch;
mod columns;
mod screen;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use turnstile_api::client::{Client, ClientError, default_socket};
use turnstile_api::live::HostInfo;
use turnstile_api::view::{Sample, View};

use super::admin::escaped;

use batch::Batch;
use columns::{COLUMNS, by_head, sort};
use screen::Screen;

/// Arguments of `top`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The daemon's API socket
    #[arg(long, default_value_os_t = default_socket(), hide_default_value = true, value_name = "SOCKET")]
    api: PathBuf,
    /// Identity of the GPU, as `gpu list` shows it; without it, the first one. The key g changes it
    #[arg(long, value_name = "ID")]
    gpu: Option<String>,
    /// Seconds between two samples
    #[arg(short, long, default_value_t = 1.0, value_parser = delay)]
    delay: f64,
    /// End after this many intervals; by default 1 without a terminal
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Text instead of a screen, also on a terminal
    #[arg(short, long)]
    batch: bool,
    /// How to write without a screen: JSON and YAML are stable, tables are for people
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Column to sort by
    #[arg(short, long, default_value = "GPU%", value_parser = column)]
    sort: usize,
}

/// How intervals are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Lines of text
    Table,
    /// An object each
    Json,
    /// A document each
    Yaml,
    /// An object a line each
    Ndjson,
    /// Comma-separated values
    Csv,
}

fn delay(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.1 to 3600".to_owned()),
    }
}

fn column(text: &str) -> Result<usize, String> {
    by_head(text).ok_or_else(|| {
        let heads: Vec<&str> = COLUMNS.iter().map(|column| column.head).collect();
        format!("one of {}", heads.join(", "))
    })
}

fn sample(client: &Client, gpu: Option<&str>) -> Result<Sample, ClientError> {
    match gpu {
        None => client.get("/v1/live/sample"),
        Some(gpu) => client.get(&format!("/v1/live/sample?gpu={}", escaped(gpu))),
    }
}

/// The GPU after this one, in the daemon's order.
fn next_gpu(client: &Client, gpu: &str) -> Result<Option<String>, ClientError> {
    let host: HostInfo = client.get("/v1/host")?;
    let at = host.gpus.iter().position(|one| one == gpu);
    let next = at.map_or(0, |at| (at + 1) % host.gpus.len().max(1));
    Ok(host.gpus.into_iter().nth(next))
}

/// Shows a daemon's tenants.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let client = Client::new(&args.api);
    let screen = io::stdout().is_terminal() && !args.batch && args.output == Form::Table;
    let interval = Duration::from_secs_f64(args.delay);
    if screen {
        let terminal = ratatui::init();
        let shown = watch(terminal, &client, interval, args);
        ratatui::restore();
        return shown;
    }
    let out = io::stdout().lock();
    let heads = io::stdout().is_terminal() || args.batch;
    let mut batch = Batch::new(out, args.output, heads);
    let gpu = args.gpu.as_deref();
    let mut before = sample(&client, gpu)?;
    for _ in 0..args.count.unwrap_or(1) {
        // TIMEOUT: the interval of the command line
        std::thread::sleep(interval);
        let after = sample(&client, gpu)?;
        batch.write(&view(&before, &after, args.sort))?;
        before = after;
    }
    Ok(())
}

fn view(before: &Sample, after: &Sample, by: usize) -> View {
    let mut view = View::between(before, after);
    sort(&mut view.tenants, by);
    view
}

/// Draws until a key ends it.
fn watch(
    mut terminal: DefaultTerminal,
    client: &Client,
    interval: Duration,
    args: &Args,
) -> anyhow::Result<()> {
    let mut gpu = args.gpu.clone();
    let mut before = sample(client, gpu.as_deref())?;
    let mut screen = Screen {
        view: None,
        trouble: None,
        sorted: args.sort,
        first: 0,
        colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let mut due = Instant::now() + interval;
    let mut left = args.count;
    loop {
        terminal
            .draw(|frame| screen.draw(frame))
            .context("The terminal cannot be drawn on")?;
        let wait = due.saturating_duration_since(Instant::now());
        if event::poll(wait)? {
            let Event::Key(key) = event::read()? else {
                continue;
            };
            if !pressed(&mut screen, key) {
                return Ok(());
            }
            // A daemon that restarts is waited for.
            if key.code == KeyCode::Char('g')
                && let Ok(next) = next_gpu(client, &before.gpu)
                && let Ok(first) = sample(client, next.as_deref())
            {
                (gpu, before, screen.view) = (next, first, None);
                due = Instant::now() + interval;
            }
            continue;
        }
        due += interval;
        match sample(client, gpu.as_deref()) {
            Ok(after) => {
                screen.view = Some(view(&before, &after, screen.sorted));
                screen.trouble = None;
                before = after;
            }
            // A daemon that restarts is waited for; the last view stays.
            Err(error) => screen.trouble = Some(error.to_string()),
        }
        if let Some(left) = &mut left {
            *left -= 1;
            if *left == 0 {
                return Ok(());
            }
        }
    }
}

/// Handles a key; false if it ends the screen.
fn pressed(screen: &mut Screen, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let rows = screen.view.as_ref().map_or(0, |view| view.tenants.len());
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('s') => screen.sorted = (screen.sorted + 1) % COLUMNS.len(),
        KeyCode::Char('S') => screen.sorted = (screen.sorted + COLUMNS.len() - 1) % COLUMNS.len(),
        KeyCode::Down => screen.first = (screen.first + 1).min(rows.saturating_sub(1)),
        KeyCode::Up => screen.first = screen.first.saturating_sub(1),
        _ => {}
    }
    if let Some(view) = &mut screen.view {
        sort(&mut view.tenants, screen.sorted);
    }
    true
}

#[cfg(test)]
mod tests;
