//! Chat templates: Jinja as HuggingFace's `apply_chat_template` sets it up, run by `minijinja`.

use super::{TokenizerError, blocks, methods, python, strftime};
use crate::limits;
use minijinja::syntax::SyntaxConfig;
pub use minijinja::value::Value as TemplateValue;
use minijinja::value::{Rest, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what the template knows besides.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of a role.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_string(), content: content.to_string() }
    }
}

/// A checkpoint's chat template.
///
/// Has what templates on the hub rely on: `raise_exception`, `strftime_now`, `tojson` as Python writes it, Python's
/// string and dictionary methods, `break` and `continue`, and the `generation` block, which marks text and prints it
/// unchanged. Blocks are trimmed as HuggingFace trims them.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
}

impl ChatTemplate {
    /// Takes the template's source; it is compiled when it is rendered.
    pub fn new(source: String) -> Self {
        Self { source }
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages. `special` has the special tokens by role (`bos_token`, …).
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        special: &BTreeMap<String, String>,
    ) -> Result<String, TokenizerError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        self.render_at(messages, add_generation_prompt, special, now)
    }

    /// Renders messages at a given time, in seconds since 1970 (UTC).
    pub fn render_at(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        special: &BTreeMap<String, String>,
        now: i64,
    ) -> Result<String, TokenizerError> {
        let message = |m: &Message| {
            Value::from_pairs([
                ("role", Value::from(m.role.as_str())),
                ("content", Value::from(m.content.as_str())),
            ])
        };
        let messages = messages.iter().map(message).collect::<Vec<_>>();
        let context = [
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        self.render_values(context, special, now)
    }

    /// Renders any values: `messages`, `add_generation_prompt`, `tools`, and what else the template asks for.
    pub fn render_values<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a str, TemplateValue)>,
        special: &'a BTreeMap<String, String>,
        now: i64,
    ) -> Result<String, TokenizerError> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| TokenizerError::Template(chain(&e)))?);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_recursion_limit(limits::MAX_TEMPLATE_RECURSION);
        env.set_fuel(Some(limits::MAX_TEMPLATE_STEPS));
        env.set_unknown_method_callback(methods::method);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        env.add_function("strftime_now", move |format: String| strftime::format(now, &format));
        env.add_function("joiner", minijinja_contrib::globals::joiner);
        env.add_function("cycler", |items: Rest<Value>| {
            minijinja_contrib::globals::cycler(items.0)
        });
        env.add_filter("tojson", python::tojson);
        env.add_filter("default", python::default);
        env.add_filter("d", python::default);
        env.add_filter("striptags", minijinja_contrib::filters::striptags);
        env.add_test("iterable", python::is_iterable);
        env.add_test("sequence", python::is_sequence);
        env.set_formatter(python::print);
        let source = blocks::prepare(&self.source)?;
        env.add_template("chat", &source).map_err(|e| TokenizerError::Template(chain(&e)))?;
        let template = env.get_template("chat").map_err(|e| TokenizerError::Template(chain(&e)))?;

        let mut context: BTreeMap<&str, Value> =
            BTreeMap::from([("tools", Value::from(())), ("documents", Value::from(()))]);
        context.extend(
            special.iter().map(|(role, token)| (role.as_str(), Value::from(token.as_str()))),
        );
        context.extend(values);
        template.render(Value::from_pairs(context)).map_err(|e| {
            let text = chain(&e);
            match text.split_once(RAISED) {
                Some((_, message)) => TokenizerError::RefusedByTemplate(
                    message.split(" (in chat:").next().unwrap_or(message).to_string(),
                ),
                None => TokenizerError::Template(text),
            }
        })
    }
}

/// Marks an error that the template raised itself.
const RAISED: &str = "raised by the template: ";

/// The error and its causes in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String, TokenizerError> {
        let special = BTreeMap::from([("bos_token".to_string(), "<s>".to_string())]);
        ChatTemplate::new(source.to_string()).render_at(messages, true, &special, 1_000_000_000)
    }

    #[test]
    fn raise_exception_carries_the_templates_own_words() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('the first message must be the user\\'s') }}{% endif %}ok";
        assert_eq!(render(source, &[Message::new("user", "x")]).unwrap(), "ok");
        let error = render(source, &[Message::new("system", "x")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the chat template refuses these messages: the first message must be the user's"
        );
    }

    #[test]
    fn tojson_writes_as_python_does() {
        let m = [Message::new("user", "é\"\n\u{1}<&>'")];
        assert_eq!(
            render("{{ messages[0] | tojson }}", &m).unwrap(),
            "{\"role\": \"user\", \"content\": \"é\\\"\\n\\u0001<&>'\"}"
        );
        assert_eq!(
            render(
                "{{ {'b': [1, 2.5, true, none], 'a': {}} | tojson(indent=2, sort_keys=true) }}",
                &m
            )
            .unwrap(),
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5,\n    true,\n    null\n  ]\n}"
        );
        assert_eq!(
            render("{{ 'é🙂' | tojson(ensure_ascii=true) }}", &m).unwrap(),
            "\"\\u00e9\\ud83d\\ude42\""
        );
        assert_eq!(render("{{ [1,2] | tojson(separators=(',', ':')) }}", &m).unwrap(), "[1,2]");
    }

    #[test]
    fn clock_python_methods_loop_controls_and_generation_blocks() {
        let m = [Message::new("user", "  Hi there  "), Message::new("assistant", "x")];
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", &m).unwrap(), "09 Sep 2001");
        assert_eq!(
            render("{{ messages[0].content.strip().split(' ')[0].upper() }}", &m).unwrap(),
            "HI"
        );
        assert_eq!(
            render("{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}", &m)
                .unwrap(),
            "role=assistant;content=x;"
        );
        assert_eq!(
            render("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", &m).unwrap(),
            "user"
        );
        assert_eq!(
            render("{%- for m in messages -%}\n  {%- generation -%} {{ m.role }} {%- endgeneration %}\n{% endfor -%}", &m).unwrap(),
            "userassistant"
        );
        assert_eq!(
            render("{{ bos_token }}{{ tools is none }}{{ nothing }}", &m).unwrap(),
            "<s>True"
        );
    }

    #[test]
    fn blocks_are_trimmed() {
        let m = [Message::new("user", "x")];
        assert_eq!(render("a\n    {% if true %}\nb\n    {% endif %}\nc\n", &m).unwrap(), "a\nb\nc");
    }

    #[test]
    fn a_broken_template_is_an_error() {
        assert!(matches!(render("{% if %}", &[]), Err(TokenizerError::Template(_))));
        assert!(matches!(
            render("{{ messages[0].content.nope() }}", &[Message::new("a", "b")]),
            Err(TokenizerError::Template(_))
        ));
        assert!(matches!(
            render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", &[]),
            Err(TokenizerError::Template(_))
        ));
    }
}
