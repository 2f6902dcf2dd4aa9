//! Text to program. Accepts any well-formed statement, however wrong the program: judging is the
//! validator's. Never panics; memory is bounded by the input.

use std::collections::BTreeMap;

use super::hidden::{is_hidden, visible};
use super::lexer::{Lexer, Token};
use super::print::{parse_area, parse_dtype, parse_kind, parse_sync};
use crate::id::{BufferId, CounterId, InstrId, RunId, SmId};
use crate::limits::MAX_RANK;
use crate::op::Op;
use crate::program::*;
use crate::region::{Bound, Bucket, Region, Span};

/// Why a text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// 1-based line.
    pub line: u32,
    /// 1-based column, in bytes.
    pub column: u32,
    pub message: String,
}

/// Where each object of a parsed program stands in its text: 1-based lines, by list index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceMap {
    /// The first line that is no comment.
    pub program: u32,
    pub buffers: Vec<u32>,
    pub counters: Vec<u32>,
    pub sms: Vec<u32>,
    /// Per SM, the lines of its runs.
    pub runs: Vec<Vec<u32>>,
    pub instructions: Vec<u32>,
    pub boundary: u32,
    pub resources: u32,
}

/// Reads a program.
pub fn parse(text: &str) -> Result<Program, ParseError> {
    parse_with_map(text).map(|(program, _)| program)
}

/// Reads a program and remembers where its parts stand.
pub fn parse_with_map(text: &str) -> Result<(Program, SourceMap), ParseError> {
    refuse_hidden(text)?;
    let mut parser = Parser { lex: Lexer::new(text), peeked: None, at: (1, 1) };
    parser.program()
}

/// Hidden characters may stand nowhere as they are, not even in comments: what is read is what is seen.
fn refuse_hidden(text: &str) -> Res<()> {
    let mut chars = text.char_indices();
    let Some((at, c)) = chars.find(|&(_, c)| is_hidden(c) && !matches!(c, '\n' | '\r' | '\t'))
    else {
        return Ok(());
    };
    let before = text.get(..at).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |i| i + 1);
    let message = match at {
        0 if c == '\u{feff}' => {
            "the text begins with a byte-order mark (U+FEFF); save it as UTF-8 without one"
                .to_owned()
        }
        _ => format!(
            "the hidden character U+{0:04X} stands here; remove it, or write it as `\\u{{{0:x}}}` in a string",
            c as u32
        ),
    };
    Err(ParseError {
        line: before.bytes().filter(|&b| b == b'\n').count() as u32 + 1,
        column: (at - start + 1) as u32,
        message,
    })
}

struct Parser<'a> {
    lex: Lexer<'a>,
    peeked: Option<Token<'a>>,
    /// Line and column of the last token taken or peeked.
    at: (u32, u32),
}

type Res<T> = Result<T, ParseError>;

impl<'a> Parser<'a> {
    fn fail<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError { line: self.at.0, column: self.at.1, message: visible(&message.into()) })
    }

    fn peek(&mut self) -> Res<&Token<'a>> {
        if self.peeked.is_none() {
            self.lex.skip();
            self.at = (self.lex.line, self.lex.column());
            match self.lex.next() {
                Ok(token) => self.peeked = Some(token),
                Err(message) => return self.fail(message),
            }
        }
        Ok(self.peeked.get_or_insert(Token::End))
    }

    fn next(&mut self) -> Res<Token<'a>> {
        self.peek()?;
        Ok(self.peeked.take().unwrap_or(Token::End))
    }

    fn line(&mut self) -> Res<u32> {
        self.peek()?;
        Ok(self.at.0)
    }

    fn at_word(&mut self, word: &str) -> Res<bool> {
        Ok(matches!(self.peek()?, Token::Word(w) if *w == word))
    }

    fn eat_word(&mut self, word: &str) -> Res<bool> {
        let found = self.at_word(word)?;
        if found {
            self.peeked = None;
        }
        Ok(found)
    }

    fn word(&mut self, word: &str) -> Res<()> {
        if self.eat_word(word)? { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    fn eat(&mut self, c: char) -> Res<bool> {
        let found = *self.peek()? == Token::Punct(c);
        if found {
            self.peeked = None;
        }
        Ok(found)
    }

    fn punct(&mut self, c: char) -> Res<()> {
        if self.eat(c)? { Ok(()) } else { self.expected(&format!("`{c}`")) }
    }

    fn expected<T>(&mut self, what: &str) -> Res<T> {
        let found = match self.peek()? {
            Token::Word(w) => {
                format!("`{}`", w.chars().take(40).collect::<String>())
            }
            Token::Text(_) => "a string".to_owned(),
            Token::Punct(c) => format!("`{c}`"),
            Token::End => "the end of the file".to_owned(),
        };
        self.fail(format!("expected {what}, found {found}"))
    }

    fn name(&mut self) -> Res<&'a str> {
        match self.peek()? {
            Token::Word(w) => {
                let w = *w;
                self.peeked = None;
                Ok(w)
            }
            _ => self.expected("a name"),
        }
    }

    fn text(&mut self) -> Res<String> {
        match self.next()? {
            Token::Text(s) => Ok(s),
            other => {
                self.peeked = Some(other);
                self.expected("a quoted string")
            }
        }
    }

    fn named<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> Res<T> {
        let (at, name) = (
            {
                self.peek()?;
                self.at
            },
            self.name()?,
        );
        self.at = at;
        match find(name) {
            Some(v) => Ok(v),
            None => self.fail(format!("`{name}` is not {what}")),
        }
    }

    fn int<T: TryFrom<u64>>(&mut self) -> Res<T> {
        let value = match self.peek()? {
            Token::Word(w) => w.parse::<u64>().ok(),
            _ => None,
        };
        let Some(value) = value else {
            return self.expected("a non-negative integer below 2^64");
        };
        match T::try_from(value) {
            Ok(v) => {
                self.peeked = None;
                Ok(v)
            }
            Err(_) => self.fail(format!("{value} is too large here")),
        }
    }

    fn field<T: TryFrom<u64>>(&mut self, word: &str) -> Res<T> {
        self.word(word)?;
        self.int()
    }

    fn dots(&mut self) -> Res<()> {
        self.punct('.')?;
        self.punct('.')
    }

    fn program(&mut self) -> Res<(Program, SourceMap)> {
        let start = self.line()?;
        if !self.eat_word("amk")? {
            return self.expected("`amk-schedule 1` on the first line (is this a schedule file?)");
        }
        self.punct('-')?;
        self.word("schedule")?;
        let version = self.int::<u32>()?;
        if version != FORMAT_VERSION {
            return self.fail(format!(
                "format version {version} is not known; this program reads version {FORMAT_VERSION}"
            ));
        }
        self.word("name")?;
        let name = self.text()?;
        self.word("target")?;
        let sm_arch = match self.peek()? {
            Token::Text(_) => self.text()?,
            _ => self.name()?.to_owned(),
        };
        self.word("bucket")?;
        let first = self.int()?;
        self.dots()?;
        self.punct('=')?;
        let bucket = Bucket { first, last: self.int()? };
        let tokens = self.field("tokens")?;
        let max_steps = self.field("steps")?;
        self.word("epochs")?;
        let epochs = Epochs { per_step: self.field("per_step")?, tags: self.field("tags")? };
        let mut meta = BTreeMap::new();
        while self.eat_word("meta")? {
            let (key, value) = (self.text()?, self.text()?);
            if meta.insert(key.clone(), value).is_some() {
                return self.fail(format!("meta key {key:?} is given twice"));
            }
        }
        let mut map = SourceMap { program: start, resources: self.line()?, ..SourceMap::default() };
        let resources = self.resources()?;
        let mut buffers = Vec::new();
        while self.at_word("buffer")? {
            map.buffers.push(self.line()?);
            buffers.push(self.buffer()?);
        }
        let mut counters = Vec::new();
        while self.at_word("counter")? {
            map.counters.push(self.line()?);
            self.word("counter")?;
            counters.push(Counter {
                id: CounterId(self.int()?),
                name: self.text()?,
                init: self.field("init")?,
                per_step: self.field("per_step")?,
            });
        }
        map.boundary = self.line()?;
        self.word("boundary")?;
        let op = self.named("a boundary op (plain, argmax)", |n| match n {
            "plain" => Some(BoundaryOp::Plain),
            "argmax" => Some(BoundaryOp::Argmax),
            _ => None,
        })?;
        let boundary =
            Boundary { op, reads: self.accesses("reads")?, writes: self.accesses("writes")? };
        let mut sms = Vec::new();
        while self.at_word("sm")? {
            map.sms.push(self.line()?);
            let (sm, runs) = self.sm()?;
            sms.push(sm);
            map.runs.push(runs);
        }
        let mut instructions = Vec::new();
        while self.at_word("instr")? {
            map.instructions.push(self.line()?);
            instructions.push(self.instruction()?);
        }
        if *self.peek()? != Token::End {
            return self.expected("`instr` or the end of the file");
        }
        let program = Program {
            version,
            name,
            sm_arch,
            bucket,
            tokens,
            max_steps,
            epochs,
            meta,
            resources,
            buffers,
            counters,
            boundary,
            sms,
            instructions,
        };
        Ok((program, map))
    }

    fn resources(&mut self) -> Res<Resources> {
        self.word("resources")?;
        let mut r = Resources {
            consumer_warps: self.field("warps")?,
            ring_slots: self.field("slots")?,
            slot_bytes: self.field("slot_bytes")?,
            registers: self.field("registers")?,
            barriers: self.field("barriers")?,
            shared: Vec::new(),
        };
        while self.eat_word("shared")? {
            let area = self.named("a shared-memory area", parse_area)?;
            let offset = self.int()?;
            self.punct('+')?;
            r.shared.push(SharedArea { area, offset, bytes: self.int()? });
        }
        Ok(r)
    }

    fn buffer(&mut self) -> Res<Buffer> {
        self.word("buffer")?;
        let id = BufferId(self.int()?);
        let name = self.text()?;
        let kind = self.named("a buffer kind", parse_kind)?;
        let sync = self.named("plain, packet or local", parse_sync)?;
        let dtype = self.named("an element type", parse_dtype)?;
        let shape = self.list(Self::int)?;
        let sequence = if self.eat_word("sequence")? { self.int()? } else { 0 };
        Ok(Buffer { id, name, kind, sync, dtype, shape, sequence })
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        self.punct('[')?;
        let mut out = Vec::new();
        if self.eat(']')? {
            return Ok(out);
        }
        loop {
            if out.len() == MAX_RANK {
                return self.fail(format!("more than {MAX_RANK} dimensions"));
            }
            out.push(item(self)?);
            if self.eat(']')? {
                return Ok(out);
            }
            self.punct(',')?;
        }
    }

    fn region(&mut self) -> Res<Region> {
        let spans = self.list(|p| {
            let lo = p.bound()?;
            p.dots()?;
            Ok(Span { lo, hi: p.bound()? })
        })?;
        Ok(Region(spans))
    }

    fn bound(&mut self) -> Res<Bound> {
        if self.eat_word("pos")? {
            let sign = if self.eat('+')? {
                1
            } else if self.eat('-')? {
                -1
            } else {
                return Ok(Bound::Pos(0));
            };
            return Ok(Bound::Pos(sign * i64::from(self.int::<u32>()?)));
        }
        if self.eat_word("min")? {
            self.punct('(')?;
            let limit = self.int()?;
            self.punct(',')?;
            self.word("pos")?;
            self.punct(')')?;
            return Ok(Bound::Clip(limit));
        }
        if self.eat_word("split")? {
            self.punct('(')?;
            let part = self.int()?;
            self.punct('/')?;
            let parts = self.int()?;
            self.punct(')')?;
            return Ok(Bound::Split { part, parts });
        }
        Ok(Bound::At(self.int()?))
    }

    fn accesses(&mut self, keyword: &str) -> Res<Vec<Access>> {
        let mut out = Vec::new();
        if self.eat_word(keyword)? {
            while matches!(self.peek()?, Token::Word(w) if w.starts_with(|c: char| c.is_ascii_digit()))
            {
                let buffer = BufferId(self.int()?);
                let region = self.region()?;
                let phase = if self.eat('@')? { self.int()? } else { 0 };
                out.push(Access { buffer, region, phase });
            }
        }
        Ok(out)
    }

    fn sm(&mut self) -> Res<(Sm, Vec<u32>)> {
        let id = SmId(self.field("sm")?);
        let (mut stream, mut lines) = (Vec::new(), Vec::new());
        while self.at_word("run")? {
            lines.push(self.line()?);
            self.word("run")?;
            let id = RunId(self.int()?);
            let source = if self.eat_word("weight")? {
                let buffer = BufferId(self.int()?);
                let lo = self.field("rows")?;
                self.dots()?;
                let hi = self.int()?;
                let (tiles, blocks) = (self.field("tiles")?, self.field("blocks")?);
                RunSource::Weight { buffer, lo, hi, tiles, blocks }
            } else if self.eat_word("kv")? {
                let buffer = BufferId(self.int()?);
                let region = self.region()?;
                RunSource::Kv {
                    buffer,
                    region,
                    rows: self.field("rows")?,
                    gate: self.field("gate")?,
                }
            } else {
                return self.expected("`weight` or `kv`");
            };
            stream.push(Run { id, source, window: self.field("window")? });
        }
        self.word("queue")?;
        let mut queue = Vec::new();
        while matches!(self.peek()?, Token::Word(w) if w.starts_with(|c: char| c.is_ascii_digit()))
        {
            queue.push(InstrId(self.int()?));
        }
        Ok((Sm { id, queue, stream }, lines))
    }

    fn instruction(&mut self) -> Res<Instruction> {
        let id = InstrId(self.field("instr")?);
        let op = self.op()?;
        let reads = self.accesses("reads")?;
        let writes = self.accesses("writes")?;
        let (mut waits, mut signals) = (Vec::new(), Vec::new());
        while self.eat_word("wait")? {
            let counter = CounterId(self.int()?);
            self.punct('>')?;
            self.punct('=')?;
            waits.push(Wait { counter, threshold: self.int()? });
        }
        while self.eat_word("signal")? {
            let counter = CounterId(self.int()?);
            self.punct('+')?;
            signals.push(Signal { counter, amount: self.int()? });
        }
        let run = if self.eat_word("run")? { Some(RunId(self.int()?)) } else { None };
        Ok(Instruction { id, op, reads, writes, waits, signals, run })
    }

    fn op(&mut self) -> Res<Op> {
        let name = self.name()?;
        let mut given: Vec<(String, String)> = Vec::new();
        self.punct('{')?;
        while !self.eat('}')? {
            if !given.is_empty() {
                self.punct(',')?;
            }
            let key = self.name()?.to_owned();
            self.punct('=')?;
            // Values are read raw: `1e-5` and `0..24` are no tokens of the rest of the grammar.
            let value = self.lex.raw_until(&[',', '}', '{', '#']).to_owned();
            if given.iter().any(|(k, _)| *k == key) {
                return self.fail(format!("parameter `{key}` is given twice"));
            }
            if given.len() == 64 {
                return self.fail("more than 64 parameters");
            }
            given.push((key, value));
        }
        let op = Op::from_params(name, &mut |key| {
            let at = given.iter().position(|(k, _)| k == key)?;
            Some(given.swap_remove(at).1)
        });
        match op {
            Err(e) => self.fail(e.to_string()),
            Ok(_) if !given.is_empty() => {
                self.fail(format!("op `{name}` has no parameter `{}`", given[0].0))
            }
            Ok(op) => Ok(op),
        }
    }
}
