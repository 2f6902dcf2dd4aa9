//! The host's copy of the line of tokens, and what of it a program's token buffer still lacks.

use std::ops::Range;

/// Tokens by position. A program's buffer is known by its address; after a switch to another one, everything from
/// the next launch's first position on is written there.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    tokens: Vec<u32>,
    /// Positions put since the last launch.
    fresh: Option<Range<u64>>,
    /// The buffer that was written last.
    buffer: Option<u64>,
}

impl Line {
    /// Puts tokens at `at ..`; what lay behind them is forgotten.
    pub fn put(&mut self, at: u64, tokens: &[u32]) {
        self.tokens.resize(at as usize, 0);
        self.tokens.extend(tokens);
        let end = self.tokens.len() as u64;
        self.fresh = Some(match &self.fresh {
            Some(f) => f.start.min(at)..end,
            None => at..end,
        });
    }

    /// A token the device has put at `at` itself.
    pub fn told(&mut self, at: u64, token: u32) {
        let at = at as usize;
        if at >= self.tokens.len() {
            self.tokens.resize(at + 1, 0);
        }
        self.tokens[at] = token;
    }

    /// What the buffer at `buffer` lacks for a launch from `from` on: a position and the tokens there.
    pub fn pending(&mut self, buffer: u64, from: u64) -> Option<(u64, Vec<u32>)> {
        let end = self.tokens.len() as u64;
        let lacks = match (self.buffer == Some(buffer), self.fresh.take()) {
            (true, fresh) => fresh?,
            (false, _) => from..end,
        };
        self.buffer = Some(buffer);
        let lacks = lacks.start.min(end)..lacks.end.min(end);
        (!lacks.is_empty())
            .then(|| (lacks.start, self.tokens[lacks.start as usize..lacks.end as usize].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_gets_what_it_lacks() {
        let mut line = Line::default();
        line.put(0, &[1, 2, 3, 4, 5]);
        assert_eq!(line.pending(100, 0), Some((0, vec![1, 2, 3, 4, 5])));
        assert_eq!(line.pending(100, 2), None);
        // The device wrote the next token; another buffer needs it and what comes after the prompt.
        line.told(5, 6);
        assert_eq!(line.pending(200, 4), Some((4, vec![5, 6])));
        line.told(6, 7);
        assert_eq!(line.pending(200, 6), None);
        // Teacher-forced: one token after another.
        line.put(3, &[9]);
        assert_eq!(line.pending(200, 3), Some((3, vec![9])));
        line.put(4, &[8]);
        line.put(2, &[7, 7]);
        assert_eq!(line.pending(200, 2), Some((2, vec![7, 7])));
    }

    #[test]
    fn a_position_past_the_tokens_needs_none() {
        let mut line = Line::default();
        line.put(0, &[1]);
        assert_eq!(line.pending(1, 5), None);
    }
}
