//! Pictures, as inline SVG in the colours of the page.

use std::fmt::Write;

use super::balance::Balance;
use super::stages::Dependences;
use crate::graph::{Link, StageNode};

/// Bars of bytes per SM: weights below, KV cache at the last position of the bucket on top, and the
/// mean of the weights as a line.
pub fn balance(balance: &Balance) -> String {
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 150.0;
    let total = |s: &super::SmLoad| s.weight_bytes + s.kv_bytes;
    let n = balance.sms.len().max(1);
    let tallest = balance.sms.iter().map(total).max().unwrap_or(0).max(1) as f64;
    let step = WIDTH / n as f64;
    let width = (step * 0.8).max(0.5);
    let scale = |bytes: u64| bytes as f64 / tallest * HEIGHT;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"bytes per SM\">",
        HEIGHT + 16.0
    );
    for (i, sm) in balance.sms.iter().enumerate() {
        let x = i as f64 * step;
        let (weights, kv) = (scale(sm.weight_bytes), scale(sm.kv_bytes));
        let _ = write!(
            out,
            "<g><title>SM {i}: {} weight bytes, {} KV bytes, {} instructions</title>\
             <rect class=\"weights\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{width:.2}\" height=\"{weights:.2}\"/>\
             <rect class=\"kv\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{width:.2}\" height=\"{kv:.2}\"/></g>",
            sm.weight_bytes,
            sm.kv_bytes,
            sm.instructions,
            HEIGHT - weights,
            HEIGHT - weights - kv,
        );
    }
    let mean = HEIGHT - scale(balance.weight_bytes / n as u64);
    let _ = write!(
        out,
        "<line class=\"mean\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{mean:.2}\" y2=\"{mean:.2}\"/>\
         <text x=\"0\" y=\"{:.0}\">SM 0</text><text x=\"{WIDTH}\" y=\"{:.0}\" text-anchor=\"end\">SM {}</text></svg>",
        HEIGHT + 13.0,
        HEIGHT + 13.0,
        n - 1
    );
    out
}

/// Most layers drawn; of more, the first two and the last are.
const LAYERS: usize = 6;
const BOX: (f64, f64) = (116.0, 46.0);
const GAP: (f64, f64) = (34.0, 40.0);

/// The dependence graph: a row per decoder layer, in the order of execution.
pub fn graph(graph: &Dependences) -> String {
    let (places, rows, skipped) = layout(&graph.stages);
    let columns = places.iter().flatten().map(|p| p.1 + 1).max().unwrap_or(1);
    let at = |(row, column): (usize, usize)| {
        (8.0 + column as f64 * (BOX.0 + GAP.0), 8.0 + row as f64 * (BOX.1 + GAP.1))
    };
    let (width, height) = at((rows, columns));
    let mut out = format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" style=\"min-width: 640px\" role=\"img\" aria-label=\"dependence graph\">\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path class=\"arrow\" d=\"M0 0 L8 4 L0 8 z\"/></marker></defs>"
    );
    for edge in &graph.edges {
        let (Some(from), Some(to)) = (places[edge.from], places[edge.to]) else { continue };
        let link = match edge.link {
            Link::Local => "local",
            Link::Packet => "packet",
            Link::Counter => "counter",
            Link::Boundary => "boundary",
        };
        let _ = write!(
            out,
            "<path class=\"edge {link}\" marker-end=\"url(#tip)\" d=\"{}\"><title>{}</title></path>",
            path(at(from), at(to), from, to),
            escape(&edge.buffers.join(", "))
        );
    }
    for (i, stage) in graph.stages.iter().enumerate() {
        let Some(place) = places[i] else { continue };
        let (x, y) = at(place);
        let critical = if graph.critical_path.contains(&i) { " critical" } else { "" };
        let _ = write!(
            out,
            "<g><title>{} ({} instructions)</title>\
             <rect class=\"box{critical}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" rx=\"4\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\">{} SMs, {}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\">{:.1} to {:.1} µs</text></g>",
            escape(&stage.label),
            stage.instructions,
            BOX.0,
            BOX.1,
            x + 6.0,
            y + 14.0,
            escape(stage.op),
            x + 6.0,
            y + 27.0,
            stage.sms,
            super::html::bytes(stage.weight_bytes + stage.kv_bytes),
            x + 6.0,
            y + 40.0,
            stage.predicted.start_us,
            stage.predicted.end_us
        );
    }
    if let Some((row, layers)) = skipped {
        let (x, y) = at((row, 0));
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{x:.1}\" y=\"{:.1}\">and {layers} layers alike</text>",
            y + 26.0
        );
    }
    out.push_str("</svg>");
    out
}

/// Row and column of each stage that is drawn, the number of rows, and the row that stands for the
/// layers left out with their number.
type Layout = (Vec<Option<(usize, usize)>>, usize, Option<(usize, usize)>);

fn layout(stages: &[StageNode]) -> Layout {
    let layer = |s: &StageNode| -> Option<usize> {
        s.label.strip_prefix("layer ")?.split(' ').next()?.parse().ok()
    };
    let layers = stages.iter().filter_map(layer).max().map_or(0, |l| l + 1);
    let left_out = |l: usize| layers > LAYERS && (2..layers - 1).contains(&l);
    let mut places = Vec::with_capacity(stages.len());
    let (mut row, mut column, mut before) = (0, 0, None);
    let mut skipped = None;
    for (i, stage) in stages.iter().enumerate() {
        let here = layer(stage);
        if i > 0 && here != before {
            // One row for all layers that are left out together.
            let both = here.is_some_and(left_out) && before.is_some_and(left_out);
            row += usize::from(!both);
            column = 0;
        }
        before = here;
        if here.is_some_and(left_out) {
            skipped = Some((row, layers - 3));
            places.push(None);
            continue;
        }
        places.push(Some((row, column)));
        column += 1;
    }
    (places, row + 1, skipped)
}

/// From box to box: straight to the neighbour, over the top along a row, and between rows from the
/// lower edge to the upper.
fn path(a: (f64, f64), b: (f64, f64), from: (usize, usize), to: (usize, usize)) -> String {
    let (w, h) = BOX;
    if from.0 == to.0 && to.1 == from.1 + 1 {
        return format!("M{:.1} {:.1} H{:.1}", a.0 + w, a.1 + h / 2.0, b.0);
    }
    if from.0 == to.0 {
        let (x1, x2, top) = (a.0 + w / 2.0, b.0 + w / 2.0, a.1 - GAP.1 * 0.45);
        return format!(
            "M{x1:.1} {:.1} C{x1:.1} {top:.1} {x2:.1} {top:.1} {x2:.1} {:.1}",
            a.1, b.1
        );
    }
    let (x1, y1, x2, y2) = (a.0 + w / 2.0, a.1 + h, b.0 + w / 2.0, b.1);
    let bend = GAP.1 * 0.6;
    format!("M{x1:.1} {y1:.1} C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}", y1 + bend, y2 - bend)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
