//! Draws curves over the frame size, as inline SVG.

use super::super::row::Row;
use super::super::stats::Spread;
use super::super::table::figure;
use super::escape::escape;

/// A chart needs at least this many sizes.
const SIZES_MIN: usize = 3;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 330.0;
/// Space for the labels: left, right, top, bottom.
const MARGINS: [f64; 4] = [66.0, 16.0, 12.0, 40.0];
/// Curves of Weir are solid, those of peers dashed. The colours of Weir's curves are from the palette of Okabe and Ito,
/// which readers with colour blindness can distinguish.
const OURS: [&str; 6] = ["#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#e69f00", "#000000"];
const PEERS: [&str; 7] =
    ["#d55e00", "#999999", "#b8860b", "#8b0000", "#4b0082", "#2f4f4f", "#c71585"];

struct Curve {
    name: String,
    colour: &'static str,
    is_ours: bool,
    points: Vec<(u32, Spread)>,
}

/// The kind of values that a chart has.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// The values of the rows.
    Own,
    Gbps,
}

/// Returns a chart of a section's rows if they have at least three sizes; otherwise an empty text.
pub(super) fn chart(rows: &[&Row], values: Values, unit: &str) -> String {
    let mut sizes: Vec<u32> = rows.iter().filter_map(|row| row.size_on_wire).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let curves = curves(rows, values);
    let most = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1.max);
    let most = most.fold(0.0, f64::max);
    if sizes.len() < SIZES_MIN || most <= 0.0 {
        return String::new();
    }
    let scale = Scale { sizes, top: round_up(most) };
    let mut svg = format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0} over the frame size\">\n",
        escape(unit)
    );
    svg += &scale.axes(unit);
    for curve in &curves {
        svg += &scale.curve(curve);
    }
    svg += "</svg>\n<figcaption>";
    for Curve { name, colour, is_ours, .. } in &curves {
        let style = if *is_ours { "solid" } else { "dashed" };
        svg += &format!(
            "<span><i style=\"border-top:.18rem {style} {colour}\"></i>{}</span> ",
            escape(name)
        );
    }
    svg + "</figcaption></figure>\n"
}

fn curves(rows: &[&Row], values: Values) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    let (mut ours, mut peers) = (OURS.iter().cycle(), PEERS.iter().cycle());
    for row in rows {
        let value = match values {
            Values::Own => row.value,
            Values::Gbps => row.gbps,
        };
        let Some((size, value)) = row.size_on_wire.zip(value) else { continue };
        if let Some(curve) = curves.iter_mut().find(|curve| curve.name == row.what) {
            curve.points.push((size, value));
            continue;
        }
        let is_ours = row.what.starts_with("weir");
        let colour = if is_ours { ours.next() } else { peers.next() }.expect("cycles have no end");
        curves.push(Curve { name: row.what.clone(), colour, is_ours, points: vec![(size, value)] });
    }
    curves
}

/// Returns the smallest number of 1, 2 or 5 times a power of ten that is at least `value`. `value` is above 0.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

struct Scale {
    sizes: Vec<u32>,
    top: f64,
}

impl Scale {
    /// Returns the horizontal position of a frame size. Sizes are spaced equally.
    fn x(&self, size: u32) -> f64 {
        let [left, right, ..] = MARGINS;
        let at = self.sizes.iter().position(|&other| other == size).unwrap_or(0);
        left + 14.0 + (WIDTH - left - right - 28.0) * at as f64 / (self.sizes.len() - 1) as f64
    }

    fn y(&self, value: f64) -> f64 {
        let [.., top, bottom] = MARGINS;
        HEIGHT - bottom - (HEIGHT - top - bottom) * value / self.top
    }

    fn axes(&self, unit: &str) -> String {
        let [left, right, ..] = MARGINS;
        let mut svg = String::new();
        for step in 0..=4 {
            let value = self.top * f64::from(step) / 4.0;
            let (y, end) = (self.y(value), WIDTH - right);
            svg += &format!(
                "<path d=\"M{left} {y:.1}H{end}\" stroke=\"#ddd\"/><text x=\"{0}\" y=\"{1:.1}\" \
                 text-anchor=\"end\">{2}</text>\n",
                left - 6.0,
                y + 4.0,
                figure(value)
            );
        }
        for &size in &self.sizes {
            let (x, y) = (self.x(size), HEIGHT - 22.0);
            svg += &format!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{size}</text>\n");
        }
        svg + &format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">bytes of a frame on the wire, with FCS</text>\n\
             <text transform=\"translate(12 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            (WIDTH + left) / 2.0,
            HEIGHT - 5.0,
            HEIGHT / 2.0,
            escape(unit)
        )
    }

    /// Draws a line through the medians, and at each point a line from the minimum to the maximum.
    fn curve(&self, curve: &Curve) -> String {
        let Curve { name, colour, is_ours, points } = curve;
        let dash = if *is_ours { "" } else { " stroke-dasharray=\"5 4\"" };
        let (mut line, mut marks) = (String::new(), String::new());
        for (index, (size, value)) in points.iter().enumerate() {
            let (x, y) = (self.x(*size), self.y(value.median));
            line += &format!("{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
            marks += &format!(
                "<path d=\"M{x:.1} {:.1}V{:.1}\" stroke=\"{colour}\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" \
                 r=\"3\" fill=\"{colour}\"><title>{}, {size} B: {} ({}..{})</title></circle>\n",
                self.y(value.min),
                self.y(value.max),
                escape(name),
                figure(value.median),
                figure(value.min),
                figure(value.max)
            );
        }
        format!(
            "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n{marks}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::machine::Disturbance;
    use super::super::super::row::{Frames, MPPS, conclude};
    use super::*;

    fn rows(sizes: &[u32]) -> Vec<Row> {
        let mut rows = Vec::new();
        for &size in sizes {
            for (what, kept) in [("weir af_packet", 2_000_000), ("tcp<dump>", 1_000_000)] {
                let mut row = Row::new("wire", what, MPPS).sized(size);
                row.add_frames(0, Frames::new(kept, kept, [].into(), 1.0), Disturbance::default());
                rows.push(row);
            }
        }
        conclude(&mut rows, "");
        rows
    }

    #[test]
    fn a_chart_has_a_curve_for_every_tool_that_ran() {
        let mut rows = rows(&[64, 512, 1518]);
        rows.push(Row::new("wire", "absent", MPPS).sized(64));
        let rows: Vec<&Row> = rows.iter().collect();
        let svg = chart(&rows, Values::Own, "Mpps");
        assert_eq!(svg.matches("stroke-width=").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(svg.contains("tcp&lt;dump&gt;") && !svg.contains("absent"), "{svg}");
        // An unquoted value would include the slash that ends its element.
        let unquoted = svg.split('=').skip(1).filter(|value| !value.starts_with('"'));
        assert_eq!(unquoted.count(), 0, "{svg}");
        assert!(svg.contains("weir af_packet, 1518 B: 2.00 (2.00..2.00)"), "{svg}");
        let svg = chart(&rows, Values::Gbps, "Gbit/s");
        // An unquoted value would take in the slash that ends its element.
        assert!(svg.split("<figcaption>").next().is_some_and(|svg| !svg.contains("\"/>=")));
        assert!(svg.contains("weir af_packet, 1518 B: 24.3 (24.3..24.3)"), "{svg}");
    }

    #[test]
    fn two_sizes_make_no_curve() {
        let rows = rows(&[64, 1518]);
        assert_eq!(chart(&rows.iter().collect::<Vec<_>>(), Values::Own, "Mpps"), "");
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!([0.8, 1.0, 3.1, 34.0, 51.0].map(round_up), [1.0, 1.0, 5.0, 50.0, 100.0]);
    }
}
