//! Actions of keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::detail;
use super::help;
use super::layout::Areas;
use super::ledger;
use super::rows::{Pane, RowId};
use super::search::Query;
use super::state::{Overlay, OverlayKind, State};
use super::text;
use crate::view::View;

/// The action that the caller has to take after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Draw the state.
    Draw,
    /// Draw every cell, because another program has written to the terminal.
    Redraw,
    /// End the run.
    Quit,
}

/// Movement of a cursor.
#[derive(Clone, Copy)]
enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

impl Move {
    fn of(code: KeyCode) -> Option<Move> {
        Some(match code {
            KeyCode::Up => Move::Up,
            KeyCode::Down => Move::Down,
            KeyCode::PageUp => Move::PageUp,
            KeyCode::PageDown => Move::PageDown,
            KeyCode::Home => Move::First,
            KeyCode::End => Move::Last,
            _ => return None,
        })
    }

    /// Returns the new place of a cursor at `place`, in a list of `length` rows, with pages of `page` rows.
    fn from(self, place: usize, length: usize, page: usize) -> usize {
        let place = match self {
            Move::Up => place.saturating_sub(1),
            Move::Down => place.saturating_add(1),
            Move::PageUp => place.saturating_sub(page),
            Move::PageDown => place.saturating_add(page),
            Move::First => 0,
            Move::Last => length,
        };
        place.min(length.saturating_sub(1))
    }
}

impl State {
    /// Changes the state as this key requires. `view` is the displayed view.
    pub fn press(&mut self, key: KeyEvent, view: &View) -> Outcome {
        if key.kind == KeyEventKind::Release {
            return Outcome::Draw;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Outcome::Quit,
            KeyCode::Char('l') if is_control => return Outcome::Redraw,
            _ => {}
        }
        // Esc and a letter that arrive together (fast typing, a slow link) look like Alt and the letter.
        if key.modifiers.contains(KeyModifiers::ALT) {
            self.press(KeyEvent::from(KeyCode::Esc), view);
        }
        if let Some(to) = Move::of(key.code) {
            self.go(to, view);
        } else if self.is_typing {
            self.type_key(key.code, is_control);
        } else if !is_control {
            return self.command(key.code, view);
        }
        Outcome::Draw
    }

    fn go(&mut self, to: Move, view: &View) {
        let lines = match &self.overlay {
            // One line is the title.
            Some(Overlay { kind: OverlayKind::Help, .. }) => Some(help::LINES.len() + 1),
            Some(Overlay { kind: OverlayKind::Flow(flow, _), .. }) => {
                Some(detail::fields(flow, view).len() + 1)
            }
            None => (self.pane == Pane::Losses).then(|| ledger::entries(view).len()),
        };
        if let Some(lines) = lines {
            self.scroll(to, lines);
            return;
        }
        let page = Areas::page_lines(self.height);
        let rows = self.rows(view);
        let place = to.from(self.place(&rows), rows.len(), page);
        match to {
            Move::First => self.cursor().release(),
            _ => self.cursor().select(place, &rows),
        }
    }

    /// Scrolls an overlay that has this many lines.
    fn scroll(&mut self, to: Move, lines: usize) {
        let height = Areas::pane_lines(self.height);
        let top = self.overlay.as_mut().map_or(&mut self.ledger_top, |overlay| &mut overlay.top);
        // Scroll at most until the last line is at the bottom.
        let tops = lines.saturating_sub(height) + 1;
        *top = to.from((*top).min(tops - 1), tops, height.saturating_sub(1).max(1));
    }

    /// Handles a key while a search is typed.
    fn type_key(&mut self, code: KeyCode, is_control: bool) {
        let mut text = self.query.text().to_owned();
        match code {
            KeyCode::Esc => {
                self.is_typing = false;
                text.clear();
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char('u') if is_control => text.clear(),
            KeyCode::Char(letter) if !is_control && !letter.is_control() => text.push(letter),
            _ => {}
        }
        self.query = Query::new(&text);
    }

    fn command(&mut self, code: KeyCode, view: &View) -> Outcome {
        match code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char(digit @ '1'..='4') => self.open(Pane::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => self.open_next(1),
            KeyCode::BackTab => self.open_next(Pane::ALL.len() - 1),
            _ if self.overlay.is_some() => match code {
                KeyCode::Esc | KeyCode::Enter | KeyCode::Char('?') => self.overlay = None,
                _ => {}
            },
            KeyCode::Char('?') => self.overlay = Some(Overlay { kind: OverlayKind::Help, top: 0 }),
            KeyCode::Char('/') if self.pane != Pane::Losses => self.is_typing = true,
            KeyCode::Esc => self.query = Query::default(),
            KeyCode::Enter => self.enter(view),
            _ if self.pane == Pane::Flows => match code {
                KeyCode::Char('s') | KeyCode::Right => self.sort = self.sort.next(),
                KeyCode::Char('S') | KeyCode::Left => self.sort = self.sort.previous(),
                KeyCode::Char('r') => self.sort = self.sort.reversed(),
                _ => {}
            },
            _ => {}
        }
        Outcome::Draw
    }

    fn open(&mut self, pane: Pane) {
        self.pane = pane;
        self.overlay = None;
    }

    fn open_next(&mut self, by: usize) {
        self.open(Pane::ALL[(self.pane as usize + by) % Pane::ALL.len()]);
    }

    /// Opens the selected row: all fields of a flow, or the flows of a talker or a protocol.
    fn enter(&mut self, view: &View) {
        let rows = self.rows(view);
        let Some(row) = rows.get(self.place(&rows)) else { return };
        let text = match row.id {
            RowId::Flow(..) => {
                if let Some(flow) = view.flows.get(row.index) {
                    let kind = OverlayKind::Flow(Box::new(*flow), true);
                    self.overlay = Some(Overlay { kind, top: 0 });
                    let place = self.place(&rows);
                    self.cursor().select(place, &rows);
                }
                return;
            }
            RowId::Talker(address) => format!("={address}"),
            RowId::Protocol(number) => format!("={}", text::protocol(number)),
        };
        self.query = Query::new(&text);
        self.open(Pane::Flows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::samples::view;
    use crate::terminal::sort::Column;

    fn press(state: &mut State, view: &View, keys: &[KeyCode]) -> Outcome {
        let mut outcome = Outcome::Draw;
        for &code in keys {
            outcome = state.press(KeyEvent::from(code), view);
        }
        outcome
    }

    fn typed(text: &str) -> Vec<KeyCode> {
        text.chars().map(KeyCode::Char).collect()
    }

    #[test]
    fn q_quits_but_in_a_search_it_is_a_letter() {
        let (mut state, view) = (State::default(), view(1, 3));
        assert_eq!(press(&mut state, &view, &typed("/q")), Outcome::Draw);
        assert_eq!(state.query.text(), "q");
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(control, &view), Outcome::Quit);
        assert_eq!(press(&mut state, &view, &[KeyCode::Enter, KeyCode::Char('q')]), Outcome::Quit);
        let release =
            KeyEvent { kind: KeyEventKind::Release, ..KeyEvent::from(KeyCode::Char('q')) };
        assert_eq!(state.press(release, &view), Outcome::Draw);
    }

    #[test]
    fn a_search_is_typed_kept_and_cleared() {
        let (mut state, view) = (State::default(), view(1, 30));
        press(&mut state, &view, &typed("/10.0.0.1:x"));
        press(&mut state, &view, &[KeyCode::Backspace]);
        assert_eq!((state.query.text(), state.rows(&view).len()), ("10.0.0.1:", 1));
        press(&mut state, &view, &[KeyCode::Enter]);
        assert!(!state.is_typing && !state.query.is_empty());
        press(&mut state, &view, &[KeyCode::Esc]);
        assert_eq!(state.rows(&view).len(), 30);
        press(&mut state, &view, &typed("/udp"));
        assert_eq!(state.rows(&view).len(), 0);
        press(&mut state, &view, &[KeyCode::Esc]);
        assert!(!state.is_typing && state.query.is_empty());
    }

    #[test]
    fn esc_and_a_letter_at_once_are_both() {
        let (mut state, view) = (State::default(), view(1, 3));
        press(&mut state, &view, &typed("/udp"));
        let together = KeyEvent::new(KeyCode::Char('p'), KeyModifiers::ALT);
        state.press(together, &view);
        assert!(state.query.is_empty() && !state.is_typing && state.is_paused);
    }

    #[test]
    fn keys_sort_and_only_flows() {
        let (mut state, view) = (State::default(), view(1, 3));
        press(&mut state, &view, &typed("ssr"));
        assert_eq!((state.sort.column, state.sort.is_reversed), (Column::TotalBytes, true));
        press(&mut state, &view, &[KeyCode::Left]);
        assert_eq!((state.sort.column, state.sort.is_reversed), (Column::Packets, false));
        press(&mut state, &view, &typed("2sssr1"));
        assert_eq!(state.sort.column, Column::Packets);
    }

    #[test]
    fn the_cursor_moves_by_lines_and_pages() {
        let (mut state, view) = (State::default(), view(1, 100));
        state.resize(40);
        let place = |state: &State| state.place(&state.rows(&view));
        for (code, wanted) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 32),
            (KeyCode::PageUp, 1),
            (KeyCode::End, 99),
            (KeyCode::Down, 99),
            (KeyCode::Home, 0),
        ] {
            press(&mut state, &view, &[code]);
            assert_eq!(place(&state), wanted, "{code:?}");
        }
    }

    #[test]
    fn a_selected_flow_stays_selected_and_the_top_row_does_not() {
        let (mut state, first, second) = (State::default(), view(1, 5), view(2, 9));
        state.advance(&first);
        state.advance(&second);
        assert_eq!(state.place(&state.rows(&second)), 0);
        press(&mut state, &first, &[KeyCode::Down]);
        state.advance(&second);
        assert_eq!(state.place(&state.rows(&second)), 5);
    }

    #[test]
    fn a_flow_is_shown_in_full_after_it_has_ended() {
        let (mut state, with, without) = (State::default(), view(1, 5), view(2, 1));
        press(&mut state, &with, &[KeyCode::Down, KeyCode::Enter]);
        let is_there = |state: &State| match &state.overlay {
            Some(Overlay { kind: OverlayKind::Flow(flow, is_there), .. }) => {
                Some((flow.record.key.src_port, *is_there))
            }
            _ => None,
        };
        state.advance(&with);
        assert_eq!(is_there(&state), Some((40_004, true)));
        state.advance(&without);
        assert_eq!(is_there(&state), Some((40_004, false)));
        press(&mut state, &without, &[KeyCode::Esc]);
        assert!(state.overlay.is_none());
    }

    #[test]
    fn enter_on_a_talker_or_a_protocol_shows_its_flows() {
        let (mut state, view) = (State::default(), view(1, 30));
        press(&mut state, &view, &[KeyCode::Char('2'), KeyCode::Down, KeyCode::Enter]);
        assert_eq!((state.pane, state.query.text()), (Pane::Flows, "=10.0.0.2"));
        assert_eq!(state.rows(&view).len(), 1);
        press(&mut state, &view, &[KeyCode::Esc, KeyCode::Char('3'), KeyCode::Enter]);
        assert_eq!((state.pane, state.query.text()), (Pane::Flows, "=tcp"));
        assert_eq!(state.rows(&view).len(), 30);
    }

    #[test]
    fn panes_go_round_and_close_the_help() {
        let (mut state, view) = (State::default(), view(1, 3));
        press(&mut state, &view, &[KeyCode::Char('?'), KeyCode::BackTab]);
        assert!(state.pane == Pane::Losses && state.overlay.is_none());
        press(&mut state, &view, &[KeyCode::Tab]);
        assert_eq!(state.pane, Pane::Flows);
        press(&mut state, &view, &typed("p?r"));
        assert!(state.is_paused && state.overlay.is_some() && !state.sort.is_reversed);
    }
}
