//! The timeline as one page: a row per SM, computing in the colour of the op, waiting in its pale shade, idle
//! time in the background; and the sums.

use std::collections::BTreeMap;
use std::fmt::Write;

use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior, context};

use super::Timeline;

/// The page could not be rendered: a fault of amk itself.
#[derive(Debug, thiserror::Error)]
#[error("the trace page failed (this is a fault of amk itself): {0}")]
pub struct PageError(#[from] minijinja::Error);

const WIDTH: f64 = 1600.0;
const ROW: f64 = 6.0;
const GAP: f64 = 1.0;

/// The picture.
pub fn svg(timeline: &Timeline) -> String {
    let height = timeline.sms as f64 * (ROW + GAP);
    let us = if timeline.us > 0.0 { timeline.us } else { 1.0 };
    let x = |t: f64| t / us * WIDTH;
    // One path for each op and phase: tens of thousands of boxes stay readable to a browser.
    let mut paths: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for e in &timeline.events {
        let y = f64::from(e.sm) * (ROW + GAP);
        for (phase, from, to) in [("wait", e.begin, e.ready), ("compute", e.ready, e.end)] {
            if to <= from {
                continue;
            }
            let (from, width) = (x(from), x(to) - x(from));
            let path = paths.entry((e.op, phase)).or_default();
            let _ = write!(path, "M{from:.2} {y:.0}h{width:.2}v{ROW}h-{width:.2}z");
        }
    }
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"timeline, a row per SM\">\
         <rect class=\"idle\" width=\"{WIDTH}\" height=\"{height:.0}\"/>",
        height + 16.0
    );
    for ((op, phase), path) in &paths {
        let _ = write!(
            out,
            "<path class=\"{phase}\" fill=\"{}\" d=\"{path}\"><title>{op}, {phase}</title></path>",
            color(op)
        );
    }
    for k in 0..=8 {
        let t = us * f64::from(k) / 8.0;
        let anchor = match k {
            0 => "start",
            8 => "end",
            _ => "middle",
        };
        let _ = write!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{t:.1} us</text>",
            x(t),
            height + 13.0
        );
    }
    out.push_str("</svg>");
    out
}

/// A colour for an op: its own for the known ones.
fn color(op: &str) -> &'static str {
    match op {
        "embed" => "#7f7f7f",
        "norm_qkv" => "#4e79a7",
        "attention" => "#e15759",
        "attention_merge" => "#b07aa1",
        "linear_residual" => "#59a14f",
        "norm_residual" => "#edc948",
        "norm_gate_up" => "#f28e2b",
        "norm_lm_head" => "#76b7b2",
        "sample" => "#edc948",
        "boundary" => "#9c755f",
        _ => "#bab0ac",
    }
}

/// The page: self-contained, without scripts or links.
///
/// # Errors
/// [`PageError`].
pub fn page(timeline: &Timeline, title: &str) -> Result<String, PageError> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_filter("us", |v: f64| format!("{v:.2}"));
    env.add_template("trace.html", include_str!("page.html.j2"))?;
    let split = |name: String, color: &str, s: &super::Split| {
        context! {
            name, color, waiting => s.waiting, computing => s.computing, idle => s.idle,
            events => s.events,
        }
    };
    let n = timeline.sms.max(1) as f64;
    let ops: Vec<Value> = timeline
        .by_op()
        .iter()
        .map(|(op, s)| {
            let mean = super::Split { waiting: s.waiting / n, computing: s.computing / n, ..*s };
            split((*op).to_owned(), color(op), &mean)
        })
        .collect();
    let total = timeline.total();
    let mut sms: Vec<(usize, super::Split)> = timeline.by_sm().into_iter().enumerate().collect();
    sms.sort_by(|a, b| b.1.computing.total_cmp(&a.1.computing));
    let busiest: Vec<Value> = sms
        .iter()
        .take(3)
        .chain(sms.iter().rev().take(3).rev())
        .map(|(sm, s)| split(format!("SM {sm}"), "", s))
        .collect();
    Ok(env.get_template("trace.html")?.render(context! {
        title, us => timeline.us, sms => timeline.sms,
        picture => Value::from_safe_string(svg(timeline)),
        total => split("all".to_owned(), "", &total), ops, busiest,
    })?)
}
