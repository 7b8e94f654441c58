//! A table whose columns fit the screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use super::look::Look;

/// Cells between two columns.
const GAP: usize = 2;

/// Least width of a column that may be cut.
const LEAST_WIDTH: usize = 5;

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading.
    pub head: String,
    /// Whether the cells are aligned to the right, as numbers are.
    pub is_number: bool,
    /// The least width. It keeps columns in place when values change.
    pub width_min: usize,
    /// Whether the column may be cut to [`width_min`](Column::width_min).
    pub is_elastic: bool,
    /// If there is no room for all columns, those with the highest rank are left out first. 0: never.
    pub rank: u8,
}

/// A table of text.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows that are on the screen, with a cell for each column.
    pub rows: Vec<Vec<String>>,
    /// Index in `rows` of the selected row.
    pub selected: Option<usize>,
}

impl Grid {
    /// Draws headings in the first line, and a row in each further line.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, look: Look) {
        let columns = self.fitting(area.width.into());
        let heads: Vec<String> = self.columns.iter().map(|column| column.head.clone()).collect();
        let heads = [(&heads, look.head())].into_iter();
        let row = |(place, row)| match self.selected == Some(place) {
            true => (row, look.selected()),
            false => (row, Style::new()),
        };
        let rows = self.rows.iter().enumerate().map(row);
        for ((cells, style), y) in heads.chain(rows).zip(area.top()..area.bottom()) {
            let line = self.line(cells, &columns, look);
            // Pad to the edge, so that the whole line of a selected row is highlighted.
            let line = format!("{line:<width$}", width = usize::from(area.width));
            buffer.set_stringn(area.x, y, line, area.width.into(), style);
        }
    }

    fn line(&self, cells: &[String], columns: &[(usize, usize)], look: Look) -> String {
        let mut line = String::new();
        for &(column, width) in columns {
            if !line.is_empty() {
                line.push_str(&" ".repeat(GAP));
            }
            let cell = cells.get(column).map_or("", String::as_str);
            let cell = fitted(cell, width, look);
            let space = " ".repeat(width.saturating_sub(width_of(&cell)));
            match self.columns[column].is_number {
                true => line.extend([space, cell]),
                false => line.extend([cell, space]),
            }
        }
        line
    }

    /// Returns the indexes of the columns that are displayed, with their widths.
    fn fitting(&self, room: usize) -> Vec<(usize, usize)> {
        let wanted = |(place, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(place));
            let widest = cells.chain([&column.head]).map(|cell| width_of(cell)).max();
            (place, widest.unwrap_or(0).max(column.width_min))
        };
        let mut shown: Vec<(usize, usize)> = self.columns.iter().enumerate().map(wanted).collect();
        let least = |&(place, width): &(usize, usize)| match &self.columns[place] {
            column if column.is_elastic => column.width_min.min(width),
            _ => width,
        };
        let gaps = |shown: &[(usize, usize)]| GAP * shown.len().saturating_sub(1);
        while shown.iter().map(least).sum::<usize>() + gaps(&shown) > room {
            let last = shown.iter().enumerate().max_by_key(|(_, (c, _))| self.columns[*c].rank);
            match last {
                Some((place, (column, _))) if self.columns[*column].rank > 0 => {
                    shown.remove(place);
                }
                _ => break,
            }
        }
        let mut excess = (shown.iter().map(|(_, width)| width).sum::<usize>() + gaps(&shown))
            .saturating_sub(room);
        // If even the least widths do not fit, cut further: two shortened addresses are better than one.
        for is_last_resort in [false, true] {
            while excess > 0 {
                let is_elastic = |&(place, width): &(usize, usize)| {
                    let column = &self.columns[place];
                    let least = if is_last_resort { LEAST_WIDTH } else { column.width_min };
                    column.is_elastic && width > least
                };
                let elastic = shown.iter_mut().filter(|column| is_elastic(column));
                let Some((_, width)) = elastic.max_by_key(|(_, width)| *width) else { break };
                (*width, excess) = (*width - 1, excess - 1);
            }
        }
        shown
    }
}

/// Returns the width of a text in cells.
pub fn width_of(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// Shortens a text to at most `width` cells. It omits the middle, because addresses begin with their network and end
/// with their port.
pub fn fitted(text: &str, width: usize, look: Look) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else { return String::new() };
    let head = first_letters(text.chars(), room - room / 2);
    let tail = first_letters(text.chars().rev(), room / 2);
    let ellipsis = [look.ellipsis()];
    head.into_iter().chain(ellipsis).chain(tail.into_iter().rev()).collect()
}

/// Returns the first letters of a text, as many as fit into `room` cells.
fn first_letters(letters: impl Iterator<Item = char>, mut room: usize) -> Vec<char> {
    let mut shown = Vec::new();
    for letter in letters {
        let width = width_of(letter.encode_utf8(&mut [0; 4]));
        let Some(rest) = room.checked_sub(width) else { break };
        room = rest;
        shown.push(letter);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(head: &str, width_min: usize, is_elastic: bool, rank: u8) -> Column {
        let is_number = head == "n";
        Column { head: head.to_owned(), is_number, width_min, is_elastic, rank }
    }

    fn lines(grid: &Grid, width: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, 2);
        let mut buffer = Buffer::empty(area);
        grid.draw(area, &mut buffer, Look::default());
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..2).map(|y| row(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn columns_shrink_then_go() {
        let columns = vec![
            column("n", 5, false, 0),
            column("name", 4, true, 0),
            column("extra", 0, false, 1),
        ];
        let cells = ["12", "a long name", "e"].map(str::to_owned).to_vec();
        let grid = Grid { columns, rows: vec![cells], selected: Some(0) };
        assert_eq!(lines(&grid, 40), ["    n  name         extra", "   12  a long name  e"]);
        assert_eq!(lines(&grid, 20), ["    n  name    extra", "   12  a l…me  e"]);
        assert_eq!(lines(&grid, 17), ["    n  name", "   12  a lon…name"]);
        assert_eq!(lines(&grid, 11), ["    n  name", "   12  a …e"]);
        assert_eq!(lines(&grid, 3), ["", "   "].map(str::trim));
        assert_eq!(lines(&grid, 0), ["", ""]);
    }

    #[test]
    fn wide_letters_are_not_cut_in_half() {
        assert_eq!(fitted("漢字漢字", 6, Look::default()), "漢…字");
        assert_eq!(fitted("漢字", 4, Look::default()), "漢字");
        assert_eq!([0, 1, 2].map(|width| fitted("abc", width, Look::default())), ["", "…", "a…"]);
    }
}
