//! Lines of cells for people.

use turnstile_figures::cell::CellLine;
use turnstile_figures::windows::Worst;

fn points(worst: Option<Worst>) -> String {
    worst.map_or_else(|| "-".into(), |worst| format!("{:.2}", worst.points))
}

/// Items of one cell.
pub(super) fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    let texts: Vec<String> = items.iter().map(text).collect();
    texts.join(" / ")
}

/// A number that may be absent.
pub(super) fn optional(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "-".into(), |number| format!("{number:.digits$}"))
}

/// Prints `lines` under a title; nothing if there are none.
pub(super) fn print(title: &str, lines: &[CellLine]) {
    if lines.is_empty() {
        return;
    }
    println!();
    println!("{title}");
    println!(
        "{:<34} {:>8} {:>24} {:>24} {:>8} {:>8} {:>8} {:>8} {:>7} {:>24} {:>18} {:>6} {:>6} {:>7}",
        "loads",
        "weights",
        "entitled %",
        "share %",
        "sliding",
        "aligned",
        "unpaused",
        "worked",
        "useful",
        "kernels/s",
        "charge error %",
        "cpu %",
        "gates",
        "others' "
    );
    for line in lines {
        println!(
            "{:<34} {:>8} {:>24} {:>24} {:>8} {:>8} {:>8} {:>8} {:>7.1} {:>24} {:>18} {:>6} {:>6} {:>7}",
            line.loads,
            line.weights,
            list(&line.tenants, |tenant| format!(
                "{:.1}",
                tenant.entitled_percent
            )),
            list(&line.tenants, |tenant| format!(
                "{:.1}",
                tenant.share_percent
            )),
            points(line.worst_sliding),
            points(line.worst_aligned),
            points(line.worst_sliding_unpaused),
            points(line.worst_sliding_worked),
            line.useful_percent,
            list(&line.tenants, |tenant| format!(
                "{:.0}",
                tenant.kernels_per_second
            )),
            list(&line.tenants, |tenant| optional(
                tenant.charge_error_percent,
                2
            )),
            optional(line.daemon_cpu_percent, 2),
            optional(line.gate_cpu_percent, 2),
            optional(line.busy_while_others_idle_percent, 1),
        );
    }
    println!(
        "entitled, share: of what all executed; errors in points: largest of windows of 1 s after the first, every 10 ms and whole seconds;"
    );
    println!(
        "unpaused: every 10 ms, where no load's host left it without a launch for 2 ms or more, then or in the second before;"
    );
    println!(
        "gates: of the daemon's processor time, what it took to suspend and resume; others': executed % of the busy ones while the others want nothing"
    );
}
