//! Draws the whole screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::detail;
use super::header;
use super::help;
use super::layout::Areas;
use super::ledger::{self, Entry};
use super::look::Look;
use super::panes;
use super::rows::{Pane, Row, first_shown};
use super::state::{OverlayKind, State};
use super::text::{escaped, grouped};
use crate::view::View;

/// Draws a view as the state of the display requires. Works for any size of the screen; parts without room are left
/// out.
pub fn draw(frame: &mut Frame<'_>, state: &State, view: &View) {
    let areas = Areas::of(frame.area());
    header::draw(frame, &areas, &state.history, view, state.look);
    frame.render_widget(tabs(state, view), areas.tabs);
    let rows = state.rows(view);
    match &state.overlay {
        Some(overlay) => {
            let lines = match &overlay.kind {
                OverlayKind::Help => help_lines(state.look),
                OverlayKind::Flow(flow, is_there) => {
                    let fields = detail::fields(flow, view);
                    let end = if *is_there { "" } else { " (no longer shown: as it was last)" };
                    pairs(&format!("flow{end}"), &fields, state.look)
                }
            };
            draw_lines(frame, areas.pane, lines, overlay.top);
        }
        None if state.pane == Pane::Losses => {
            draw_lines(frame, areas.pane, ledger_lines(view, state.look), state.ledger_top);
        }
        None => panes::draw(frame, areas.pane, state, &rows, view),
    }
    frame.render_widget(foot(state, &rows, view, areas.pane.height), areas.foot);
}

/// Returns the line with the panes, the user's choices, and the last message.
fn tabs(state: &State, view: &View) -> Line<'static> {
    let look = state.look;
    let mut spans = Vec::new();
    for (pane, number) in Pane::ALL.into_iter().zip(1..) {
        let style = if state.pane == pane { look.selected() } else { Style::new() };
        spans.push(Span::styled(format!(" {number} {} ", pane.name()), style));
    }
    if state.is_paused {
        spans.push(Span::styled("  paused (p goes on)", look.chosen()));
    }
    if state.is_typing || !state.query.is_empty() {
        let end = if state.is_typing { "_" } else { "" };
        spans.push(Span::styled(format!("  /{}{end}", state.query.text()), look.chosen()));
    }
    if let Some(line) = view.news.last() {
        spans.push(Span::styled(format!("  {}", escaped(line)), look.faint()));
    }
    Line::from(spans)
}

/// Returns the line with the range of the displayed rows, and keys.
fn foot(state: &State, rows: &[Row], view: &View, pane_lines: u16) -> Line<'static> {
    let mut text = String::new();
    if state.overlay.is_none() && state.pane != Pane::Losses {
        let all = match state.pane {
            Pane::Flows => view.flows.len(),
            Pane::Talkers => view.talkers.len(),
            _ => view.protocols.len(),
        };
        let height = usize::from(pane_lines.saturating_sub(1));
        let first = first_shown(state.place(rows), rows.len(), height);
        let last = rows.len().min(first + height);
        let count = |count: usize| grouped(count as u64);
        text += &match rows.len() {
            0 => "none".to_owned(),
            length => format!("{}-{} of {}", count(first + 1), count(last), count(length)),
        };
        if rows.len() < all {
            text += &format!(" that match ({} in all)", count(all));
        }
        if state.pane == Pane::Flows && view.flows_left_out > 0 {
            text += &format!("; {} slower ones left out", grouped(view.flows_left_out));
        }
    }
    let keys: &[(&str, &str)] = match (&state.overlay, state.is_typing, state.pane) {
        (Some(_), ..) => &[("Esc", "close"), ("q", "quit")],
        (None, true, _) => &[("Enter", "keep"), ("Esc", "clear")],
        (None, false, Pane::Flows) => {
            &[("?", "help"), ("q", "quit"), ("/", "search"), ("s", "sort"), ("Enter", "flow")]
        }
        (None, false, Pane::Losses) => &[("?", "help"), ("q", "quit")],
        (None, false, _) => &[("?", "help"), ("q", "quit"), ("/", "search"), ("Enter", "flows")],
    };
    let mut spans = vec![Span::raw(text)];
    for (key, what) in keys {
        spans.push(Span::raw(if spans.len() == 1 && spans[0].content.is_empty() {
            ""
        } else {
            "  "
        }));
        spans.push(Span::styled(*key, state.look.strong()));
        spans.push(Span::styled(format!(" {what}"), state.look.faint()));
    }
    Line::from(spans)
}

/// Draws the lines from `top` on. If they would not fill the area, draws the last lines.
fn draw_lines(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'static>>, top: usize) {
    let top = top.min(lines.len().saturating_sub(area.height.into()));
    for (line, row) in lines.into_iter().skip(top).zip(area.rows()) {
        frame.render_widget(line, row);
    }
}

fn help_lines(look: Look) -> Vec<Line<'static>> {
    let lines = help::LINES.iter().map(|(key, what)| (*key, (*what).to_owned()));
    pairs("keys", &lines.collect::<Vec<_>>(), look)
}

/// Returns lines with a title, and with names and their values.
fn pairs(title: &str, pairs: &[(&'static str, String)], look: Look) -> Vec<Line<'static>> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let pair = |(name, value): &(&'static str, String)| {
        Line::from(vec![
            Span::styled(format!("{name:<width$}"), look.strong()),
            Span::raw(format!("  {value}")),
        ])
    };
    let title = Line::styled(title.to_owned(), look.head());
    [title].into_iter().chain(pairs.iter().map(pair)).collect()
}

fn ledger_lines(view: &View, look: Look) -> Vec<Line<'static>> {
    let line = |entry| match entry {
        Entry::Title(title) => Line::styled(title, look.head()),
        Entry::Count(name, value, is_loss) => {
            let style = if is_loss { look.lost() } else { Style::new() };
            Line::styled(format!("{name:<20} {value:>20}"), style)
        }
        Entry::Line(line) => Line::raw(line),
        Entry::Gap => Line::default(),
    };
    ledger::entries(view).into_iter().map(line).collect()
}
