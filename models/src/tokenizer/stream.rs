//! Text from ids that arrive one at a time.

use super::{Tokenizer, TokenizerError};

/// Decodes a stream of ids so that the pieces, joined, are exactly the decoding of all ids at once.
///
/// A piece is held back while it could still change: behind the first bytes of a character, and in a run of
/// byte-fallback tokens, which decode together or not at all. What is held back comes with [`StreamDecoder::finish`],
/// so a replacement character that really is in the text survives.
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Ids of the window that is decoded anew at each step.
    window: Vec<u32>,
    /// Bytes of the window's text that have been given out.
    given: usize,
    /// Start of a shorter window that may take over, and its length when it was noted.
    next: usize,
}

/// Ids after which a shorter window is tried.
const WINDOW: usize = 64;

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, window: Vec::new(), given: 0, next: 0 }
    }

    /// Takes one id and gives the text that is certain now; often empty.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.window.push(id);
        let text = self.tokenizer.decode(&self.window, self.skip_special)?;
        if self.in_byte_run() || text.ends_with('\u{FFFD}') {
            return Ok(String::new());
        }
        let Some(piece) = text.get(self.given..) else { return Ok(String::new()) };
        let piece = piece.to_string();
        self.given = text.len();
        self.shorten()?;
        Ok(piece)
    }

    /// Ends the stream and gives what was held back.
    pub fn finish(self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.decode(&self.window, self.skip_special)?;
        Ok(text.get(self.given..).unwrap_or_default().to_string())
    }

    /// Whether the last id that shows is a byte-fallback token.
    fn in_byte_run(&self) -> bool {
        for id in self.window.iter().rev() {
            let Some(token) = self.tokenizer.token(*id) else { continue };
            if self.skip_special && self.tokenizer.is_special(&token) {
                continue;
            }
            return token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
        }
        false
    }

    /// Called where all text of the window has been given out. Keeps the work per id bounded: once the window is long
    /// enough, its newer half takes over. That half must show some text of its own, because decoders treat the very
    /// beginning of a text differently (a leading space is dropped), and no later piece may be at a beginning.
    fn shorten(&mut self) -> Result<(), TokenizerError> {
        if self.next == 0 && self.window.len() >= WINDOW {
            self.next = self.window.len();
        }
        if self.next > 0 && self.window.len() >= self.next + WINDOW {
            let tail = self.tokenizer.decode(&self.window[self.next..], self.skip_special)?;
            if tail.trim().is_empty() {
                return Ok(());
            }
            self.window.drain(..self.next);
            self.given = tail.len();
            self.next = 0;
        }
        Ok(())
    }
}
