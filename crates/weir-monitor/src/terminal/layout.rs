//! The parts of a screen of a given size.

use ratatui::layout::{Constraint, Layout, Rect};

/// The areas of the screen, from top to bottom. Areas for which a small screen has no lines are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Areas {
    /// Names of the sources.
    pub title: Rect,
    /// Rates and the flow table's counts.
    pub rates: Rect,
    /// Lost frames.
    pub losses: Rect,
    /// The sparkline.
    pub history: Rect,
    /// The panes' names, and the search.
    pub tabs: Rect,
    /// The open pane.
    pub pane: Rect,
    /// The range of the displayed rows, and keys.
    pub foot: Rect,
}

impl Areas {
    /// Divides a screen.
    pub fn of(screen: Rect) -> Areas {
        let [title, rates, losses, history, tabs, foot] = match screen.height {
            0..3 => [0, 0, 0, 0, 0, 0],
            3..5 => [0, 0, 1, 0, 0, 0],
            5..8 => [0, 0, 1, 0, 1, 0],
            8..12 => [0, 1, 1, 0, 1, 1],
            12..24 => [1, 1, 1, 1, 1, 1],
            _ => [1, 1, 1, 3, 1, 1],
        };
        let lines = [title, rates, losses, history, tabs].map(Constraint::Length);
        let lines = lines.into_iter().chain([Constraint::Fill(1), Constraint::Length(foot)]);
        let [title, rates, losses, history, tabs, pane, foot] =
            Layout::vertical(lines).areas(screen);
        Areas { title, rates, losses, history, tabs, pane, foot }
    }

    /// Returns the number of lines of the pane on a screen of this height.
    pub fn pane_lines(height: u16) -> usize {
        Areas::of(Rect::new(0, 0, 1, height)).pane.height.into()
    }

    /// Returns the number of rows of the pane: its lines without the headings, at least one.
    pub fn page_lines(height: u16) -> usize {
        Areas::pane_lines(height).saturating_sub(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pane_has_the_most_of_every_screen() {
        for height in 0..100 {
            let areas = Areas::of(Rect::new(0, 0, 80, height));
            assert!(areas.pane.height >= height / 2, "{height}");
            assert_eq!(areas.foot.bottom(), height);
        }
        assert_eq!((Areas::page_lines(40), Areas::page_lines(0)), (31, 1));
    }
}
