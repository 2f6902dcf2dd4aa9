//! The producers: chunks issued, landed and released.

use super::super::{Hazard, Witness};
use super::Search;

impl Search<'_> {
    /// The chunk of the launch that the instruction consumes next.
    pub(super) fn next_chunk(&self, s: &[u32], sm: usize, node: usize) -> Option<u32> {
        let (first, count) = self.c.nodes[node].run?;
        let eaten = s[self.l.eaten + sm];
        let per_step = self.c.streams[sm].chunks.len() as u32;
        (eaten < count).then(|| s[self.l.step] * per_step + first + eaten)
    }

    fn is_released(&self, s: &[u32], sm: usize, chunk: u32) -> bool {
        let chunks = &self.c.streams[sm].chunks;
        let (step, i) = (chunk / chunks.len() as u32, chunk as usize % chunks.len());
        let Some((node, k)) = chunks[i].consumer else { return false };
        let (place, at) = (self.c.nodes[node as usize].at, s[self.l.at + sm]);
        let now = s[self.l.step];
        step < now || step == now && (at > place || at == place && s[self.l.eaten + sm] > k)
    }

    pub(super) fn can_issue(&self, s: &[u32], sm: usize) -> bool {
        let chunks = &self.c.streams[sm].chunks;
        if chunks.is_empty() {
            return false;
        }
        let u = s[self.l.issued + sm];
        let (step, chunk) = (u / chunks.len() as u32, &chunks[u as usize % chunks.len()]);
        step < self.c.steps
            && !chunk.closed
            && self.c.slots > 0
            && (u < self.c.slots || self.is_released(s, sm, u - self.c.slots))
            // The boundary that ends step `step - gate`.
            && chunk.gate.is_none_or(|g| step < g || s[self.l.step] > step - g)
    }

    /// Issues the next chunk, if it can be.
    pub(super) fn issue(&self, s: &mut [u32], sm: usize) -> Result<bool, Witness> {
        if !self.can_issue(s, sm) {
            return Ok(false);
        }
        let u = s[self.l.issued + sm];
        s[self.l.issued + sm] += 1;
        if !self.c.copies {
            return Ok(true);
        }
        let chunks = &self.c.streams[sm].chunks;
        let (n, per_step) = (self.sms(), chunks.len() as u32);
        let mine = self.l.producers + sm * n;
        let (step, now) = (u / per_step, s[self.l.step]);
        if let Some(g) = chunks[u as usize % chunks.len()].gate
            && step >= g
        {
            let all = self.stamp(step - g + 1, 0) - 1;
            s[mine..mine + n].iter_mut().for_each(|x| *x = (*x).max(all));
        }
        if u >= self.c.slots
            && let Some((node, _)) = chunks[(u - self.c.slots) as usize % chunks.len()].consumer
        {
            let then = (u - self.c.slots) / per_step;
            let of =
                self.l.released + ((then as usize & 1) * self.c.nodes.len() + node as usize) * n;
            // Older ones have been forgotten, but for what the boundary before them gave.
            let start = self.stamp(then, 0) - 1;
            for k in 0..n {
                let known = if then + 1 >= now { s[of + k].max(start) } else { start };
                s[mine + k] = s[mine + k].max(known);
            }
        }
        let copy = &self.c.streams[sm].copies[u as usize];
        let happened = |at: u32, node: u16| at < now || at == now && self.entered(s, node as usize);
        for &(at, node) in &copy.conflicts {
            let by = &self.c.nodes[node as usize];
            if happened(at, node) && s[mine + by.sm] < self.stamp(at, by.at) {
                let with = Some(self.c.site(node as usize));
                let me = self.producer(sm);
                return Err(self.hazard(s, Hazard::Race, copy.buffer, me, with));
            }
        }
        for need in &copy.needs {
            if !need.iter().any(|&(at, node)| happened(at, node)) {
                let me = self.producer(sm);
                return Err(self.hazard(s, Hazard::Unwritten, copy.buffer, me, None));
            }
        }
        Ok(true)
    }
}
