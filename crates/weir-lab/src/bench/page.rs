//! Formats the report as one HTML page without scripts and external resources, to be kept or sent.

mod chart;
mod escape;
mod published;
pub(super) mod words;

use super::ahead::Ahead;
use super::bar::Bar;
use super::report::Report;
use super::row::Row;
use super::stats::Spread;
use super::table::{figure, grouped};
use super::wire;
use chart::{Values, chart};
use escape::escape;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color:#222}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}\
table{border-collapse:collapse;width:100%;margin:.6rem 0}\
td,th{padding:.22rem .5rem;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.plot{position:relative;height:1.1rem;min-width:14rem;background:#f3f3f3}\
.plot i{position:absolute;top:0;bottom:0;left:0;background:#4878a8}.weir .plot i{background:#2a9d6f}\
.plot b{position:absolute;top:.5rem;height:.12rem;background:#000}\
.plot.log i{background:#9fb8d1}.weir .plot.log i{background:#9fd3bd}.plot u{position:absolute;top:0;bottom:0;\
width:.12rem;background:#333}.plot s{position:absolute;top:.3rem;height:.5rem;width:.5rem;border-radius:50%;\
background:#b00020}\
pre{white-space:pre-wrap}figure{margin:1rem 0}svg{width:100%;max-width:46rem;font:12px system-ui,sans-serif}\
figcaption span{margin-right:1rem;white-space:nowrap;font-size:.85rem}figcaption i{display:inline-block;\
width:1.6rem;vertical-align:middle;margin-right:.3rem}\
dt{font-weight:600;float:left;clear:left;width:8rem}dd{margin:0 0 .3rem 8.5rem}tr.ahead td{background:#fdeff0}\
.short{color:#b00020;font-weight:600}.met{color:#187a3a}.note{color:#555;font-size:.9rem}";

/// Returns the whole page.
#[must_use]
pub fn page(report: &Report) -> String {
    let machine = &report.machine;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Weir, measured</title>\n\
         <style>{STYLE}</style>\n<h1>Weir, measured</h1>\n<pre class=\"note\">{}</pre>\n<ul class=\"note\">\n",
        escape(&(machine.text() + &report.disturbance()))
    );
    for condition in &report.conditions {
        html += &format!("<li>{}\n", escape(condition));
    }
    html += "</ul>\n";
    if report.interrupted {
        html += "<p class=\"short\">Interrupted: not every row has all its rounds.</p>\n";
    }
    html += &ahead(report);
    html += &bars(&report.bars);
    let (mut from, mut section) = (0, "");
    while let Some(first) = report.rows.get(from) {
        let same = |row: &&Row| {
            row.section == first.section
                && (row.size_on_wire == first.size_on_wire || first.size_on_wire.is_none())
                && row.unit == first.unit
        };
        let count = report.rows[from..].iter().take_while(same).count();
        if first.section != section {
            section = first.section;
            html += &heading(report, section);
        }
        html += &group(&report.rows[from..from + count], &report.ahead);
        from += count;
    }
    html + &words::columns() + &published::published() + "</html>\n"
}

/// Returns a section's name, its description, and its charts if it has any.
fn heading(report: &Report, section: &str) -> String {
    let mut html = format!("<h2>{}</h2>\n<p>{}</p>\n", escape(section), words::of_section(section));
    if section == wire::SECTION {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.section == section).collect();
        html += &chart(&rows, Values::Own, "Mpps kept");
        html += &chart(&rows, Values::Gbps, "Gbit/s kept");
    }
    html
}

/// Returns the table of rows in which a peer was faster. It comes first.
fn ahead(report: &Report) -> String {
    let mut html = "<h2>Where a peer was ahead</h2>\n".to_owned();
    if report.ahead.is_empty() {
        return html
            + "<p>In this run no peer that ran was faster than the engine of Weir that takes frames the \
               same way.</p>\n";
    }
    html += "<p>Peers that were faster than the engine of Weir that takes frames the same way (the median of \
             the ratios within each round is above 1; a dash where that engine kept nothing or failed, so that there \
             is no ratio). Their rows are tinted below.</p>\n\
             <table><tr><th>measured<th class=n>frame<th>peer<th>faster than<th class=n>x<th class=n>min..max</tr>\n";
    for ahead in &report.ahead {
        let [section, size, peer, weir, ratio, range] = ahead.cells().map(|cell| escape(&cell));
        html += &format!(
            "<tr><td>{section}<td class=n>{size}<td class=short>{peer}<td>{weir}<td class=\"n short\">{ratio}\
             <td class=n>{range}</tr>\n"
        );
    }
    html + "</table>\n"
}

fn bars(bars: &[Bar]) -> String {
    if bars.is_empty() {
        return String::new();
    }
    let mut html = "<h2>What we ask of ourselves</h2>\n<table><tr><th>median<th class=n>found\
                    <th class=n>asked<th></tr>\n"
        .to_owned();
    for bar in bars {
        let [what, found, asked, verdict] = bar.cells();
        let class = if bar.met == Some(true) { "met" } else { "short" };
        html += &format!(
            "<tr><td>{}<td class=n>{found}<td class=n>{}<td class={class}>{verdict}</tr>\n",
            escape(&what),
            escape(&asked)
        );
    }
    html + "</table>\n"
}

/// Returns the table of the rows of one section, frame size and unit, all on one scale.
fn group(rows: &[Row], ahead: &[Ahead]) -> String {
    if rows.iter().any(|row| row.latency().is_some()) {
        return latencies(rows);
    }
    let first = &rows[0];
    let size = first.size_on_wire.map_or_else(String::new, |size| format!("{size} B on the wire"));
    let ratio = first.compared_with.as_deref().unwrap_or("");
    let scale = rows.iter().filter_map(|row| Some(row.value?.max)).fold(0.0, f64::max);
    let mut html = format!(
        "<h3>{size}</h3>\n<table><tr><th><th class=n>{}<th><th class=n>{}<th class=n>{}<th class=n>CPU s/M\
         <th class=n>offered<th class=n>kept<th>lost</tr>\n",
        escape(first.unit),
        if rows.iter().any(|row| row.gbps.is_some()) { "Gbit/s" } else { "" },
        if ratio.is_empty() { String::new() } else { format!("x {}", escape(ratio)) },
    );
    for row in rows {
        html += &one(row, scale, ahead);
    }
    html + "</table>\n"
}

fn one(row: &Row, scale: f64, ahead: &[Ahead]) -> String {
    let is_ahead = |ahead: &&Ahead| {
        (ahead.section, ahead.size_on_wire, &ahead.peer)
            == (row.section, row.size_on_wire, &row.what)
    };
    let class = match () {
        () if row.what.starts_with("weir") => " class=weir",
        () if ahead.iter().find(is_ahead).is_some() => " class=ahead",
        () => "",
    };
    let name = escape(&row.what);
    let Some(value) = row.value else {
        let why = escape(row.absent.as_deref().unwrap_or("not reached"));
        return format!("<tr{class}><td>{name}<td><td class=note colspan=7>n/a: {why}</tr>\n");
    };
    let ratio = row.ratio.map_or_else(String::new, |ratio| figure(ratio.median));
    let frames = row.frames();
    let cpu = frames.as_ref().and_then(|frames| frames.cpu_per_million());
    let [offered, kept, lost] = frames.as_ref().map_or_else(Default::default, |frames| {
        [grouped(frames.offered), grouped(frames.kept), super::row::lost(frames)]
    });
    let gbps = row.gbps.map_or_else(String::new, |gbps| figure(gbps.median));
    let notes = [lost.as_str(), &row.note, row.absent.as_deref().unwrap_or("")];
    let notes: Vec<String> =
        notes.into_iter().filter(|note| !note.is_empty()).map(escape).collect();
    format!(
        "<tr{class}><td>{name}<td class=n>{}<td>{}<td class=n>{gbps}<td class=n>{ratio}<td class=n>{}\
         <td class=n>{offered}<td class=n>{kept}<td class=note>{}</tr>\n",
        figure(value.median),
        plot(value, scale),
        cpu.map_or_else(String::new, figure),
        notes.join("; ")
    )
}

/// Returns the table of rows with delays, all on one logarithmic scale.
fn latencies(rows: &[Row]) -> String {
    let size =
        rows[0].size_on_wire.map_or_else(String::new, |size| format!("{size} B on the wire"));
    let found = rows.iter().filter_map(Row::latency);
    let (least, most) = found.fold((f64::MAX, 0.0), |(least, most): (f64, f64), latency| {
        (least.min(latency.p50_us), most.max(latency.max_us))
    });
    // The scale ends at whole powers of ten, with space for the mark at the end.
    let (from, to) = (least.max(0.1).log10().floor(), (most.max(1.0) * 1.2).log10().ceil());
    let part = |us: f64| 100.0 * ((us.max(0.1).log10() - from) / (to - from)).clamp(0.0, 1.0);
    let mut html = format!(
        "<h3>{size}</h3>\n<table><tr><th><th class=n>p50 us<th class=n>p90<th class=n>p99<th class=n>p99.9\
         <th class=n>max<th>{} to {} us, logarithmic<th class=n>frames<th>lost</tr>\n",
        figure(10f64.powf(from)),
        figure(10f64.powf(to))
    );
    for row in rows {
        let name = escape(&row.what);
        let (Some(latency), Some(frames)) = (row.latency(), row.frames()) else {
            let why = escape(row.absent.as_deref().unwrap_or("not reached"));
            html += &format!("<tr class=weir><td>{name}<td class=note colspan=8>n/a: {why}</tr>\n");
            continue;
        };
        html += &format!("<tr class=weir><td>{name}");
        for us in latency.all_us() {
            html += &format!("<td class=n>{}", figure(us));
        }
        let [p50, p90, p99, p999, max] = latency.all_us().map(part);
        let notes = [super::row::lost(&frames), row.note.clone()];
        let notes: Vec<_> =
            notes.iter().filter(|note| !note.is_empty()).map(|n| escape(n)).collect();
        html += &format!(
            "<td><div class=\"plot log\"><i style=\"left:{p50:.1}%;width:{:.1}%\"></i><u style=\"left:{p90:.1}%\">\
             </u><u style=\"left:{p99:.1}%\"></u><s style=\"left:{max:.1}%\"></s></div><td class=n>{}\
             <td class=note>{}</tr>\n",
            (p999 - p50).max(0.5),
            grouped(latency.frames),
            notes.join("; ")
        );
    }
    html + "</table>\n"
}

/// Draws a bar to the median, and a line from the minimum to the maximum.
fn plot(value: Spread, scale: f64) -> String {
    let part = |value: f64| if scale > 0.0 { 100.0 * value / scale } else { 0.0 };
    let (least, most) = (part(value.min), part(value.max));
    format!(
        "<div class=plot title=\"{}..{}\"><i style=\"width:{:.1}%\"></i><b style=\"left:{least:.1}%;\
         width:{:.1}%\"></b></div>",
        figure(value.min),
        figure(value.max),
        part(value.median),
        most - least
    )
}

#[cfg(test)]
mod tests {
    use super::super::bar::Side;
    use super::super::machine::{Disturbance, Machine};
    use super::super::row::{Frames, MPPS, conclude};
    use super::*;

    #[test]
    fn a_page_has_every_row_every_loss_and_no_markup_of_others() {
        let mut tc = Row::new("wire", "weir <tc>", MPPS).sized(64);
        let mut frames = Frames::new(1_000_000, 999_000, [("lapped".to_owned(), 1000)].into(), 1.0);
        frames.cpu_seconds = Some(0.5);
        tc.add_frames(0, frames, Disturbance::default());
        let mut missing = Row::new("wire", "dumpcap", MPPS).sized(64);
        missing.absent = Some("not installed".to_owned());
        let mut rows = vec![tc, missing];
        conclude(&mut rows, "dumpcap");
        let bars = vec![Bar::new("a < b", Some(1.0), Side::AtLeast, 2.0)];
        let conditions = vec!["as it was".to_owned()];
        let report = Report {
            conditions,
            rows,
            bars,
            ..Report::new(Machine::look("/nowhere/weir".as_ref()))
        };
        let text = page(&Report { interrupted: true, ..report });
        for part in [
            "weir &lt;tc&gt;",
            "lapped 1 000",
            "n/a: not installed",
            "FALLS SHORT",
            "a &lt; b",
            "as it was",
            "Interrupted",
            "Published, not run here",
            "0.501",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<tc>") && !text.contains("<script") && !text.contains("http"));
    }
}
