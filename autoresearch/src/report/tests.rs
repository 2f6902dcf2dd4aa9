use super::*;
use crate::candidate::{Candidate, Point};
use crate::journal::{Confirmation, Event, FORMAT, Header, Journal, Trial};
use crate::verdict::{Decision, Stage, Verdict};

fn header(original: &Point) -> Header {
    Header {
        format: FORMAT,
        amk: "0".into(),
        model: "a <b>model</b>".into(),
        shape: "s".into(),
        target: "h200".into(),
        sm: "sm_90a".into(),
        mode: "bf16".into(),
        position: 16,
        bucket: (0, 255),
        device: None,
        cost_model: "test model".into(),
        space: "x".into(),
        proposer: "stdio".into(),
        seed: 7,
        batch: 1,
        threshold: 0.003,
        confidence: 0.95,
        min_rounds: 12,
        max_rounds: 100,
        start: "naive".into(),
        original: original.clone(),
    }
}

const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror=alert(2)>&";

struct Book {
    journal: Journal,
    index: u64,
    incumbent: Option<u64>,
}

impl Book {
    fn trial(&mut self, knobs: &Point, note: Option<&str>, verdict: Verdict) {
        let (index, kept) = (self.index, verdict.kept());
        let candidate = Candidate {
            knobs: knobs.clone(),
            parent: None,
            source: if index == 0 { "start".into() } else { HOSTILE.into() },
            note: note.map(str::to_owned),
        };
        let trial: Trial = serde_json::from_value(serde_json::json!({
            "index": index, "batch": index, "candidate": candidate, "seed": 1,
            "incumbent": self.incumbent, "predicted_us": verdict.us(), "verdict": verdict,
            "seconds": 0.1,
        }))
        .unwrap();
        let seq = self.journal.append(&Event::Trial(trial)).unwrap();
        if kept || index == 0 {
            self.incumbent = Some(seq);
        }
        self.index += 1;
    }
}

fn predicted(us: f64, incumbent_us: f64) -> Verdict {
    let decision = crate::judge::predicted(us, incumbent_us, 0.003);
    Verdict::Predicted { us, floor_us: 500.0, incumbent_us, model: "test model".into(), decision }
}

fn campaign(path: &std::path::Path) {
    let original = Point::default().with("rotation", 0).with("word", crate::Value::word(HOSTILE));
    let mut journal = Journal::create(path).unwrap();
    journal.append(&Event::Header(header(&original))).unwrap();
    let mut book = Book { journal, index: 0, incumbent: None };
    let better = original.with("rotation", 4);
    book.trial(&original, None, predicted(900.0, 900.0));
    book.trial(&original.with("rotation", 9), None, predicted(950.0, 900.0));
    book.trial(&better, Some(HOSTILE), predicted(700.0, 900.0));
    let reason = HOSTILE.to_owned();
    let refused = Verdict::Rejected { stage: Stage::Compile, reason };
    book.trial(&better.with("word", crate::Value::word("x")), None, refused);
    book.trial(&better.with("rotation", 5), None, predicted(800.0, 700.0));
    let confirmation = Confirmation {
        winner: better,
        original,
        entry: book.incumbent,
        measurement: None,
        predicted_us: Some(700.0),
        original_predicted_us: Some(900.0),
        holds: true,
        text: format!("predicted 1.29 times as fast {HOSTILE}"),
    };
    book.journal.append(&Event::Confirmed(confirmation)).unwrap();
    book.journal.append(&Event::Ended { reason: HOSTILE.into() }).unwrap();
}

#[test]
fn a_report_says_what_the_journal_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    campaign(&path);
    let report = Report::read(&path).unwrap();
    assert_eq!((report.trials, report.kept.len(), report.tried.len()), (5, 1, 4));
    assert_eq!((report.original_us, report.best_us), (Some(900.0), Some(700.0)));
    assert!(report.predicted && report.holds == Some(true));
    assert_eq!(report.kept[0].changes, ["rotation: 0 to 4"]);
    assert_eq!(report.differences, [("rotation".into(), "0".into(), "4".into())]);
    let rotation = report.knobs.iter().find(|k| k.name == "rotation").unwrap();
    let of = |v: &str| rotation.values.iter().find(|e| e.value == v).unwrap();
    // 900/700 over the start, alone; 700/800 over what was kept then, alone.
    assert!((of("4").median - 900.0 / 700.0).abs() < 1e-4 && of("4").alone == 1);
    assert!((of("5").median - 700.0 / 800.0).abs() < 1e-4 && of("5").alone == 1);
    assert_eq!(report.refusals[0].what, "compile, rejected");
    let verdicts: u64 = report.verdicts.iter().map(|v| v.count).sum();
    assert_eq!(verdicts, report.trials);
    let head = report.provenance.iter().find(|(n, _)| n == "hash of the last entry").unwrap();
    assert_eq!(head.1.len(), 64);
}

#[test]
fn the_page_is_whole_and_nothing_on_it_is_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("<b>.jsonl");
    campaign(&path);
    let page = page(&Report::read(&path).unwrap()).unwrap();
    for part in [
        "every time on this page is predicted",
        "Best so far against time",
        "What each knob did",
        "Where this comes from",
        "prefers-color-scheme: dark",
        "<svg",
        "class=\"best\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // What proposers wrote is there, as text.
    assert!(page.matches("&lt;script&gt;").count() >= 4, "{page}");
    for code in ["<script", "<img", "<b>", "http:", "https:", "href=", "src=\"", "url("] {
        assert!(!page.contains(code), "{code}");
    }
    // Tags are balanced: what was drawn is one document.
    for tag in ["svg", "table", "div", "tr", "td", "p"] {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn an_edited_journal_gives_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    campaign(&path);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("950.0", "650.0", 1)).unwrap();
    assert!(Report::read(&path).unwrap_err().to_string().contains("edited or damaged"));
}

#[test]
fn a_campaign_without_a_time_has_a_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let original = Point::default();
    let mut journal = Journal::create(&path).unwrap();
    journal.append(&Event::Header(header(&original))).unwrap();
    drop(journal);
    let report = Report::read(&path).unwrap();
    assert_eq!((report.trials, report.best_us), (0, None));
    assert!(page(&report).unwrap().contains("no candidate has a time"));
}

#[test]
fn decisions_in_the_fixture_are_the_judges() {
    assert_eq!(predicted(700.0, 900.0).decision(), Some(Decision::Kept));
    assert_eq!(predicted(950.0, 900.0).decision(), Some(Decision::NotFaster));
}
