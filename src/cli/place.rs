//! A place in a text file, shown as compilers show it: the line, the spot, and what is wrong there.

use std::fmt::Write;

use amk_schedule_ir::text::is_hidden;
pub use amk_schedule_ir::text::visible;
use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, MietteError,
    MietteSpanContents, Report, SourceCode, SourceSpan, SpanContents,
};

/// Longest line that is shown, in bytes. Files of people have shorter ones.
const LONGEST_LINE: usize = 400;
/// Lines shown before and after the place.
const CONTEXT: usize = 1;

/// Lines from one remembered line start to the next: a file may be nothing but line ends, and takes no
/// memory to speak of beside itself.
const STRIDE: usize = 1024;

/// A text with the starts of some of its lines.
pub struct SourceText<'a> {
    name: String,
    text: &'a str,
    /// Start of every [`STRIDE`]-th line.
    starts: Vec<usize>,
    lines: usize,
}

/// What is wrong, and where.
pub struct Mark<'a> {
    /// 1-based line.
    pub line: u32,
    /// 1-based byte column, where it is known; otherwise the whole line is marked.
    pub column: Option<u32>,
    pub message: &'a str,
    /// Shown beside the marked spot.
    pub label: &'a str,
    pub help: Option<String>,
}

/// The lines that are shown, so that the file itself, which may be huge, is not searched again.
struct Excerpt {
    name: String,
    text: String,
    /// Where it begins in the file, bytes.
    from: usize,
    /// 0-based number of its first line.
    first_line: usize,
    lines: usize,
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        // Without context the spot itself is asked for, whose line and column head the excerpt.
        let spot = before == 0 && after == 0;
        let from = if spot { span.offset().saturating_sub(self.from) } else { 0 };
        let to = if spot { from + span.len() } else { self.text.len() };
        let (Some(head), Some(text)) = (self.text.get(..from), self.text.get(from..to)) else {
            return Err(MietteError::OutOfBounds);
        };
        let column = head.len() - head.rfind('\n').map_or(0, |i| i + 1);
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            text.as_bytes(),
            (self.from + from, text.len()).into(),
            self.first_line + head.matches('\n').count(),
            column,
            self.lines,
        )))
    }
}

impl<'a> SourceText<'a> {
    pub fn new(name: impl Into<String>, text: &'a str) -> Self {
        let (mut starts, mut lines) = (vec![0], 1);
        for (i, _) in text.bytes().enumerate().filter(|(_, b)| *b == b'\n') {
            if lines % STRIDE == 0 {
                starts.push(i + 1);
            }
            lines += 1;
        }
        Self { name: name.into(), text, starts, lines }
    }

    /// Where a 0-based line starts; the end of the text for lines that are not there.
    fn start(&self, line: usize) -> usize {
        let Some(&from) = self.starts.get(line / STRIDE).filter(|_| line < self.lines) else {
            return self.text.len();
        };
        let ends = self.text.as_bytes()[from..].iter().enumerate().filter(|(_, b)| **b == b'\n');
        match line % STRIDE {
            0 => from,
            n => ends.map(|(i, _)| from + i + 1).nth(n - 1).unwrap_or(self.text.len()),
        }
    }

    /// The message with the place, for a terminal. Lines that no terminal should be given (huge ones,
    /// ones with control characters) are named and not shown.
    pub fn render(&self, mark: &Mark<'_>, color: bool) -> String {
        let line = (mark.line.max(1) as usize - 1).min(self.lines - 1);
        let first = line.saturating_sub(CONTEXT);
        let last = (line + CONTEXT).min(self.lines - 1);
        let message = printable(mark.message);
        let help = mark.help.as_deref().map(printable);
        if !(first..=last).all(|l| is_showable(self.line(l))) {
            return self.plain(mark, &message, help.as_deref());
        }
        let (start, end) = self.span(line, mark.column);
        let mut diagnostic = MietteDiagnostic::new(message.as_str()).with_label(LabeledSpan::new(
            Some(printable(mark.label)),
            start,
            end.saturating_sub(start),
        ));
        if let Some(help) = &help {
            diagnostic = diagnostic.with_help(help.as_str());
        }
        let (from, to) = (self.start(first), self.start(last + 1));
        let excerpt = Excerpt {
            name: printable(&self.name),
            text: self.text[from..to].to_owned(),
            from,
            first_line: first,
            lines: last + 1 - first,
        };
        let theme = match color {
            true => GraphicalTheme::unicode(),
            false => GraphicalTheme::unicode_nocolor(),
        };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100).with_links(false);
        let report = Report::new(diagnostic).with_source_code(excerpt);
        let mut out = String::new();
        match handler.render_report(&mut out, report.as_ref()) {
            Ok(()) => out,
            Err(_) => self.plain(mark, &message, help.as_deref()),
        }
    }

    fn plain(&self, mark: &Mark<'_>, message: &str, help: Option<&str>) -> String {
        let column = mark.column.map_or_else(String::new, |c| format!(":{c}"));
        let mut out = format!("{}:{}{column}: {message}\n", printable(&self.name), mark.line);
        if let Some(help) = help {
            let _ = writeln!(out, "  help: {help}");
        }
        out
    }

    fn line(&self, line: usize) -> &'a str {
        let next = self.start(line + 1);
        self.text[self.start(line)..next].trim_end_matches(['\n', '\r'])
    }

    /// Bytes to mark: from the column to the end of the word there, or the line without its indent.
    fn span(&self, line: usize, column: Option<u32>) -> (usize, usize) {
        let (start, text) = (self.start(line), self.line(line));
        let Some(column) = column else {
            let indent = text.len() - text.trim_start().len();
            return (start + indent, start + text.trim_end().len().max(indent));
        };
        let mut at = (column.max(1) as usize - 1).min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = word.max(rest.chars().next().map_or(0, char::len_utf8));
        (start + at, start + at + length)
    }
}

fn is_showable(line: &str) -> bool {
    line.len() <= LONGEST_LINE && !line.chars().any(|c| is_hidden(c) && c != '\t')
}

/// Text of a message, without anything that a terminal would obey or not show. Its own line ends stay: what
/// comes from a file goes through [`visible`], which leaves none.
pub fn printable(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str, line: u32, column: Option<u32>) -> String {
        let mark = Mark { line, column, message: "it is wrong", label: "here", help: None };
        SourceText::new("a.sched", text).render(&mark, false)
    }

    #[test]
    fn the_line_is_shown_with_its_number() {
        let out = show("one\ntwo three\nfour\nfive\n", 2, Some(5));
        assert!(out.contains("it is wrong") && out.contains("a.sched:2:5"), "{out}");
        assert!(out.contains("2 │ two three") && out.contains("here"), "{out}");
        assert!(out.contains("3 │ four") && !out.contains("five"), "{out}");
    }

    #[test]
    fn whole_lines_ends_and_places_outside_are_marked_without_panic() {
        for text in ["", "\n", "x", "x\n", "  indented\r\n", "ä ö ü\n"] {
            for line in [0, 1, 2, 900] {
                for column in [None, Some(0), Some(1), Some(2), Some(70)] {
                    assert!(show(text, line, column).contains("it is wrong"));
                }
            }
        }
    }

    #[test]
    fn every_line_of_a_long_file_is_found() {
        let text: String = (1..=5000).map(|n| format!("line {n}\n")).collect();
        for line in [1, 2, 1023, 1024, 1025, 1026, 2048, 3001, 4096, 5000] {
            let out = show(&text, line, Some(6));
            assert!(out.contains(&format!("{line} │ line {line}\n")), "{out}");
            assert!(out.contains(&format!("a.sched:{line}:6")), "{out}");
        }
    }

    #[test]
    fn hostile_lines_are_not_shown() {
        let huge = show(&"x".repeat(5000), 1, Some(1));
        assert!(huge.len() < 200, "{huge}");
        let escape = show("a\u{1b}[2Jb\n", 1, None);
        assert!(!escape.contains('\u{1b}'), "{escape:?}");
        let turned = show("a \u{202e}b\n", 1, None);
        assert!(!turned.contains('\u{202e}'), "{turned:?}");
    }
}
