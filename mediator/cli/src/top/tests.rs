//! Tests of what is drawn and written, from made-up samples. Pictures of the screens stay in
//! `target/screens`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use turnstile_api::view::{Doing, EngineParts, LedgerSample, MemorySample, Row};

use super::*;

fn row(tenant: u32, name: &str, weight: u32, parts: [f64; 4], doing: Doing) -> Row {
    let [entitled, received, waiting, held] = parts;
    Row {
        tenant,
        name: name.to_owned(),
        account: "uid-0".to_owned(),
        processes: (tenant == 4).then_some(3),
        weight,
        doing,
        entitled,
        received,
        waiting,
        held,
        copying: 0.012,
        cap: (tenant == 1).then_some(0.25),
        switches_per_s: f64::from(5 - tenant) * 62.5,
        held_bytes: None,
        gpu_seconds: 1_512.25 * f64::from(tenant),
        memory: Some(MemorySample {
            resident_bytes: u64::from(tenant) << 33,
            swapped_bytes: u64::from(tenant / 2) << 32,
            moved_bytes: 0,
            pinned_bytes: 0,
        }),
    }
}

fn made_up() -> View {
    View {
        at_ns: 60_000_000_000,
        interval_ns: 1_000_000_000,
        engine: EngineParts {
            used: 0.943,
            switching: 0.031,
            idle: 0.026,
            ..EngineParts::default()
        },
        tenants: vec![
            row(1, "batch", 100, [0.236, 0.231, 0.74, 0.55], Doing::Held),
            row(
                2,
                "interactive",
                300,
                [0.705, 0.710, 0.26, 0.08],
                Doing::Runs,
            ),
            row(
                3,
                "a-name-that-is-much-too-long-for-it",
                100,
                [0.0, 0.0, 0.0, 0.0],
                Doing::Idle,
            ),
            row(4, "train", 50, [0.002, 0.002, 0.0, 0.0], Doing::Idle),
        ],
        switches_per_s: 388.5,
        memory_bytes: 141 << 30,
        memory_held_bytes: 80 << 30,
        untracked: 1,
        ledger: Some(LedgerSample {
            written: 128,
            failing: false,
            refused: 0,
        }),
        ..View::default()
    }
}

fn screen(colours: bool) -> Screen {
    Screen {
        view: Some(made_up()),
        trouble: None,
        sorted: 5,
        first: 0,
        colours,
    }
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    (0..area.height)
        .map(|y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect())
        .collect()
}

/// A buffer as a picture, in the colours of a dark or a light terminal.
fn picture(buffer: &Buffer, dark: bool) -> String {
    let (ground, ink) = if dark {
        ("#14171b", "#e7eaee")
    } else {
        ("#ffffff", "#1b1f24")
    };
    let colour = |colour: Color| match (colour, dark) {
        (Color::Green, true) => "#4cc38a",
        (Color::Green, false) => "#1a7f4b",
        (Color::Yellow, true) => "#e0a84b",
        (Color::Yellow, false) => "#9a6200",
        (Color::Blue, true) => "#6ba0ff",
        (Color::Blue, false) => "#2f6fdf",
        (Color::Red, _) => "#d34545",
        (Color::DarkGray, _) => "#808893",
        _ => ink,
    };
    let area = buffer.area;
    let (wide, high) = (
        u32::from(area.width) * 9 + 20,
        u32::from(area.height) * 20 + 20,
    );
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}"><rect width="100%" height="100%" fill="{ground}"/><g font-family="DejaVu Sans Mono, monospace" font-size="15" xml:space="preserve">"#
    );
    for y in 0..area.height {
        for x in 0..area.width {
            let cell = &buffer[(x, y)];
            let symbol = match cell.symbol() {
                " " => continue,
                "&" => "&amp;",
                "<" => "&lt;",
                symbol => symbol,
            };
            let weight = if cell.modifier.contains(Modifier::BOLD) {
                "bold"
            } else {
                "normal"
            };
            let (left, base) = (u32::from(x) * 9 + 10, u32::from(y) * 20 + 24);
            let fill = colour(cell.fg);
            let _ = write!(
                svg,
                r#"<text x="{left}" y="{base}" fill="{fill}" font-weight="{weight}">{symbol}</text>"#
            );
        }
    }
    svg.push_str("</g></svg>\n");
    svg
}

#[test]
fn a_wide_screen_shows_entitled_beside_received() {
    let buffer = drawn(&screen(true), 160, 12);
    let lines = lines(&buffer);
    assert!(
        lines[0].contains("4 tenants, 2 want the GPU"),
        "{}",
        lines[0]
    );
    assert!(lines[1].contains("used 94.3%"), "{}", lines[1]);
    for head in [
        "TENANT",
        "CAP%",
        "SW/S",
        "ENTITLED%",
        "entitled",
        "received",
        "SWAPPED",
        "GPU-SEC",
    ] {
        assert!(lines[3].contains(head), "no {head} in {}", lines[3]);
    }
    let batch = &lines[4];
    assert!(
        batch.contains("23.6") && batch.contains("23.1") && batch.contains("████"),
        "{batch}"
    );
}

#[test]
fn a_narrow_screen_keeps_the_columns_that_matter() {
    let lines = lines(&drawn(&screen(false), 58, 10));
    for head in ["TENANT", "STATE", "ENTITLED%", "GPU%", "GPU-SEC"] {
        assert!(lines[3].contains(head), "no {head} in {}", lines[3]);
    }
    assert!(!lines[3].contains("SWAPPED"));
    assert!(lines[6].contains('…'), "a long name is cut: {}", lines[6]);
    let mut failing = screen(false);
    let ledger = failing.view.as_mut().and_then(|view| view.ledger.as_mut());
    ledger.unwrap().failing = true;
    let head = &self::lines(&drawn(&failing, 58, 10))[0];
    assert!(head.contains("WRITING FAILS"), "{head}");
}

#[test]
fn without_colours_there_are_none() {
    let buffer = drawn(&screen(false), 120, 10);
    assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset));
}

#[test]
fn any_size_can_be_drawn() {
    for width in [1, 2, 7, 40, 79, 300] {
        for height in [1, 2, 4, 50] {
            drawn(&screen(true), width, height);
        }
    }
}

#[test]
fn keys_sort_scroll_and_end() {
    let mut screen = screen(true);
    let press = |screen: &mut Screen, code| pressed(screen, KeyEvent::from(code));
    assert!(press(&mut screen, KeyCode::Down));
    assert_eq!(screen.first, 1);
    for _ in 0..10 {
        press(&mut screen, KeyCode::Down);
    }
    assert_eq!(screen.first, 3, "not beyond the last");
    press(&mut screen, KeyCode::Char('s'));
    assert_eq!(screen.sorted, 6);
    assert!(!press(&mut screen, KeyCode::Char('q')));
}

#[test]
fn text_has_heads_on_a_terminal_and_none_in_a_pipe() {
    let written = |output, heads| {
        let mut text = Vec::new();
        let mut batch = Batch::new(&mut text, output, heads);
        batch.write(&made_up()).unwrap();
        batch.write(&made_up()).unwrap();
        String::from_utf8(text).unwrap()
    };
    assert!(written(Form::Table, true).starts_with("GPU used 94.3%"));
    assert!(written(Form::Table, false).starts_with("batch"));
    let csv = written(Form::Csv, false);
    assert_eq!(
        csv.matches("at_ns,tenant,state,weight,cap_percent,entitled_percent")
            .count(),
        1
    );
    assert_eq!(csv.lines().count(), 9);
    for line in written(Form::Ndjson, false).lines() {
        let view: View = serde_json::from_str(line).unwrap();
        assert_eq!(view, made_up(), "JSON says all of it");
    }
}

#[test]
fn pictures_of_the_screens() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screens");
    fs::create_dir_all(&folder).unwrap();
    for (name, width) in [("wide", 160), ("narrow", 58)] {
        let buffer = drawn(&screen(true), width, 12);
        for (shade, dark) in [("dark", true), ("light", false)] {
            let path = folder.join(format!("top-{name}-{shade}.svg"));
            fs::write(path, picture(&buffer, dark)).unwrap();
        }
    }
}
