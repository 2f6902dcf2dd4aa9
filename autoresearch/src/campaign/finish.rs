//! The end: the winner against the original.

use super::path::guard;
use super::{Campaign, CampaignError, Outcome};
use crate::candidate::Point;
use crate::journal::{Confirmation, Event};
use crate::judge::{self, Known};
use crate::seams::Refusal;
use crate::verdict::{Decision, Stage, Verdict};

impl Campaign<'_> {
    /// Confirms what was found, unless it was stopped, and writes down why it is over.
    pub(super) fn finish(mut self, reason: String) -> Result<Outcome, CampaignError> {
        let stopped = self.stopped();
        let mut confirmation = None;
        if !stopped && self.history.incumbent != self.header.original {
            let c = self.confirm();
            // Stopped meanwhile: what came back says nothing.
            if !self.stopped() {
                self.journal.append(&Event::Confirmed(c.clone()))?;
                self.history.confirmations += 1;
                self.parts.observer.confirmed(&c);
                confirmation = Some(c);
            }
        }
        self.journal.append(&Event::Ended { reason: reason.clone() })?;
        let tally = &self.history.tally;
        self.parts.observer.ended(&reason, &self.history, tally);
        Ok(Outcome {
            head: self.journal.head().to_owned(),
            entries: self.journal.len(),
            header: self.header,
            history: self.history,
            reason,
            stopped,
            confirmation,
        })
    }

    fn confirm(&self) -> Confirmation {
        let (winner, original) = (self.history.incumbent.clone(), self.header.original.clone());
        let mut c = Confirmation {
            winner: winner.clone(),
            original: original.clone(),
            entry: self.history.incumbent_entry,
            measurement: None,
            predicted_us: None,
            original_predicted_us: None,
            holds: false,
            text: String::new(),
        };
        let outcome = match self.header.device {
            None => self.confirm_predicted(&mut c),
            Some(_) => self.confirm_measured(&mut c, winner, original),
        };
        if let Err(refusal) = outcome {
            c.text =
                format!("the winner could not be confirmed: {}", Verdict::from(refusal).reason());
        }
        c
    }

    fn confirm_predicted(&self, c: &mut Confirmation) -> Result<(), Refusal> {
        let worker = self.parts.worker;
        let us = |p: &Point| guard(Stage::Lower, || worker.prepare(p)).map(|p| p.prediction.us);
        let (a, b) = (us(&c.winner)?, us(&c.original)?);
        (c.predicted_us, c.original_predicted_us) = (Some(a), Some(b));
        c.holds = a < b;
        c.text = format!(
            "predicted: {a:.1} us a token where the start takes {b:.1} us, {:.3} times as fast; nothing was measured",
            b / a
        );
        Ok(())
    }

    fn confirm_measured(
        &self,
        c: &mut Confirmation,
        winner: Point,
        original: Point,
    ) -> Result<(), Refusal> {
        let worker = self.parts.worker;
        let prepare = |p: &Point| guard(Stage::Lower, || worker.prepare(p));
        let (candidate, start) = (prepare(&winner)?, prepare(&original)?);
        let image = guard(Stage::Compile, || worker.compile(&winner))?.unwrap_or_default();
        let alpha = judge::share(self.header.confidence, self.history.confirmations + 1);
        let job = self.job(winner, original, 0.0, alpha);
        let evidence = guard(Stage::Time, || worker.measure(&job))?;
        let known = Known {
            header: &self.header,
            candidate: &candidate,
            image: &image,
            incumbent_program: &start.program,
            incumbent_share: None,
            alpha,
            threshold: 0.0,
        };
        match judge::judge(evidence, &known) {
            Verdict::Measured(m) => {
                c.holds = m.decision == Decision::Kept;
                c.text = format!(
                    "measured: {:.1} us a token where the start takes {:.1} us in the same rounds, {:.3} times as fast (at least {:.3}){}",
                    m.candidate_us,
                    m.incumbent_us,
                    m.speedup.median,
                    m.speedup.low,
                    if c.holds { "" } else { "; the gain is not certain" }
                );
                c.measurement = Some(m);
            }
            other => c.text = format!("the winner could not be confirmed: {}", other.reason()),
        }
        Ok(())
    }
}
