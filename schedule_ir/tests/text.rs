//! The text form reads back to an equal program, and what it refuses it refuses with a place.

use amk_schedule_ir::unique::Unique;
use amk_schedule_ir::{Program, text};

const SMALL: &str = r#"amk-schedule 1
name "small \"one\""
target sm_90a
bucket 3..=511
tokens 1
steps 64
epochs per_step 2 tags 4294967295
meta "a" "b\u{a}c"
resources warps 8 slots 12 slot_bytes 16384 registers 168 barriers 2
shared ring 0+196608
shared control 196608+1024
buffer 0 "h" activation packet bf16 [1, 64]
buffer 1 "kv" kv plain bf16 [2, 512, 16] sequence 3
buffer 2 "tokens" tokens plain u32 [512]
counter 0 "c" init 0 per_step 2
boundary argmax reads 0[0..1, 0..64]@1 writes 2[pos+1..pos+2]
sm 0
  run 0 weight 7 rows 0..24 tiles 1 blocks 2 window 3
  run 1 kv 1 [0..1, 0..min(64,pos), 0..16] rows 64 gate 1 window 3
  queue 0 1
sm 1
  queue
instr 0 norm_qkv{hidden=64, total=128, rows=0..24, eps=1e-5, source=embedding, vocab=512}
  reads 2[pos..pos+1] 1[0..1, split(1/3)..split(2/3), pos-1..pos]
  writes 0[0..1, 0..64]@1
  wait 0>=2
  signal 0+1
  signal 0+1
  run 0
instr 1 boundary{}
"#;

#[test]
fn parse_print_parse_is_identity() {
    let program = text::parse(SMALL).unwrap();
    assert_eq!(text::print(&program), SMALL);
    assert_eq!(text::parse(&text::print(&program)).unwrap(), program);
}

#[test]
fn json_carries_the_same_program() {
    let program = text::parse(SMALL).unwrap();
    let json = serde_json::to_string(&program).unwrap();
    let back: Program = serde_json::from_str(&json).unwrap();
    assert_eq!(back, program);
    assert_eq!(back.hash(), program.hash());
}

#[test]
fn nan_survives_both_forms() {
    let nan = SMALL.replace("eps=1e-5", "eps=NaN");
    let program = text::parse(&nan).unwrap();
    assert_eq!(text::print(&program), nan);
    let json = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
}

#[test]
fn a_key_that_is_given_twice_is_refused_by_name() {
    let program = text::parse(SMALL).unwrap();
    let json = serde_json::to_string(&program).unwrap();
    let twice = [
        (r#""meta":{"a":"#, r#""meta":{"a":"first","a":"#, r#"the key "a" is given twice"#),
        (r#""bucket":{"first":3"#, r#""bucket":{"first":3,"first":4"#, "duplicate field `first`"),
        (r#""tokens":1"#, r#""tokens":1,"tokens":2"#, "duplicate field `tokens`"),
        (r#"{"norm_qkv":{"hidden":64"#, r#"{"norm_qkv":{"hidden":64,"hidden":65"#, "`hidden`"),
    ];
    for (from, to, want) in twice {
        assert!(json.contains(from), "{from} is not in {json}");
        let got = serde_json::from_str::<Program>(&json.replacen(from, to, 1)).unwrap_err();
        assert!(got.to_string().contains(want), "{got} does not contain {want}");
    }
    assert!(serde_json::from_str::<Unique>(&json).is_ok());
    let nested = r#"[1, -2, 0.5, null, true, {"a": {"b": 1, "c": [{"d": "x", "d": 2}]}}]"#;
    let got = serde_json::from_str::<Unique>(nested).unwrap_err().to_string();
    assert!(got.contains(r#"the key "d" is given twice"#), "{got}");
}

#[test]
fn hidden_characters_are_refused_as_they_are_and_kept_as_escapes() {
    let hidden = ['\u{202e}', '\u{200b}', '\u{2028}', '\u{feff}', '\u{1b}', '\u{e0041}', '\u{85}'];
    for c in hidden {
        for raw in [SMALL.replace("small", &format!("sm{c}all")), format!("{SMALL}# {c}\n")] {
            let got = text::parse(&raw).unwrap_err().to_string();
            let want = format!("the hidden character U+{:04X}", c as u32);
            assert!(got.contains(&want) && !got.contains(c), "{got:?}");
        }
        let escape = format!("sm\\u{{{:x}}}all", c as u32);
        let program = text::parse(&SMALL.replace("small", &escape)).unwrap();
        assert_eq!(program.name, format!("sm{c}all \"one\""));
        assert!(text::print(&program).contains(&escape));
        assert_eq!(text::parse(&text::print(&program)).unwrap(), program);
    }
    let line = format!("{}\u{202e}", SMALL.replace("amk", "# ä\namk"));
    let got = text::parse(&line).unwrap_err();
    assert_eq!((got.line, got.column), (line.lines().count() as u32, 1));
    assert_eq!(text::visible("a\n\u{202e}ä\"\\"), "a\\u{a}\\u{202e}ä\"\\");
    let shown = SMALL.replace("\"small \\\"one\\\"\"", "\"größe 0.5 µs → ∞ 模型 🙂\"");
    assert_ne!(shown, SMALL);
    assert_eq!(text::print(&text::parse(&shown).unwrap()), shown);
}

#[test]
fn errors_name_the_place() {
    let cases = [
        ("", "line 1, column 1: expected `amk-schedule 1`"),
        ("amk-schedule 9", "format version 9 is not known"),
        (&SMALL.replace("eps=1e-5", "eps=x"), "line 23, column"),
        (&SMALL.replace("hidden=64, total", "total"), "parameter `hidden` is missing"),
        (&SMALL.replace("hidden=64", "hidden=64, color=1"), "no parameter `color`"),
        (&SMALL.replace("slots 12", "slots 99999999999"), "99999999999 is too large here"),
        (&SMALL.replace("norm_qkv", "frobnicate"), "unknown op `frobnicate`"),
        (&format!("\u{feff}{SMALL}"), "line 1, column 1: the text begins with a byte-order mark"),
        (&SMALL[..SMALL.len() - 2], "expected a name"),
    ];
    for (text, want) in cases {
        let got = text::parse(text).unwrap_err().to_string();
        assert!(got.contains(want), "{got:?} does not contain {want:?}");
    }
}
