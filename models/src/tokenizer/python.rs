//! Values as Python writes them: `json.dumps`, and `str`.

use super::arguments::{Args, invalid};
use crate::limits;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, Output, State};
use std::fmt::Write as _;

/// Prints a value as `str` does: texts as they are, lists and dictionaries as `repr` writes them, nothing for what is
/// undefined.
pub(super) fn print(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let mut text = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => text.push_str(value.as_str().unwrap_or_default()),
        _ => repr(value, 0, &mut text)?,
    }
    out.write_str(&text).map_err(Error::from)
}

/// `default(other, boolean)`: the value, or the other one where it is undefined, or with `boolean` where it is nothing.
pub(super) fn default(value: &Value, places: Rest<Value>, names: Kwargs) -> Result<Value, Error> {
    let args = Args::new(&places, names, 2)?;
    let other = args.given(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let boolean = args.flag(1, "boolean")?;
    args.done()?;
    let absent = value.is_undefined() || (boolean && !value.is_true());
    Ok(if absent { other } else { value.clone() })
}

/// `is iterable`: what `iter` takes, which none is not.
pub(super) fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

/// `is sequence`: what has a length and items, which texts and dictionaries have too.
pub(super) fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// A number as `repr` and `json.dumps` write it; what is no number in their own words.
fn number(value: &Value, words: [&str; 3], out: &mut String) {
    let float = (!value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten();
    let text = match float {
        None => value.to_string(),
        Some(x) if x.is_nan() => words[0].to_string(),
        Some(x) if x.is_infinite() => words[if x > 0.0 { 1 } else { 2 }].to_string(),
        Some(x) => float_text(x),
    };
    out.push_str(&text);
}

/// The shortest digits that give the number back, with an exponent below 1e-4 and from 1e16.
fn float_text(x: f64) -> String {
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        n if (-4..16).contains(&n) => format!("{x:?}"),
        n => format!("{digits}e{}{:02}", if n < 0 { '-' } else { '+' }, n.abs()),
    }
}

/// An error once the text of one value is longer than any prompt: lists may be repeated without being copied.
fn bounded(out: &str) -> Result<(), Error> {
    if out.len() <= limits::MAX_TEMPLATE_TEXT {
        return Ok(());
    }
    Err(invalid(format!("a value is longer than {} bytes in writing", limits::MAX_TEMPLATE_TEXT)))
}

/// `repr(value)`.
fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    bounded(out)?;
    if depth > limits::MAX_TEMPLATE_RECURSION {
        return Err(invalid("the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Number => number(value, ["nan", "inf", "-inf"], out),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// A text in quotes: single ones, unless it has those and no double ones.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if is_hidden(c) => {
                let _ = match c as u32 {
                    n @ 0..=0xff => write!(out, "\\x{n:02x}"),
                    n @ 0..=0xffff => write!(out, "\\u{n:04x}"),
                    n => write!(out, "\\U{n:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// What `repr` does not print as it is: controls, marks of direction and width, spaces other than the common one,
/// and private characters.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{e0001}'..='\u{e007f}' | '\u{f0000}'..)
}

/// `json.dumps(value, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`, its options by place or name as
/// transformers' filter takes them.
pub(super) fn tojson(value: &Value, places: Rest<Value>, names: Kwargs) -> Result<String, Error> {
    let args = Args::new(&places, names, 4)?;
    let ensure_ascii = args.flag(0, "ensure_ascii")?;
    let indent = args.get(1, "indent")?;
    let separators = args.get(2, "separators")?;
    let sort = args.flag(3, "sort_keys")?;
    args.done()?;
    let indent = match indent {
        None => None,
        Some(v) if v.as_str().is_some_and(|s| s.len() <= limits::MAX_TEMPLATE_INDENT) => {
            v.as_str().map(str::to_string)
        }
        Some(v) => match usize::try_from(v) {
            Ok(n) if n <= limits::MAX_TEMPLATE_INDENT => Some(" ".repeat(n)),
            _ => {
                let most = limits::MAX_TEMPLATE_INDENT;
                return Err(invalid(format!("tojson: an indent of at most {most}")));
            }
        },
    };
    let pair =
        separators.map(|v| v.try_iter().map(|i| i.map(|s| s.to_string()).collect::<Vec<_>>()));
    let (item, key) = match pair.transpose()?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let writer = Json { indent, ensure_ascii, sort, item, key };
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(out)
}

/// A key of an object: texts as they are, everything else as its value would be written.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_string(),
        ValueKind::Number => {
            let mut out = String::new();
            number(key, ["NaN", "Infinity", "-Infinity"], &mut out);
            out
        }
        _ => key.to_string(),
    }
}

struct Json {
    /// One level of it.
    indent: Option<String>,
    ensure_ascii: bool,
    sort: bool,
    item: String,
    key: String,
}

impl Json {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        bounded(out)?;
        if depth > limits::MAX_TEMPLATE_RECURSION {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(value, ["NaN", "Infinity", "-Infinity"], out),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort_by_key(ToString::to_string);
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    self.between(i, depth + 1, out);
                    self.string(&key_text(key), out);
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)?;
                }
                self.close(keys.len(), depth, '}', out);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut n = 0;
                for item in value.try_iter()? {
                    self.between(n, depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                    n += 1;
                }
                self.close(n, depth, ']', out);
            }
            kind => {
                return Err(invalid(format!("tojson: cannot write a {kind}")));
            }
        }
        Ok(())
    }

    fn between(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(&self.item);
        }
        if let Some(level) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(level.as_str(), depth));
        }
    }

    fn close(&self, items: usize, depth: usize, bracket: char, out: &mut String) {
        if let (Some(level), true) = (&self.indent, items > 0) {
            out.push('\n');
            out.extend(std::iter::repeat_n(level.as_str(), depth));
        }
        out.push(bracket);
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
