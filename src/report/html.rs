//! The page: `report.html`, self-contained.

use minijinja::value::Value;
use minijinja::{Environment, Error, UndefinedBehavior, context};

use serde_json::Value as Json;

use super::{Report, svg};

/// The page could not be rendered: a fault of amk itself.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The template failed.
    #[error("the report page failed (this is a fault of amk itself): {0}")]
    Template(#[from] Error),
    /// The report has no JSON form.
    #[error("the report has no JSON form (this is a fault of amk itself): {0}")]
    Json(#[from] serde_json::Error),
}

/// Renders a report as one HTML page without scripts, links or other files.
///
/// # Errors
/// [`PageError`].
pub fn page(report: &Report) -> Result<String, PageError> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_filter("bytes", bytes);
    env.add_filter("seconds", seconds);
    env.add_filter("grouped", grouped);
    env.add_filter("us", |us: f64| seconds(us / 1e6));
    env.add_filter("ratio", |x: f64| format!("{x:.3}"));
    // The name ends in .html, so that everything is escaped.
    env.add_template("page.html", include_str!("page.html.j2"))?;
    let balances: Vec<Value> =
        report.targets.iter().map(|t| Value::from_safe_string(svg::balance(&t.balance))).collect();
    let graphs: Vec<Value> = report
        .targets
        .iter()
        .map(|t| Value::from_safe_string(svg::graph(&t.dependences)))
        .collect();
    Ok(env
        .get_template("page.html")?
        .render(context! { r => value(&serde_json::to_value(report)?), balances, graphs })?)
}

/// The report as a value of the template language.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(u), _) => Value::from(u),
            (_, Some(i)) => Value::from(i),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), value(v))))
        }
    }
}

/// `1.91 MB`: powers of 1000.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

fn seconds(s: f64) -> String {
    match s {
        s if s <= 0.0 => "0".to_owned(),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}
