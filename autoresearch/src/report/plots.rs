//! Pictures, as inline SVG in the colours of the page.

use std::fmt::Write;

use super::effects::KnobEffects;
use super::gather::Report;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 46.0;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Times of all candidates, and the best so far as a line, against the running time.
pub(super) fn progress(r: &Report) -> String {
    const HEIGHT: f64 = 260.0;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"best so far against time\">",
        HEIGHT + 34.0
    );
    let Some(least) = r.tried.iter().map(|t| t.us).min_by(f64::total_cmp) else {
        out.push_str("<text x=\"0\" y=\"20\">no candidate has a time</text></svg>");
        return out;
    };
    // A few very slow candidates must not flatten all the others.
    let start = r.tried[0].us;
    let low = r.floor_us.map_or(least, |f| f.min(least)) * 0.98;
    let high = (start.max(least) * 1.25).max(low * 1.02);
    let last = r.tried.iter().map(|t| t.minutes).fold(0.0, f64::max).max(1e-3);
    let x = |minutes: f64| LEFT + minutes / last * (WIDTH - LEFT - 8.0);
    let y = |us: f64| HEIGHT - (us.clamp(low, high) - low) / (high - low) * (HEIGHT - 12.0);
    for k in 0..=4 {
        let us = low + (high - low) * f64::from(k) / 4.0;
        let (at, text) = (y(us), y(us) + 3.5);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.0}\" y=\"{text:.1}\" text-anchor=\"end\">{us:.0}</text>",
            LEFT - 6.0
        );
        let minutes = last * f64::from(k) / 4.0;
        let anchor = if k == 4 { "end" } else { "middle" };
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{minutes:.1}</text>",
            x(minutes),
            HEIGHT + 16.0
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">minutes; microseconds per token upwards</text>",
        WIDTH / 2.0,
        HEIGHT + 30.0
    );
    if let Some(floor) = r.floor_us {
        let at = y(floor);
        let _ = write!(
            out,
            "<line class=\"floor\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"><title>reading alone: {floor:.1} us</title></line>"
        );
    }
    for t in r.tried.iter().filter(|t| !t.kept) {
        let _ = write!(
            out,
            "<circle class=\"tried\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2\"/>",
            x(t.minutes),
            y(t.us)
        );
    }
    let mut path = String::new();
    for t in r.tried.iter().filter(|t| t.kept) {
        match path.is_empty() {
            true => _ = write!(path, "M{:.1} {:.1}", x(t.minutes), y(t.us)),
            false => _ = write!(path, "H{:.1}V{:.1}", x(t.minutes), y(t.us)),
        }
    }
    let _ = write!(path, "H{:.1}", x(last));
    let _ = write!(out, "<path class=\"best\" d=\"{path}\"/>");
    for t in r.tried.iter().filter(|t| t.kept) {
        let _ = write!(
            out,
            "<circle class=\"kept\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{:.1} us after {:.1} minutes</title></circle>",
            x(t.minutes),
            y(t.us),
            t.us,
            t.minutes
        );
    }
    out.push_str("</svg>");
    out
}

/// A bar for each verdict.
pub(super) fn outcomes(r: &Report) -> String {
    const ROW: f64 = 20.0;
    const TEXT: f64 = 190.0;
    let most = r.verdicts.iter().map(|v| v.count).max().unwrap_or(1).max(1) as f64;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"candidates by verdict\">",
        ROW * r.verdicts.len().max(1) as f64
    );
    for (i, row) in r.verdicts.iter().enumerate() {
        let y = i as f64 * ROW;
        let width = row.count as f64 / most * (WIDTH - TEXT - 70.0);
        let class = if row.what.starts_with("kept") { "kept" } else { "other" };
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{TEXT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            TEXT - 8.0,
            y + 14.0,
            escape(&row.what),
            y + 3.0,
            TEXT + width + 6.0,
            y + 14.0,
            row.count
        );
    }
    out.push_str("</svg>");
    out
}

/// For each value of a knob how fast its candidates were against the incumbent of then: a bar from 1 to the median, a
/// mark at the best.
pub(super) fn effects(knob: &KnobEffects) -> String {
    const ROW: f64 = 18.0;
    const TEXT: f64 = 150.0;
    let reach = knob.values.iter().flat_map(|v| [v.median, v.best]).map(|v| (v - 1.0).abs());
    let reach = reach.fold(0.02, f64::max).min(1.0);
    let middle = TEXT + (WIDTH - TEXT - 120.0) / 2.0;
    let x = |v: f64| middle + ((v - 1.0) / reach).clamp(-1.0, 1.0) * (middle - TEXT);
    let height = ROW * knob.values.len() as f64;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"effect of {}\">\
         <line class=\"grid\" x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"0\" y2=\"{height:.0}\"/>",
        escape(&knob.name)
    );
    for (i, v) in knob.values.iter().enumerate() {
        let y = i as f64 * ROW;
        let (from, to) = (x(1.0).min(x(v.median)), x(1.0).max(x(v.median)));
        let class = if v.median >= 1.0 { "faster" } else { "slower" };
        let best = x(v.best);
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"11\"/>\
             <line class=\"mark\" x1=\"{best:.1}\" x2=\"{best:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\">{:.3}, best {:.3} of {}</text>",
            TEXT - 8.0,
            y + 12.0,
            escape(&v.value),
            y + 3.0,
            (to - from).max(0.5),
            y + 2.0,
            y + 15.0,
            WIDTH - 128.0,
            y + 12.0,
            v.median,
            v.best,
            v.trials
        );
    }
    out.push_str("</svg>");
    out
}
