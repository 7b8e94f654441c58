//! The report as one HTML page, without scripts and without anything from elsewhere: to keep, to send.

use super::report::{Bar, Report, Row};
use super::stats::Spread;
use super::table::{figure, grouped};

/// What papers report of other systems, on their machines: for the order of magnitude, never beside ours.
const PUBLISHED: [(&str, &str, &str); 6] = [
    (
        "PF_RING, null monitor, kernel 2.6, one core, 64 B",
        "0.39 Gbit/s (PF_PACKET 0.33, kernel module 1.06)",
        "PNA study, WUSTL 2012",
    ),
    (
        "vPF_RING, one guest, 1 GbE, 64 B",
        "1.488 Mpps, no loss (VirtIO-Net lost up to 90 %)",
        "Cardigliano, Deri, Gasparakis, Fusco, IMC 2011",
    ),
    ("PF_RING and DPDK, 10 GbE, 64 B, bare metal", "100 % of 14.88 Mpps", "HPCAPvf, 2015"),
    ("HPCAP, 10 GbE, 64 B, bare metal, every packet stamped", "97.9 %", "HPCAPvf, 2015"),
    ("HPCAP40, 40 GbE, 64 B, bare metal, every packet stamped", "75.1 % of 59.5 Mpps", "VNP, 2019"),
    ("HPCAP40vf to disk, 40 GbE, CAIDA trace", "100 % of 39.8 Gbit/s", "VNP, 2019"),
];

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}\
table{border-collapse:collapse;width:100%;margin:.6rem 0}\
td,th{padding:.22rem .5rem;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.plot{position:relative;height:1.1rem;min-width:14rem;background:#f3f3f3}\
.plot i{position:absolute;top:0;bottom:0;left:0;background:#4878a8}.weir .plot i{background:#2a9d6f}\
.plot b{position:absolute;top:.5rem;height:.12rem;background:#000}\
.short{color:#b00020;font-weight:600}.met{color:#187a3a}.note{color:#555;font-size:.9rem}";

/// The whole page.
#[must_use]
pub fn page(report: &Report) -> String {
    let machine = &report.machine;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Weir, measured</title>\n\
         <style>{STYLE}</style>\n<h1>Weir, measured</h1>\n<pre class=\"note\">{}",
        escape(&machine.text())
    );
    for condition in &report.conditions {
        html += &format!("note     {}\n", escape(condition));
    }
    html += "</pre>\n";
    if report.interrupted {
        html += "<p class=\"short\">Interrupted: not every row has all its rounds.</p>\n";
    }
    html += &bars(&report.bars);
    let mut from = 0;
    while let Some(first) = report.rows.get(from) {
        let same = |row: &&Row| {
            row.section == first.section
                && (row.size_on_wire == first.size_on_wire || first.size_on_wire.is_none())
                && row.unit == first.unit
        };
        let count = report.rows[from..].iter().take_while(same).count();
        html += &group(&report.rows[from..from + count]);
        from += count;
    }
    html + &published() + "</html>\n"
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

/// Rows of one section, frame size and unit: one scale.
fn group(rows: &[Row]) -> String {
    let first = &rows[0];
    let size =
        first.size_on_wire.map_or_else(String::new, |size| format!(", {size} B on the wire"));
    let ratio = first.compared_with.as_deref().unwrap_or("");
    let scale = rows.iter().filter_map(|row| Some(row.value?.max)).fold(0.0, f64::max);
    let mut html = format!(
        "<h2>{}{size}</h2>\n<table><tr><th><th class=n>{}<th><th class=n>{}<th class=n>CPU s/M\
         <th class=n>offered<th>lost</tr>\n",
        escape(first.section),
        escape(first.unit),
        if ratio.is_empty() { String::new() } else { format!("x {}", escape(ratio)) },
    );
    for row in rows {
        html += &one(row, scale);
    }
    html + "</table>\n"
}

fn one(row: &Row, scale: f64) -> String {
    let class = if row.what.starts_with("weir") { " class=weir" } else { "" };
    let name = escape(&row.what);
    let Some(value) = row.value else {
        let why = escape(row.absent.as_deref().unwrap_or("not reached"));
        return format!("<tr{class}><td>{name}<td><td class=note colspan=5>n/a: {why}</tr>\n");
    };
    let ratio = row.ratio.map_or_else(String::new, |ratio| figure(ratio.median));
    let frames = row.frames();
    let cpu = frames.as_ref().and_then(|frames| frames.cpu_per_million());
    let (offered, lost) = frames.as_ref().map_or_else(Default::default, |frames| {
        (grouped(frames.offered), super::report::lost(frames))
    });
    let notes = [lost.as_str(), &row.note, row.absent.as_deref().unwrap_or("")];
    let notes: Vec<String> =
        notes.into_iter().filter(|note| !note.is_empty()).map(escape).collect();
    format!(
        "<tr{class}><td>{name}<td class=n>{}<td>{}<td class=n>{ratio}<td class=n>{}<td class=n>{offered}\
         <td class=note>{}</tr>\n",
        figure(value.median),
        plot(value, scale),
        cpu.map_or_else(String::new, figure),
        notes.join("; ")
    )
}

/// A bar to the median, and a line from the least to the most.
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

fn published() -> String {
    let mut html =
        "<h2>Published, not run here</h2>\n<p class=note>Other machines, other years, other \
                    methods: not to be compared with the rows above.</p>\n<table>\n"
            .to_owned();
    for (what, figure, source) in PUBLISHED {
        html +=
            &format!("<tr><td>{}<td>{}<td>{}</tr>\n", escape(what), escape(figure), escape(source));
    }
    html + "</table>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Disturbance, Machine};
    use super::super::report::{Frames, MPPS, Side, conclude};
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
        let (machine, conditions) = (Machine::look(), vec!["as it was".to_owned()]);
        let text = page(&Report { machine, conditions, rows, bars, interrupted: true });
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
