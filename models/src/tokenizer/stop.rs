//! Stop strings in a stream of text.

/// Ends a text before the first stop string in it, giving out what can no longer be part of one.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// Stops at any of these; empty ones stop nothing.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|s| !s.is_empty()).collect(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes a piece of text and gives what is certain now.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        // The longest end of the text that begins a stop string stays back.
        let back = self
            .held
            .char_indices()
            .map(|(i, _)| i)
            .find(|i| self.stops.iter().any(|s| s.starts_with(&self.held[*i..])))
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(back);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Ends the text and gives what was held back.
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text given out piece by piece, and whether it was stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut s = StopStrings::new(stops.iter().map(ToString::to_string));
        let mut out: String = pieces.iter().map(|p| s.push(p)).collect();
        let stopped = s.stopped();
        out += &s.finish();
        (out, stopped)
    }

    #[test]
    fn the_text_ends_before_the_first_stop_string_however_it_is_cut() {
        let text = "one, two</s>three END four";
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        for pieces in [&[text][..], &chars, &["one, two<", "/s", ">three", " END four"]] {
            assert_eq!(run(&["END", "</s>"], pieces), ("one, two".to_string(), true));
            assert_eq!(run(&["END"], pieces), ("one, two</s>three ".to_string(), true));
            assert_eq!(run(&["nowhere", ""], pieces), (text.to_string(), false));
        }
        assert_eq!(run(&["ab", "b"], &["xa", "b"]), ("x".to_string(), true));
        assert_eq!(run(&["🙂x"], &["é🙂", "y🙂"]), ("é🙂y🙂".to_string(), false));
    }

    #[test]
    fn only_what_may_begin_a_stop_string_is_held_back() {
        let mut s = StopStrings::new(["STOP".to_string()]);
        assert_eq!(s.push("go ST"), "go ");
        assert_eq!(s.push("ART "), "START ");
        assert_eq!(s.push("STOP and more"), "");
        assert_eq!((s.stopped(), s.push("more")), (true, String::new()));
    }
}
