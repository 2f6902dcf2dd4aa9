//! Journals that were cut, edited, locked.

use std::fs;

use amk_autoresearch::*;

use crate::common::*;

fn a_journal() -> Ran {
    let world = World::new(true, Plagues { noise: 0.004, crash: 9, ..Plagues::default() });
    run(&world, "mix", 3, iters(25))
}

/// Wherever a kill cuts the file, the campaign goes on and ends with the trials it would have had.
#[test]
fn a_journal_cut_at_any_byte_is_taken_up() {
    let world = World::new(false, Plagues::default());
    let limits = iters(14);
    let whole = run(&world, "mix", 3, limits.clone());
    let expected = trials(&whole.path);
    let bytes = fs::read(&whole.path).unwrap();
    let mut rng = rng::Rng::new(11);
    let mut cuts: Vec<usize> = (0..60).map(|_| rng.below(bytes.len() as u64) as usize).collect();
    cuts.extend([0, 1, bytes.len() - 1, bytes.len()]);
    for cut in cuts {
        let folder = folder();
        let path = folder.path().join("journal.jsonl");
        fs::write(&path, &bytes[..cut]).unwrap();
        let outcome = Err(CampaignError::Start(String::new()));
        let mut ran = Ran { folder, path, outcome };
        go_on(&world, "mix", &mut ran, 3, limits.clone());
        ran.outcome.unwrap();
        let found = trials(&ran.path);
        assert_eq!(found.len(), expected.len(), "cut at {cut}");
        for (a, b) in expected.iter().zip(&found) {
            assert_eq!((&a.candidate, &a.verdict), (&b.candidate, &b.verdict), "cut at {cut}");
        }
    }
}

#[test]
fn what_was_cut_is_said() {
    let mut ran = a_journal();
    let bytes = fs::read(&ran.path).unwrap();
    fs::write(&ran.path, &bytes[..bytes.len() - 30]).unwrap();
    assert!(journal::check(&ran.path, &mut |_| {}).unwrap().torn_bytes > 0);
    let world = World::new(true, Plagues { noise: 0.004, crash: 9, ..Plagues::default() });
    go_on(&world, "mix", &mut ran, 3, iters(25));
    let mut cut = 0;
    journal::check(&ran.path, &mut |e| {
        if let Event::Resumed { cut_bytes, .. } = &e.event {
            cut = *cut_bytes;
        }
    })
    .unwrap();
    assert!(cut > 0);
}

#[test]
fn every_edit_of_any_line_is_found_with_its_line() {
    let ran = a_journal();
    let text = fs::read_to_string(&ran.path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let write = |lines: &[String]| fs::write(&ran.path, lines.join("\n") + "\n").unwrap();
    let broken = |at: usize| {
        let error = journal::check(&ran.path, &mut |_| {}).unwrap_err();
        assert!(
            matches!(&error, JournalError::Broken { line, .. } if *line == at as u64 + 1),
            "{error}"
        );
        // Nobody goes on with it either.
        assert!(Journal::resume(&ran.path, &mut |_| {}).is_err());
    };
    let owned = || lines.iter().map(|l| (*l).to_owned()).collect::<Vec<String>>();
    for at in 0..lines.len() {
        // A digit somewhere in the line.
        let mut edited = owned();
        let digits: Vec<usize> =
            edited[at].char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
        let i = digits[(at * 7919) % digits.len()];
        let other = if &edited[at][i..=i] == "3" { "4" } else { "3" };
        edited[at].replace_range(i..=i, other);
        write(&edited);
        broken(at);
    }
    // A line left out, doubled, two exchanged, one hashed anew.
    let mut edited = owned();
    edited.remove(5);
    write(&edited);
    broken(5);
    let mut edited = owned();
    edited.insert(6, lines[6].to_owned());
    write(&edited);
    broken(7);
    let mut edited = owned();
    edited.swap(3, 4);
    write(&edited);
    broken(3);
    let entry: Entry = serde_json::from_str(lines[4]).unwrap();
    let mut edited = owned();
    edited[4] = journal::seal(4, &entry.prev, entry.at_ms + 1, &entry.event).0.trim().to_owned();
    write(&edited);
    broken(5);
}

/// All lines hashed anew after an edit: the numbers contradict each other, or a hash that somebody noted is gone.
#[test]
fn forged_decisions_are_found_though_every_hash_fits() {
    let ran = a_journal();
    let before = journal::check(&ran.path, &mut |_| {}).unwrap();
    let mut entries: Vec<Entry> = Vec::new();
    journal::check(&ran.path, &mut |e| entries.push(e.clone())).unwrap();
    let forge = |change: &dyn Fn(&mut Trial) -> bool| {
        let (mut out, mut prev, mut changed) = (String::new(), "0".repeat(64), false);
        for e in &entries {
            let mut event = e.event.clone();
            if let Event::Trial(t) = &mut event
                && !changed
            {
                changed = change(t);
            }
            let (line, hash) = journal::seal(e.seq, &prev, e.at_ms, &event);
            out.push_str(&line);
            prev = hash;
        }
        assert!(changed);
        fs::write(&ran.path, out).unwrap();
        journal::check(&ran.path, &mut |_| {})
    };
    let slow = |t: &Trial| t.verdict.decision() == Some(Decision::NotFaster) && t.index > 0;
    let kept = forge(&|t| match &mut t.verdict {
        Verdict::Measured(m) if m.decision != Decision::Kept => {
            m.decision = Decision::Kept;
            true
        }
        _ => false,
    });
    assert!(kept.unwrap_err().to_string().contains("not what its samples say"));
    let alpha = forge(&|t| match &mut t.verdict {
        Verdict::Measured(m) => {
            m.alpha = 0.4;
            true
        }
        _ => false,
    });
    assert!(alpha.is_err());
    let place = forge(&|t| {
        t.index += 1;
        true
    });
    assert!(place.unwrap_err().to_string().contains("is due"));
    let crown = forge(&|t| {
        let change = slow(t);
        if change {
            t.incumbent = Some(99);
        }
        change
    });
    assert!(crown.unwrap_err().to_string().contains("as the incumbent"));
    let predicted = forge(&|t| {
        let change = slow(t);
        if change {
            t.verdict = Verdict::Predicted {
                us: 1.0,
                floor_us: 1.0,
                incumbent_us: 600.0,
                model: "mine".to_owned(),
                decision: Decision::Kept,
            };
        }
        change
    });
    assert!(predicted.unwrap_err().to_string().contains("journal is one of measurements"));
    // An edit that contradicts nothing changes the head all the same.
    let note = forge(&|t| {
        t.seconds += 1.0;
        true
    });
    assert_ne!(note.unwrap().head, before.head);
}

#[test]
fn two_processes_do_not_write_one_journal() {
    let ran = a_journal();
    let held = Journal::resume(&ran.path, &mut |_| {}).unwrap();
    let world = World::new(true, Plagues::default());
    let mut other = ran;
    go_on(&world, "mix", &mut other, 3, iters(30));
    let error = other.outcome.unwrap_err().to_string();
    assert!(error.contains("another process is writing"), "{error}");
    drop(held);
    Journal::resume(&other.path, &mut |_| {}).unwrap();
}

#[test]
fn a_journal_is_not_begun_twice_nor_resumed_about_something_else() {
    let mut ran = a_journal();
    assert!(matches!(Journal::create(&ran.path).unwrap_err(), JournalError::Exists { .. }));
    let mut world = World::new(true, Plagues::default());
    world.device = Some("another part".to_owned());
    go_on(&world, "mix", &mut ran, 3, iters(30));
    let error = ran.outcome.unwrap_err().to_string();
    assert!(error.contains("the device") && error.contains("another part"), "{error}");
}

/// Times and texts of all kinds come back as they were written.
#[test]
fn entries_survive_json() {
    let ran = a_journal();
    journal::check(&ran.path, &mut |e| {
        let text = serde_json::to_string(e).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), *e);
    })
    .unwrap();
}
