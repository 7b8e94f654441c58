//! State of the display.

use super::history::History;
use super::look::Look;
use super::rows::{Cursor, Pane, Row, RowId, rows};
use super::search::Query;
use super::sort::Sort;
use crate::view::{FlowView, View};

/// State of the display: the user's choices, and the history of rates.
///
/// [`press`](State::press) changes it on a key press, [`advance`](State::advance) on a new view; [`draw`](super::draw)
/// displays it.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) look: Look,
    pub(super) pane: Pane,
    pub(super) overlay: Option<Overlay>,
    pub(super) query: Query,
    /// Whether a search is being typed.
    pub(super) is_typing: bool,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    /// The cursor of each pane.
    pub(super) cursors: [Cursor; Pane::ALL.len()],
    /// Number of lines of the ledger that are scrolled out at the top.
    pub(super) ledger_top: usize,
    pub(super) history: History,
    /// Number of lines of the screen.
    pub(super) height: u16,
}

/// Text that is shown instead of the pane.
#[derive(Clone, Debug)]
pub(super) struct Overlay {
    pub kind: OverlayKind,
    /// Number of lines of the text that are scrolled out at the top.
    pub top: usize,
}

#[derive(Clone, Debug)]
pub(super) enum OverlayKind {
    Help,
    /// All fields of a flow, as it was in the last view that had it, and whether it still exists.
    Flow(Box<FlowView>, bool),
}

impl State {
    /// Creates the state for the first pane, without a selection.
    #[must_use]
    pub fn new(look: Look) -> State {
        State { look, ..State::default() }
    }

    /// Sets the number of lines of the screen.
    pub fn resize(&mut self, height: u16) {
        self.height = height;
    }

    /// Returns whether the display is paused. New views must still be passed to [`remember`](State::remember).
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Adds the rate of a view to the sparkline.
    pub fn remember(&mut self, view: &View) {
        self.history.push(view);
    }

    /// Displays this view from now on.
    pub fn advance(&mut self, view: &View) {
        self.remember(view);
        for pane in [Pane::Flows, Pane::Talkers, Pane::Protocols] {
            let rows = rows(pane, &self.query, self.sort, view);
            self.cursors[pane as usize].follow(&rows);
        }
        if let Some(Overlay { kind: OverlayKind::Flow(flow, is_there), .. }) = &mut self.overlay {
            let id = RowId::of(flow);
            let found = view.flows.iter().find(|flow| RowId::of(flow) == id);
            *is_there = found.is_some();
            if let Some(found) = found {
                **flow = *found;
            }
        }
    }

    /// Returns the rows of the open pane.
    pub(super) fn rows(&self, view: &View) -> Vec<Row> {
        rows(self.pane, &self.query, self.sort, view)
    }

    /// Returns the cursor of the open pane.
    pub(super) fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.pane as usize]
    }

    /// Returns the place of the selected row in the open pane.
    pub(super) fn place(&self, rows: &[Row]) -> usize {
        self.cursors[self.pane as usize].place(rows)
    }
}
