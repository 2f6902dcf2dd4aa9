//! Values as Python writes them: `json.dumps`, and `str`.

use crate::limits;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
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

/// Python's methods of strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (name, value.as_str(), args) {
        // The library begins words at spaces alone.
        ("title", Some(text), []) => Ok(Value::from(title(text))),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// `str.title`: a letter after anything that is none is a capital, all others are small.
fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// `repr(value)`. Tuples are not told from lists.
fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > limits::MAX_TEMPLATE_RECURSION {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("None"),
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
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
            }
            out.push(']');
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
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// `json.dumps(value, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    if indent.is_some_and(|n| n > limits::MAX_TEMPLATE_INDENT) {
        let text = format!("tojson: an indent of at most {}", limits::MAX_TEMPLATE_INDENT);
        return Err(Error::new(ErrorKind::InvalidOperation, text));
    }
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let writer = Json {
        indent,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort: sort_keys.unwrap_or(false),
        item,
        key,
    };
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(out)
}

struct Json {
    indent: Option<usize>,
    ensure_ascii: bool,
    sort: bool,
    item: String,
    key: String,
}

impl Json {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > limits::MAX_TEMPLATE_RECURSION {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: the value is nested too deeply",
            ));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let _ = write!(out, "{value}");
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort_by_key(ToString::to_string);
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    self.between(i, depth + 1, out);
                    self.string(&key.to_string(), out);
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
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: cannot write a {kind}"),
                ));
            }
        }
        Ok(())
    }

    fn between(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(&self.item);
        }
        if let Some(n) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', n * depth));
        }
    }

    fn close(&self, items: usize, depth: usize, bracket: char, out: &mut String) {
        if let (Some(n), true) = (self.indent, items > 0) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', n * depth));
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
