//! What templates have to be looked through for before they are compiled: `generation` blocks, which the template
//! library does not know, and defaults of macros that it would evaluate to nothing.

use super::TokenizerError;

/// `{% generation %}` and `{% endgeneration %}` become a block that is always taken, dashes kept; nothing inside texts,
/// comments and raw blocks is touched.
///
/// # Errors
/// A macro has a default that names another of its arguments.
pub(super) fn prepare(source: &str) -> Result<String, TokenizerError> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(start) = rest.find('{') {
        let (before, here) = rest.split_at(start);
        out.push_str(before);
        let end = match here.as_bytes().get(1) {
            Some(b'%') => end_of(here, "%}"),
            Some(b'{') if !raw => end_of(here, "}}"),
            Some(b'#') if !raw => here.find("#}").map(|at| at + 2),
            _ => Some(1),
        };
        let Some(end) = end else {
            out.push_str(here);
            return Ok(out);
        };
        let (tag, after) = here.split_at(end);
        let inside = tag.strip_prefix("{%").and_then(|t| t.strip_suffix("%}"));
        let inside = inside.map(|t| t.trim_matches(['-', '+']).trim());
        match inside {
            Some("endraw") => raw = false,
            _ if raw => {
                // A raw block ends at its own tag alone, whatever quotes are in between.
                out.push('{');
                rest = &here[1..];
                continue;
            }
            Some("raw") => raw = true,
            Some("generation") => {
                out.push_str(&tag.replacen("generation", "if true", 1));
                rest = after;
                continue;
            }
            Some("endgeneration") => {
                out.push_str(&tag.replacen("endgeneration", "endif", 1));
                rest = after;
                continue;
            }
            Some(inside) => check_macro(inside)?,
            None => {}
        }
        out.push_str(tag);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Follows the texts of an expression, character by character.
#[derive(Default)]
struct Quotes {
    open: Option<char>,
    escaped: bool,
}

impl Quotes {
    /// Does the next character belong to a text? Its quotes do.
    fn hold(&mut self, c: char) -> bool {
        match (self.open, c) {
            (Some(_), _) if self.escaped => self.escaped = false,
            (Some(_), '\\') => self.escaped = true,
            (Some(open), c) if c == open => self.open = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => self.open = Some(c),
            (None, _) => return false,
        }
        true
    }
}

/// The byte behind the end of a tag, which is none inside quotes.
fn end_of(tag: &str, end: &str) -> Option<usize> {
    let mut quotes = Quotes::default();
    let mut chars = tag.char_indices().skip(2);
    chars
        .find(|(at, c)| !quotes.hold(*c) && tag[*at..].starts_with(end))
        .map(|(at, _)| at + end.len())
}

/// Refuses `macro f(x, y=x)`: Jinja gives `y` the argument `x`, the template library nothing.
fn check_macro(tag: &str) -> Result<(), TokenizerError> {
    let Some(signature) = tag.strip_prefix("macro").filter(|s| s.starts_with(char::is_whitespace))
    else {
        return Ok(());
    };
    let Some((name, arguments)) = signature.trim().split_once('(') else { return Ok(()) };
    let mut names: Vec<&str> = Vec::new();
    for argument in parts(arguments) {
        let (argument, default) = argument.split_once('=').unwrap_or((argument, ""));
        if identifiers(default).any(|used| names.contains(&used)) {
            return Err(TokenizerError::Template(format!(
                "the default of {} in the macro {} names another argument, which is not supported; give it a value of its own",
                argument.trim(),
                name.trim()
            )));
        }
        names.push(argument.trim());
    }
    Ok(())
}

/// Cuts a list of arguments at its own commas, up to its bracket.
fn parts(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0usize, 0);
    let mut quotes = Quotes::default();
    for (at, c) in text.char_indices() {
        match c {
            c if quotes.hold(c) => {}
            ',' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' => {
                out.push(&text[start..at]);
                return out;
            }
            _ => {}
        }
    }
    out
}

/// The names that an expression reads: no texts, attributes or keys.
fn identifiers(expression: &str) -> impl Iterator<Item = &str> {
    let mut quotes = Quotes::default();
    let plain = expression
        .split(move |c: char| quotes.hold(c) || !(c.is_alphanumeric() || c == '_' || c == '.'));
    plain.map(|word| word.split('.').next().unwrap_or_default()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_are_replaced_where_they_are_blocks() {
        for (source, expected) in [
            ("{% generation %}x{%- endgeneration +%}", "{% if true %}x{%- endif +%}"),
            ("{{ '{%' }}{%+generation-%}x{%endgeneration%}", "{{ '{%' }}{%+if true-%}x{%endif%}"),
            ("{% raw %}{% generation %}'{% endraw %}'", "{% raw %}{% generation %}'{% endraw %}'"),
            ("{# it's {% generation %} #}{", "{# it's {% generation %} #}{"),
            ("{{ \"%} {% generation %}\" }} {%", "{{ \"%} {% generation %}\" }} {%"),
            ("{% set a = '\\'%}{% generation %}' %}", "{% set a = '\\'%}{% generation %}' %}"),
        ] {
            assert_eq!(prepare(source).unwrap(), expected);
        }
    }

    #[test]
    fn a_default_that_names_another_argument_is_refused() {
        let error = prepare("{%- macro turn(role, text=(role ~ 'x'), end='role') -%}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the chat template failed: the default of text in the macro turn names another argument, which is not supported; give it a value of its own"
        );
        for fine in [
            "{% macro a(x, y='x', z=[1, 'x']) %}",
            "{% macro a(x, y=t.x, z={'x': 1}) %}",
            "{% macro a(x, y='it\\'x', z=1) %}",
            "{% macro a() %}",
            "{% macro a(x=y, y=1) %}",
            "{% macros %}",
        ] {
            assert_eq!(prepare(fine).unwrap(), fine);
        }
    }
}
