//! Colours and symbols.
//!
//! Of the terminal's sixteen colours, red and magenta are readable on both light and dark backgrounds. So only these
//! two are used: red for losses, magenta for the user's choices. No information is given by colour alone.

use std::env;

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::bar;

/// Abilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether colours are used. If not, text is bold, underlined or reversed instead.
    pub has_colors: bool,
    /// Whether symbols beyond ASCII are used.
    pub is_unicode: bool,
}

impl Default for Look {
    fn default() -> Look {
        Look { has_colors: true, is_unicode: true }
    }
}

impl Look {
    /// Reads `NO_COLOR` (<https://no-color.org>), and the locale: the first of `LC_ALL`, `LC_CTYPE` and `LANG` that is
    /// set.
    #[must_use]
    pub fn of_environment() -> Look {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        Look::new(set("NO_COLOR").is_some(), locale.as_deref())
    }

    fn new(no_color: bool, locale: Option<&str>) -> Look {
        let is_utf8 = |locale: &str| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        };
        Look { has_colors: !no_color, is_unicode: locale.is_none_or(is_utf8) }
    }

    fn colored(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns the style for losses that are happening now.
    pub(super) fn losing(self) -> Style {
        self.lost().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style for earlier losses.
    pub(super) fn lost(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Returns the style for a choice of the user that changes the display: a search, a pause.
    pub(super) fn chosen(self) -> Style {
        self.colored(Color::Magenta).add_modifier(Modifier::BOLD)
    }

    /// Returns the style for the most important figures, and for keys.
    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style for labels of figures.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Returns the style for headings of columns and lines.
    pub(super) fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    /// Returns the style for the selected row and the open pane.
    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the symbol for omitted text.
    pub(super) fn ellipsis(self) -> char {
        if self.is_unicode { '…' } else { '~' }
    }

    /// Returns the symbol of a sorted column: for the largest or the smallest value first.
    pub(super) fn order(self, is_descending: bool) -> &'static str {
        match (self.is_unicode, is_descending) {
            (true, true) => "▼",
            (true, false) => "▲",
            (false, true) => "v",
            (false, false) => "^",
        }
    }

    /// Returns the symbol for a cell of a bar.
    pub(super) fn block(self) -> &'static str {
        if self.is_unicode { bar::FULL } else { "#" }
    }

    /// Returns the symbols of a sparkline.
    pub(super) fn steps(self) -> bar::Set<'static> {
        if self.is_unicode {
            return bar::NINE_LEVELS;
        }
        bar::Set {
            full: "#",
            seven_eighths: "#",
            three_quarters: "=",
            five_eighths: "=",
            half: "-",
            three_eighths: "-",
            one_quarter: "_",
            one_eighth: "_",
            empty: " ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_takes_colours_and_symbols_away() {
        assert_eq!(Look::new(false, None), Look::default());
        assert!(Look::new(false, Some("de_DE.UTF-8")).is_unicode);
        assert!(Look::new(false, Some("C.utf8")).is_unicode);
        assert!(!Look::new(false, Some("C")).is_unicode);
        let plain = Look::new(true, None);
        assert_eq!((plain.losing().fg, plain.chosen().fg), (None, None));
    }
}
