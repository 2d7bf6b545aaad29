//! Tables of text.

/// Prints columns, each as wide as its widest cell; all but the first to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let widest = cells(column).map(|cell| cell.chars().count()).max();
            widest.unwrap_or(0).max(name.len())
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            if column == 0 {
                text.push_str(&format!("{cell:<width$}"));
            } else {
                text.push_str(&format!("  {cell:>width$}"));
            }
        }
        println!("{}", text.trim_end());
    };
    line(head.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}
