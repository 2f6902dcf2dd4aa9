//! Tokens of the text form, with positions. Memory is bounded by the input.

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name, a number or an op parameter: letters, digits, `_`, `.`, `+`, `-` as far as they run.
    Word(&'a str),
    /// A quoted string, unescaped.
    Text(String),
    /// One of `[ ] ( ) { } , = > / @ +`.
    Punct(char),
    End,
}

/// A cursor over the input.
pub(super) struct Lexer<'a> {
    src: &'a str,
    at: usize,
    /// 1-based line of the next token.
    pub line: u32,
    line_start: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(src: &'a str) -> Self {
        Lexer { src, at: 0, line: 1, line_start: 0 }
    }

    /// 1-based column, in bytes.
    pub fn column(&self) -> u32 {
        (self.at - self.line_start + 1) as u32
    }

    fn rest(&self) -> &'a str {
        &self.src[self.at..]
    }

    /// Skips blanks, newlines and comments.
    pub fn skip(&mut self) {
        let bytes = self.src.as_bytes();
        while let Some(&b) = bytes.get(self.at) {
            match b {
                b'\n' => {
                    self.at += 1;
                    self.line += 1;
                    self.line_start = self.at;
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'#' => {
                    while bytes.get(self.at).is_some_and(|&b| b != b'\n') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    /// The next token and the state before it, so that it can be given back.
    pub fn next(&mut self) -> Result<Token<'a>, String> {
        self.skip();
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return Ok(Token::End);
        };
        if first == '"' {
            return self.string();
        }
        // A word stops before `..`, so that ranges split into bound, `..`, bound.
        let mut len = 0;
        for (i, c) in rest.char_indices() {
            let word = c.is_ascii_alphanumeric() || c == '_';
            if !word {
                break;
            }
            len = i + c.len_utf8();
        }
        if len > 0 {
            self.at += len;
            return Ok(Token::Word(&rest[..len]));
        }
        if "[](){},=>/@+-.".contains(first) {
            self.at += 1;
            return Ok(Token::Punct(first));
        }
        Err(format!("unexpected character {first:?}"))
    }

    /// Everything up to, not including, the first of `stops`, on this line; trimmed.
    pub fn raw_until(&mut self, stops: &[char]) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| stops.contains(&c) || c == '\n').unwrap_or(rest.len());
        self.at += end;
        rest[..end].trim()
    }

    fn string(&mut self) -> Result<Token<'a>, String> {
        let rest = self.rest();
        let mut out = String::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(Token::Text(out));
                }
                '\n' => break,
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some(c @ ('"' | '\\')) => out.push(c),
                    Some('u') => {
                        let hex: String = chars
                            .by_ref()
                            .map(|(_, c)| c)
                            .skip_while(|&c| c == '{')
                            .take_while(|&c| c != '}')
                            .take(8)
                            .collect();
                        let c = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                        out.push(c.ok_or_else(|| format!("bad escape \\u{{{hex}}}"))?);
                    }
                    _ => return Err("bad escape in a string".to_owned()),
                },
                c => out.push(c),
            }
        }
        Err("a string does not end on its line".to_owned())
    }
}
