//! The screen of `turnstile top`: the GPU above, a line per tenant below, entitled beside received
//! time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use turnstile_api::view::{Doing, Row, View};

use super::columns::{self, BARS_AFTER, COLUMNS, bytes, percent};

/// Characters of a bar, if there is room for two.
const BAR: usize = 18;

/// What is on the screen.
pub(super) struct Screen {
    /// The last interval, sorted; none before the first.
    pub(super) view: Option<View>,
    /// Why there is no newer one, if so.
    pub(super) trouble: Option<String>,
    /// Column that is sorted by.
    pub(super) sorted: usize,
    /// First tenant shown.
    pub(super) first: usize,
    /// Whether to use colours.
    pub(super) colours: bool,
}

impl Screen {
    fn colour(&self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// Draws everything.
    pub(super) fn draw(&self, frame: &mut Frame) {
        let [head, engine, accounts, table, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        frame.render_widget(Paragraph::new(self.engine(engine.width)), engine);
        if let Some(line) = self.view.as_ref().and_then(columns::accounts) {
            frame.render_widget(Paragraph::new(line), accounts);
        }
        self.table(frame, table);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn head(&self) -> Line<'_> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut spans = vec![Span::styled("turnstile", bold)];
        let Some(view) = &self.view else {
            spans.push(Span::raw("  waiting for the first interval"));
            return Line::from(spans);
        };
        // What is wrong comes first: a narrow screen cuts the end off.
        if view.ledger.is_some_and(|ledger| ledger.failing) {
            let red = self.colour(Color::Red);
            spans.push(Span::styled("  ledger: WRITING FAILS", red));
        }
        if view.conservation_error_ns != 0 {
            let text = format!("  {} ns UNACCOUNTED", view.conservation_error_ns);
            spans.push(Span::styled(text, self.colour(Color::Red)));
        }
        let wants = view.tenants.iter().filter(|row| row.doing != Doing::Idle);
        spans.push(Span::raw(format!(
            "  last {:.1} s: {} tenants, {} want the GPU",
            view.interval_ns as f64 / 1e9,
            view.tenants.len(),
            wants.count()
        )));
        if let Some(waiting) = columns::waiting(view) {
            let text = format!("  {waiting}");
            spans.push(Span::styled(text, self.colour(Color::Yellow)));
        }
        if view.untracked > 0 {
            let text = format!("  {} untracked processes", view.untracked);
            spans.push(Span::styled(text, self.colour(Color::Yellow)));
        }
        match view.ledger {
            None => {
                let grey = self.colour(Color::DarkGray);
                spans.push(Span::styled("  no durable ledger", grey));
            }
            Some(ledger) if !ledger.failing => {
                let text = format!("  ledger: {} entries", ledger.written);
                spans.push(Span::styled(text, self.colour(Color::Green)));
            }
            Some(_) => {}
        }
        spans.push(Span::raw(format!(
            "  {:.0} switches/s  memory {} of {}",
            view.switches_per_s,
            bytes(Some(view.memory_held_bytes)),
            bytes(Some(view.memory_bytes)),
        )));
        if !view.gpu.is_empty() {
            spans.push(Span::raw(format!("  {}", columns::gpu(view))));
        }
        Line::from(spans)
    }

    /// Where the engine's time went: one bar and its legend.
    fn engine(&self, width: u16) -> Line<'_> {
        let Some(view) = &self.view else {
            return Line::default();
        };
        let parts = [
            ("used", view.engine.used, '█', Color::Green),
            ("switching", view.engine.switching, '▒', Color::Yellow),
            ("fault", view.engine.fault, '▓', Color::Red),
            ("unobserved", view.engine.unobserved, '?', Color::Magenta),
            ("idle", view.engine.idle, '·', Color::DarkGray),
        ];
        let legend: Vec<Span<'_>> = parts
            .iter()
            .filter(|(_, part, ..)| *part > 0.0)
            .map(|(name, part, sign, colour)| {
                let text = format!(" {sign} {name} {}%", percent(*part));
                Span::styled(text, self.colour(*colour))
            })
            .collect();
        let taken: usize = legend.iter().map(Span::width).sum();
        let room = usize::from(width).saturating_sub(taken + 5).min(60);
        let mut spans = vec![Span::raw("GPU ")];
        let mut drawn = 0;
        let mut sum = 0.0;
        for (_, part, sign, colour) in parts {
            sum += part;
            // CAST: within the bar
            let upto = ((sum * room as f64).round() as usize).min(room);
            let text: String = std::iter::repeat_n(sign, upto - drawn.min(upto)).collect();
            drawn = drawn.max(upto);
            spans.push(Span::styled(text, self.colour(colour)));
        }
        spans.extend(legend);
        Line::from(spans)
    }

    fn table(&self, frame: &mut Frame, area: Rect) {
        let width = area.width;
        let shown: Vec<usize> = (0..COLUMNS.len())
            .filter(|index| COLUMNS[*index].from_width <= width)
            .collect();
        let columns: usize = shown.iter().map(|index| COLUMNS[*index].width + 1).sum();
        let bars = usize::from(width) >= columns + 2 * (BAR + 1);
        let mut lines = vec![self.heads(&shown, bars)];
        let rows = self.view.iter().flat_map(|view| &view.tenants);
        let height = usize::from(area.height).saturating_sub(1);
        lines.extend(
            rows.skip(self.first)
                .take(height)
                .map(|row| self.line(row, &shown, bars)),
        );
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn heads(&self, shown: &[usize], bars: bool) -> Line<'static> {
        let style = Style::new().add_modifier(Modifier::BOLD);
        let mut spans = Vec::new();
        for index in shown {
            let column = &COLUMNS[*index];
            let style = if *index == self.sorted {
                style.add_modifier(Modifier::UNDERLINED)
            } else {
                style
            };
            let padded = column.padded(column.head);
            spans.push(Span::styled(padded, style));
            spans.push(Span::raw(" "));
            if bars && index + 1 == BARS_AFTER {
                spans.push(Span::styled(format!("{:<BAR$} ", "entitled"), style));
                spans.push(Span::styled(format!("{:<BAR$} ", "received"), style));
            }
        }
        Line::from(spans)
    }

    fn line(&self, row: &Row, shown: &[usize], bars: bool) -> Line<'static> {
        let style = match row.doing {
            Doing::Idle => self.colour(Color::DarkGray),
            Doing::Held => self.colour(Color::Yellow),
            Doing::Runs => Style::new(),
        };
        let mut spans = Vec::new();
        for index in shown {
            let column = &COLUMNS[*index];
            let text = column.padded(&(column.cell)(row));
            spans.push(Span::styled(text, style));
            spans.push(Span::raw(" "));
            if bars && index + 1 == BARS_AFTER {
                spans.push(Span::styled(bar(row.entitled), self.colour(Color::Blue)));
                spans.push(Span::raw(" "));
                spans.push(Span::styled(bar(row.received), self.colour(Color::Green)));
                spans.push(Span::raw(" "));
            }
        }
        Line::from(spans)
    }

    fn foot(&self) -> Line<'_> {
        match &self.trouble {
            Some(trouble) => Line::styled(trouble.as_str(), self.colour(Color::Red)),
            None => Line::styled(
                "q quit   s/S sort   up/down scroll",
                self.colour(Color::DarkGray),
            ),
        }
    }
}

/// A part of one GPU as a bar of [`BAR`] characters, in eighths.
fn bar(part: f64) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    // CAST: within the bar
    let eighths = (part.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let mut text: String = std::iter::repeat_n('█', eighths / 8).collect();
    if !eighths.is_multiple_of(8) {
        text.push(EIGHTHS[eighths % 8]);
    }
    format!("{text:<BAR$}")
}
