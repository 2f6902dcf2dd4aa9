//! Python's methods of strings, lists and dictionaries, as far as the template library lacks them or has others.

use super::arguments::{Args, invalid};
use crate::limits;
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

/// The result of a method, or the library's where this one is not among them.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_string(text, name, args)?,
        (ValueKind::Seq, _) if name == "index" => Some(index_of(value, args)?),
        (ValueKind::Seq | ValueKind::Map, _) if name == "copy" && args.is_empty() => {
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// What Python takes for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn of_string(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if name == "format" {
        check_widths(text)?;
    }
    let most = match name {
        "title" | "swapcase" => 0,
        "strip" | "lstrip" | "rstrip" | "splitlines" | "partition" | "rpartition"
        | "removeprefix" | "removesuffix" | "zfill" => 1,
        "split" | "rsplit" | "center" | "ljust" | "rjust" => 2,
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => 3,
        _ => return Ok(None),
    };
    let (places, names) = from_args(args)?;
    let args = Args::new(places, names, most)?;
    let out = match name {
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(text.chars().map(swapped).collect::<String>()),
        "strip" | "lstrip" | "rstrip" => {
            let set = args.text(0, "")?;
            let cut = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
            Value::from(match name {
                "strip" => text.trim_matches(cut),
                "lstrip" => text.trim_start_matches(cut),
                _ => text.trim_end_matches(cut),
            })
        }
        "splitlines" => {
            let keep = args.flag(0, "keepends")?;
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let by = args.needed(0)?;
            if by.is_empty() {
                return Err(invalid("empty separator"));
            }
            let parts = match name {
                "partition" => text.split_once(&by).map(|(a, b)| [a, &by, b]),
                _ => text.rsplit_once(&by).map(|(a, b)| [a, &by, b]),
            };
            let none = if name == "partition" { [text, "", ""] } else { ["", "", text] };
            Value::from(Tuple::new(parts.unwrap_or(none).map(Value::from).to_vec()))
        }
        "removeprefix" => Value::from(text.strip_prefix(args.needed(0)?.as_str()).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(args.needed(0)?.as_str()).unwrap_or(text)),
        "zfill" | "center" | "ljust" | "rjust" => Value::from(filled(text, name, &args)?),
        "split" | "rsplit" => {
            let by = args.text(0, "sep")?;
            let most = args.number(1, "maxsplit")?.unwrap_or(-1);
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            if by.as_deref() == Some("") {
                return Err(invalid("empty separator"));
            }
            let parts = match (name, by) {
                ("split", Some(by)) => {
                    text.splitn(most.saturating_add(1), &by).map(Value::from).collect::<Vec<_>>()
                }
                (_, Some(by)) => {
                    let parts = text.rsplitn(most.saturating_add(1), by.as_str());
                    let mut parts: Vec<Value> = parts.map(Value::from).collect();
                    parts.reverse();
                    parts
                }
                (_, None) => {
                    words(text, most, name == "split").into_iter().map(Value::from).collect()
                }
            };
            Value::from(parts)
        }
        "startswith" | "endswith" => {
            let asked = args.get(0, "")?.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
            let Some((_, part)) = between(text, &args)? else { return Ok(Some(false.into())) };
            let fits = |affix: &Value| match (affix.as_str(), name) {
                (Some(affix), "startswith") => Ok(part.starts_with(affix)),
                (Some(affix), _) => Ok(part.ends_with(affix)),
                (None, _) => Err(invalid(format!("{name} takes a string or a tuple of strings"))),
            };
            let mut found = false;
            match asked.kind() {
                ValueKind::Seq => {
                    for affix in asked.try_iter()? {
                        found |= fits(&affix)?;
                    }
                }
                _ => found = fits(&asked)?,
            }
            Value::from(found)
        }
        _ => {
            let what = args.needed(0)?;
            let Some((start, part)) = between(text, &args)? else {
                return match name {
                    "count" => Ok(Some(0.into())),
                    "find" | "rfind" => Ok(Some((-1).into())),
                    _ => Err(invalid("substring not found")),
                };
            };
            let at = if name.starts_with('r') { part.rfind(&what) } else { part.find(&what) };
            match (name, at) {
                ("count", _) => Value::from(part.matches(&what).count()),
                (_, Some(at)) => Value::from(start + part[..at].chars().count()),
                ("find" | "rfind", None) => Value::from(-1),
                (_, None) => return Err(invalid("substring not found")),
            }
        }
    };
    args.done()?;
    Ok(Some(out))
}

/// The part of a text from the second argument to the third, both counted in characters and from the end where they
/// are negative, and where it begins; none where it begins behind its end.
fn between<'t>(text: &'t str, args: &Args) -> Result<Option<(usize, &'t str)>, Error> {
    let count = text.chars().count();
    let place = |n: Option<i64>, absent: usize| match n {
        None => absent,
        Some(n) if n < 0 => count.saturating_sub(n.unsigned_abs() as usize),
        Some(n) => n as usize,
    };
    let (start, end) =
        (place(args.number(1, "")?, 0), place(args.number(2, "")?, count).min(count));
    if start > end {
        return Ok(None);
    }
    let byte = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(i, _)| i);
    Ok(Some((start, &text[byte(start)..byte(end)])))
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

fn swapped(c: char) -> String {
    match c.is_uppercase() {
        true => c.to_lowercase().collect(),
        false => c.to_uppercase().collect(),
    }
}

/// Lines, which end at what Python ends them at.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| ends(*c)) {
        let both = c == '\r' && rest[at + 1..].starts_with('\n');
        let next = at + if both { 2 } else { c.len_utf8() };
        out.push(&rest[..if keep { next } else { at }]);
        rest = &rest[next..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// Words between white space; behind so many cuts, from the left or the right, the rest is one.
fn words(text: &str, most: usize, from_left: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let trim = |text| match from_left {
        true => str::trim_start_matches(text, is_space),
        false => str::trim_end_matches(text, is_space),
    };
    let mut rest = trim(text);
    while !rest.is_empty() {
        let cut = match (out.len() < most, from_left) {
            (false, _) => None,
            (true, true) => rest.find(is_space).map(|at| (&rest[..at], &rest[at..])),
            (true, false) => rest.rfind(is_space).map(|at| {
                let next = at + rest[at..].chars().next().map_or(1, char::len_utf8);
                (&rest[next..], &rest[..at])
            }),
        };
        let Some((word, left)) = cut else {
            out.push(rest);
            break;
        };
        out.push(word);
        rest = trim(left);
    }
    if !from_left {
        out.reverse();
    }
    out
}

/// Refuses `str.format` with fields wider than a text may be filled up to, which nothing else bounds.
fn check_widths(text: &str) -> Result<(), Error> {
    for field in text.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        let mut numbers = field.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        let wide = |n: &str| n.parse::<usize>().map_or(true, |n| n > limits::MAX_TEMPLATE_WIDTH);
        if numbers.any(wide) {
            let most = limits::MAX_TEMPLATE_WIDTH;
            return Err(invalid(format!("format: a width of at most {most}")));
        }
    }
    Ok(())
}

/// `zfill`, `center`, `ljust` and `rjust`.
fn filled(text: &str, name: &str, args: &Args) -> Result<String, Error> {
    let width = args.number(0, "")?.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > limits::MAX_TEMPLATE_WIDTH {
        return Err(invalid(format!("{name}: a width of at most {}", limits::MAX_TEMPLATE_WIDTH)));
    }
    let by = args.text(1, "")?.unwrap_or_else(|| " ".to_string());
    let mut chars = by.chars();
    let (Some(by), None) = (chars.next(), chars.next()) else {
        return Err(invalid(format!("{name} fills with one character")));
    };
    let missing = width.saturating_sub(text.chars().count());
    let fill = |n: usize, by: char| std::iter::repeat_n(by, n).collect::<String>();
    Ok(match name {
        "zfill" => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            format!("{sign}{}{digits}", fill(missing, '0'))
        }
        "ljust" => format!("{text}{}", fill(missing, by)),
        "rjust" => format!("{}{text}", fill(missing, by)),
        _ => {
            // Python puts the odd one to the left where the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left, by), fill(missing - left, by))
        }
    })
}

/// `list.index`.
fn index_of(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&Value,) = from_args(args)?;
    let at = list.try_iter()?.position(|item| item == *what);
    at.map(Value::from).ok_or_else(|| invalid("the list has no such item"))
}
