//! What commands print with: lines for people, one JSON document a line for programs, warnings and
//! progress on standard error.
//!
//! Standard output carries the answer and nothing else. In JSON mode it carries documents only; what
//! would have been said to a person is left out or goes to standard error. Colours and progress
//! bars appear on a terminal only; `NO_COLOR` and `--color` are honoured.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// When to colour; `Auto` is on a terminal, unless `NO_COLOR` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    fn on(self, terminal: bool) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                terminal
                    && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
                    && std::env::var_os("TERM").is_none_or(|v| v != "dumb")
            }
        }
    }
}

/// A part of a line that may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Good,
    Bad,
    Warn,
    Strong,
    Dim,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Bad => AnsiColor::Red.on_default().bold(),
            Tone::Warn => AnsiColor::Yellow.on_default().bold(),
            Tone::Strong => Style::new().bold(),
            Tone::Dim => Style::new().dimmed(),
        }
    }
}

/// Where a command's output goes and how it looks.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Standard output is somebody else's.
    silent: bool,
    json: bool,
    quiet: bool,
    color_out: bool,
    color_err: bool,
    progress: bool,
}

impl Output {
    /// Output as the flags ask for it.
    pub fn new(json: bool, quiet: bool, color: Color) -> Self {
        let err_terminal = io::stderr().is_terminal();
        Self {
            silent: false,
            json,
            quiet,
            color_out: color.on(io::stdout().is_terminal()),
            color_err: color.on(err_terminal),
            progress: err_terminal && !quiet && !json,
        }
    }

    /// The same, but nothing is printed on standard output: a protocol has it.
    pub fn off_stdout(self) -> Self {
        Self { silent: true, json: false, ..self }
    }

    /// Documents instead of text?
    pub fn json(&self) -> bool {
        self.json
    }

    /// Are progress bars drawn?
    pub fn shows_progress(&self) -> bool {
        self.progress
    }

    /// Colours on standard output?
    pub fn color_out(&self) -> bool {
        self.color_out
    }

    /// Colours on standard error?
    pub fn color_err(&self) -> bool {
        self.color_err
    }

    /// `text` in a tone, for standard output.
    pub fn paint(&self, tone: Tone, text: impl Display) -> String {
        painted(self.color_out, tone, text)
    }

    /// A line of the answer for people; nothing in JSON mode.
    pub fn line(&self, text: impl Display) {
        if !self.json && !self.silent {
            write_out(&format!("{text}\n"));
        }
    }

    /// A line that `--quiet` leaves out, and JSON mode too.
    pub fn detail(&self, text: impl Display) {
        if !self.quiet {
            self.line(text);
        }
    }

    /// A piece of the answer for people, shown at once and without a line end.
    pub fn piece(&self, text: &str) {
        if !self.json && !self.silent && !text.is_empty() {
            write_out(text);
        }
    }

    /// A document on a line of its own; nothing outside JSON mode.
    pub fn document(&self, document: &impl Serialize) {
        if self.json {
            let mut text = serde_json::to_string(document).unwrap_or_else(|e| {
                format!("{{\"ok\":false,\"error\":{{\"message\":\"the document cannot be written as JSON: {e}\"}}}}")
            });
            text.push('\n');
            write_out(&text);
        }
    }

    /// A remark about the answer, on standard error; `--quiet` and JSON mode leave it out.
    pub fn note(&self, text: impl Display) {
        if !self.quiet && !self.json {
            let _ = writeln!(io::stderr(), "{}", painted(self.color_err, Tone::Dim, text));
        }
    }

    /// A warning, on standard error.
    pub fn warn(&self, text: impl Display) {
        let _ =
            writeln!(io::stderr(), "{}: {text}", painted(self.color_err, Tone::Warn, "warning"));
    }

    /// Why the command failed, on standard error.
    pub fn error(&self, text: impl Display, help: Option<&str>) {
        let mut message = format!("{}: {text}\n", painted(self.color_err, Tone::Bad, "error"));
        if let Some(help) = help {
            let _ = writeln!(message, "{}: {help}", painted(self.color_err, Tone::Strong, "help"));
        }
        let _ = io::stderr().write_all(message.as_bytes());
    }

    /// Text for standard error as it is.
    pub fn raw_err(&self, text: &str) {
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// A bar of `total` steps; invisible unless standard error is a terminal.
    pub fn bar(&self, total: u64, what: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(total), self.target());
        let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what.to_owned());
        bar
    }

    /// A spinner; invisible unless standard error is a terminal.
    pub fn spinner(&self, what: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, self.target());
        if self.progress {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        bar.set_message(what.to_owned());
        bar
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }
}

fn painted(on: bool, tone: Tone, text: impl Display) -> String {
    if on {
        let style = tone.style();
        format!("{style}{text}{style:#}")
    } else {
        text.to_string()
    }
}

/// A reader that has gone away (`amk ... | head`) ends the program quietly.
fn write_out(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
            std::process::exit(3);
        }
        std::process::exit(0);
    }
}

/// `12.3 ms`, `4.56 s`, `2 min 3 s`.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.2} s"),
        s => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

/// `512 B`, `1.8 MB`: powers of 1000, as bandwidths are given.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.3} {}", UNITS[unit]) }
}

/// `1 fault`, `2 faults`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_they_should() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.000 kB");
        assert_eq!(bytes(1_908_376), "1.908 MB");
        assert_eq!(seconds(0.0000421), "42 us");
        assert_eq!(seconds(0.25), "250.0 ms");
        assert_eq!(seconds(83.4), "1 min 23 s");
        assert_eq!(count(1, "fault"), "1 fault");
        assert_eq!(count(0, "fault"), "0 faults");
    }

    #[test]
    fn colours_follow_the_flag() {
        assert_eq!(painted(false, Tone::Bad, "x"), "x");
        assert!(painted(true, Tone::Bad, "x").starts_with("\u{1b}["));
        assert!(Color::Always.on(false));
        assert!(!Color::Never.on(true));
        assert!(!Color::Auto.on(false));
    }
}
