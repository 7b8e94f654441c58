//! Draws the lines above the pane: sources, rates, losses, and a sparkline of the rate over the last minutes.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline, SparklineBar};

use super::history::{HISTORY_VIEWS, History};
use super::layout::Areas;
use super::ledger::Losses;
use super::look::Look;
use super::text::{bit_rate, escaped, grouped, packet_rate, per_second, span};
use crate::view::View;

/// Width of the text before the sparkline, in cells.
const PEAK_WIDTH: u16 = 16;

/// Draws these lines.
pub fn draw(frame: &mut Frame<'_>, areas: &Areas, history: &History, view: &View, look: Look) {
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(14)]).areas(areas.title);
    frame.render_widget(sources(view, look), left);
    let uptime = match view.uptime.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        _ => span(u64::try_from(view.uptime.as_nanos()).unwrap_or(u64::MAX)),
    };
    let uptime = Line::from(vec![Span::styled("up ", look.faint()), Span::raw(uptime)]);
    frame.render_widget(uptime.right_aligned(), right);
    frame.render_widget(rates(view, look), areas.rates);
    frame.render_widget(losses(view, look), areas.losses);
    if !areas.history.is_empty() {
        draw_history(frame, areas.history, history, view, look);
    }
}

fn sources(view: &View, look: Look) -> Line<'static> {
    let mut spans = vec![Span::styled("weir flows", look.strong())];
    for source in &view.sources {
        spans.push(Span::raw(format!("  {}", escaped(&source.name))));
        if !source.engine.is_empty() {
            spans.push(Span::styled(format!(" ({})", escaped(&source.engine)), look.faint()));
        }
    }
    Line::from(spans)
}

fn rates(view: &View, look: Look) -> Line<'static> {
    let figures = [
        (packet_rate(view.rates.packets), String::new()),
        (bit_rate(view.rates.bits), String::new()),
        (grouped(view.counters.flows), format!("flows of {}", grouped(view.capacity))),
        (per_second(view.began_per_second), "began".to_owned()),
    ];
    let mut spans = Vec::new();
    for (figure, name) in figures {
        if !spans.is_empty() {
            spans.push(Span::raw("  "));
        }
        spans.push(Span::styled(figure, look.strong()));
        if !name.is_empty() {
            spans.push(Span::styled(format!(" {name}"), look.faint()));
        }
    }
    if view.counters.evicted > 0 {
        spans.push(Span::raw(format!("  {} evicted", grouped(view.counters.evicted))));
    }
    Line::from(spans)
}

fn losses(view: &View, look: Look) -> Line<'static> {
    let losses = Losses::of(view);
    let mut text =
        format!("lost {}, {} in all", per_second(view.lost_per_second), grouped(losses.frames));
    let places =
        losses.places.iter().map(|(place, frames)| format!("{place} {}", grouped(*frames)));
    let places: Vec<String> = places.collect();
    if !places.is_empty() {
        text += &format!(": {}", places.join(", "));
    }
    if losses.missed_before > 0 {
        text += &format!("; missed before the hook {}", grouped(losses.missed_before));
    }
    if losses.unsent > 0 {
        text += &format!("; records unsent {}", grouped(losses.unsent));
    }
    if losses.failed_exports > 0 {
        text += &format!("; exports failed {}", losses.failed_exports);
    }
    let style = match view.lost_per_second > 0.0 {
        true => look.losing(),
        false if losses.is_none() => Style::new(),
        false => look.lost(),
    };
    Line::styled(text, style)
}

fn draw_history(frame: &mut Frame<'_>, area: Rect, history: &History, view: &View, look: Look) {
    let [left, right] =
        Layout::horizontal([Constraint::Length(PEAK_WIDTH), Constraint::Fill(1)]).areas(area);
    let peak = history.peak(view.number);
    let words = [
        Line::from(vec![Span::styled("peak ", look.faint()), Span::raw(bit_rate(peak))]),
        Line::styled(format!("of {} min", HISTORY_VIEWS / 60), look.faint()),
    ];
    for (line, row) in words.into_iter().zip(left.rows()) {
        frame.render_widget(line, row);
    }
    let samples = history.samples(right.width.into(), view.number);
    // The latest sample comes first, at the right edge.
    let bar = |sample: &super::history::Sample| {
        let style = if sample.has_lost { look.lost() } else { Style::new() };
        SparklineBar::from(sample.bits as u64).style(Some(style))
    };
    let bars: Vec<SparklineBar> = samples.iter().rev().map(bar).collect();
    let sparkline = Sparkline::default()
        .style(Style::new())
        .bar_set(look.steps())
        .direction(RenderDirection::RightToLeft)
        .data(bars)
        .max((peak as u64).max(1));
    frame.render_widget(sparkline, right);
}
