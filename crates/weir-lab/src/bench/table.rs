//! Formats tables with aligned columns.

/// Formats a table. The first and the last column are aligned to the left, the others to the right, with two spaces in
/// between. A row may be shorter than the header; then its last cell may be as long as the rest of the line.
#[must_use]
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        let whole = row.len() == header.len();
        for (index, (width, cell)) in widths.iter_mut().zip(row).enumerate() {
            if whole || index + 1 < row.len() {
                *width = (*width).max(cell.chars().count());
            }
        }
    }
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let mut out = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (index, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            line += &match index {
                0 => format!("{cell:<width$}"),
                _ if index + 1 == row.len() => format!("  {cell}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Formats a number with groups of three digits: `12 345 678`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Formats a figure with about three digits: 0.123, 1.23, 12.3, 123.
#[must_use]
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn columns_line_up_and_short_rows_run_on() {
        let rows =
            [row(&["tc", "2.61", "1.3"]), row(&["af_packet", "n/a: no such engine, for now"])];
        let text = render(&["what", "Mpps", "x"], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "what       Mpps  x");
        assert_eq!(lines[1], "tc         2.61  1.3");
        assert_eq!(lines[2], "af_packet  n/a: no such engine, for now");
    }

    #[test]
    fn width_is_counted_in_characters() {
        let text =
            render(&["what", "µs", ""], &[row(&["µµµµµ", "1", "x"]), row(&["a", "22", "y"])]);
        assert_eq!(text, "what   µs\nµµµµµ   1  x\na      22  y\n");
    }

    #[test]
    fn figures_keep_about_three_digits() {
        assert_eq!([0.1234, 1.234, 12.34, 123.4].map(figure), ["0.123", "1.23", "12.3", "123"]);
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(grouped(0), "0");
    }
}
