//! The report of a campaign: one self-contained page made from its journal alone.
//!
//! `gather.rs` reads the journal, checking it from end to end on the way, and keeps what the page shows; `effects.rs`
//! what each knob did; `plots.rs` draws; `page.html.j2` is the page, without scripts, links or other files. Whatever a
//! proposer wrote is text on it: everything is escaped.

mod effects;
mod gather;
mod plots;

use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior, context};
use serde_json::Value as Json;

pub use effects::{Effect, KnobEffects};
pub use gather::{Kept, Report, Row, Tried};

use crate::journal::JournalError;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the report page failed (this is a fault of amk itself): {0}")]
    Page(#[from] minijinja::Error),
    #[error("the report has no JSON form (this is a fault of amk itself): {0}")]
    Json(#[from] serde_json::Error),
}

/// Renders a report as one HTML page.
///
/// # Errors
/// [`ReportError::Page`], [`ReportError::Json`].
pub fn page(report: &Report) -> Result<String, ReportError> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_filter("us", |v: f64| format!("{v:.1}"));
    env.add_filter("ratio", |v: f64| format!("{v:.4}"));
    env.add_filter("percent", |v: f64| format!("{:.1} %", v * 100.0));
    env.add_filter("minutes", |v: f64| format!("{v:.1}"));
    // The name ends in .html, so that everything is escaped.
    env.add_template("campaign.html", include_str!("page.html.j2"))?;
    let effects: Vec<Value> =
        report.knobs.iter().map(|k| Value::from_safe_string(plots::effects(k))).collect();
    Ok(env.get_template("campaign.html")?.render(context! {
        r => value(&serde_json::to_value(report)?),
        progress => Value::from_safe_string(plots::progress(report)),
        outcomes => Value::from_safe_string(plots::outcomes(report)),
        effects,
    })?)
}

/// The report as a value of the template language.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match n.as_u64() {
            Some(u) => Value::from(u),
            None => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), value(v))))
        }
    }
}

#[cfg(test)]
mod tests;
