//! Packet words: who may read and write them when, and what a hazard is there.

use super::super::compile::Accesses;
use super::super::{Hazard, Witness};
use super::{EARLY, READING, Search, WORKING};

impl Search<'_> {
    pub(super) fn has_read(&self, s: &[u32], node: usize) -> bool {
        let n = &self.c.nodes[node];
        let at = s[self.l.at + n.sm];
        at > n.at || at == n.at && s[self.l.stage + n.sm] & !EARLY == WORKING
    }

    /// Has the node written the word in this step?
    pub(super) fn has_written(&self, s: &[u32], node: usize, word: u16) -> bool {
        let n = &self.c.nodes[node];
        let at = s[self.l.at + n.sm];
        let early = at == n.at && s[self.l.stage + n.sm] & EARLY != 0;
        at > n.at || early && !self.reads_itself(s[self.l.step], node, word)
    }

    /// Does the instruction read the word it writes? Then it does so first.
    fn reads_itself(&self, step: u32, node: usize, word: u16) -> bool {
        self.c.table(step).nodes[node].reads.iter().any(|r| r.0 == word)
    }

    fn epoch(&self, s: &[u32], phase: u32) -> u32 {
        let step = s[self.l.launch] * self.c.steps + s[self.l.step];
        step * self.c.phases + phase + 1
    }

    fn same_tag(&self, a: u32, b: u32) -> bool {
        a != 0 && b != 0 && (u64::from(a) % self.c.tags) == (u64::from(b) % self.c.tags)
    }

    pub(super) fn words_there(&self, s: &[u32], node: usize) -> bool {
        let acc = &self.c.table(s[self.l.step]).nodes[node];
        acc.reads.iter().all(|&(word, phase)| {
            self.same_tag(s[self.l.held + word as usize], self.epoch(s, phase))
        })
    }

    /// Reads the packets of an instruction.
    pub(super) fn read(
        &self,
        s: &[u32],
        sm: usize,
        node: usize,
        acc: &Accesses,
    ) -> Result<(), Witness> {
        for &(word, phase) in &acc.reads {
            let (w, want) = (word as usize, self.epoch(s, phase));
            let buffer = Some(self.c.word_buffer[w]);
            let me = Some(self.c.site(node));
            let stale = |with| self.hazard(s, Hazard::StaleEpoch, buffer, me, with);
            if s[self.l.held + w] != want {
                return Err(stale(None));
            }
            let list = &self.c.table(s[self.l.step]).words[w];
            // Is what this write put there, or something later, known to the reader?
            let known = |k: usize| {
                let (by, ph) = list.writers[k];
                let by = by as usize;
                self.has_written(s, by, word)
                    && (by != node && self.after(s, sm, by)
                        || list.readers.iter().any(|&(r, p)| {
                            let r = r as usize;
                            p == ph && r != node && self.has_read(s, r) && self.after(s, sm, r)
                        }))
            };
            let began = s[self.l.began + w];
            if self.same_tag(began, want) && !(0..list.writers.len()).any(known) {
                return Err(stale(None));
            }
            if list.writers.len() < 2 {
                continue;
            }
            // Older words of this step with the same tag, unless something later hides them.
            let turn = |k: usize| s[self.l.turn + w * self.c.writers + k];
            for (k, &(by, ph)) in list.writers.iter().enumerate() {
                let old = turn(k) > 0 && ph != phase && self.same_tag(self.epoch(s, ph), want);
                let hidden = || (0..list.writers.len()).any(|j| turn(j) > turn(k) && known(j));
                if old && !hidden() {
                    return Err(stale(Some(self.c.site(by as usize))));
                }
            }
        }
        Ok(())
    }

    /// Writes the packets of an instruction: all that are left, or those it may write before it reads.
    pub(super) fn write(
        &self,
        s: &mut [u32],
        sm: usize,
        node: usize,
        early: bool,
    ) -> Result<(), Witness> {
        let step = s[self.l.step];
        let table = self.c.table(step);
        let done = s[self.l.stage + sm] & EARLY != 0;
        for &(word, phase) in &table.nodes[node].writes {
            let own = self.reads_itself(step, node, word);
            if early && own || done && !own {
                continue;
            }
            let (w, list) = (word as usize, &table.words[word as usize]);
            let buffer = Some(self.c.word_buffer[w]);
            for &(reader, read) in &list.readers {
                let reader = reader as usize;
                if read != phase
                    && reader != node
                    && self.has_read(s, reader)
                    && !self.after(s, sm, reader)
                {
                    let (a, b) = (Some(self.c.site(node)), Some(self.c.site(reader)));
                    return Err(self.hazard(s, Hazard::MissedEpoch, buffer, a, b));
                }
            }
            if list.writers.len() > 1 {
                let row = self.l.turn + w * self.c.writers;
                let last = (0..list.writers.len()).max_by_key(|&k| s[row + k]).unwrap_or(0);
                let turn = s[row + last];
                let (by, ph) = list.writers[last];
                let by = by as usize;
                // The writes before the last one precede it, as was seen when it was made.
                let delivered = || {
                    list.readers.iter().any(|&(r, p)| {
                        let r = r as usize;
                        p == ph && (r == node || self.has_read(s, r) && self.after(s, sm, r))
                    })
                };
                let precedes = turn == 0 || by != node && (self.after(s, sm, by) || delivered());
                if !precedes {
                    let (a, b) = (Some(self.c.site(node)), Some(self.c.site(by)));
                    return Err(self.hazard(s, Hazard::Race, buffer, a, b));
                }
                if let Some(k) = list.writers.iter().position(|x| *x == (node as u16, phase)) {
                    s[row + k] = turn + 1;
                }
            }
            s[self.l.held + w] = self.epoch(s, phase);
        }
        Ok(())
    }

    pub(super) fn can_be_early(&self, s: &[u32], sm: usize) -> bool {
        let Some(node) = self.node(s, sm).filter(|_| s[self.l.stage + sm] == READING) else {
            return false;
        };
        let writes = &self.c.table(s[self.l.step]).nodes[node].writes;
        writes.iter().any(|w| !self.reads_itself(s[self.l.step], node, w.0))
    }
}
