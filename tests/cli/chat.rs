//! `amk chat`.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{amk, run};

const MODEL: &str = "tests/checkpoints/llama-gqa-bf16";

/// The documents of a conversation of these lines.
fn talk(args: &[&str], lines: &str) -> Vec<Value> {
    let mut child = amk()
        .args(["chat", MODEL, "--json", "--max-tokens", "8"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn the_history_is_part_of_the_prompt_until_it_is_cleared() {
    let answers = talk(&[], "The river\nThe mill\n/clear\nThe river\n/exit\nnever\n");
    assert_eq!(answers.len(), 3);
    let length = |i: usize| answers[i]["prompt_tokens"].as_u64().unwrap();
    assert!(length(1) > length(0) + 8);
    assert_eq!(answers[2], answers[0]);
    assert_eq!(answers[0]["interrupted"], false);
    let with_system = talk(&["--system", "Be brief."], "The river\n");
    assert!(with_system[0]["prompt_tokens"].as_u64().unwrap() > length(0));
}

#[test]
fn a_seed_repeats_and_log_probabilities_are_given() {
    let warm = |seed| {
        talk(&["--temperature", "1", "--top-k", "50", "--seed", seed, "--logprobs", "3"], "Hi\n")
    };
    assert_eq!(warm("1"), warm("1"));
    assert_ne!(warm("1")[0]["tokens"], warm("2")[0]["tokens"]);
    let answer = &warm("1")[0];
    let probs = answer["logprobs"].as_array().unwrap();
    assert_eq!(probs.len(), answer["tokens"].as_array().unwrap().len());
    for p in probs {
        let top = p["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(p["chosen"].as_f64().unwrap() <= top[0][1].as_f64().unwrap());
    }
}

#[test]
fn an_answer_ends_before_a_stop_string() {
    let whole = talk(&[], "The river\n")[0]["text"].as_str().unwrap().to_owned();
    let middle: String = whole.chars().skip(whole.chars().count() / 2).take(2).collect();
    let answer = &talk(&["--stop", &middle], "The river\n")[0];
    let expected = &whole[..whole.find(&middle).unwrap()];
    assert_eq!(
        (answer["text"].as_str(), &answer["finish_reason"]),
        (Some(expected), &Value::from("stop"))
    );
}

/// Ctrl-C during an answer ends it, and the next line is answered.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_not_the_program() {
    use std::io::{BufRead, BufReader};
    let mut child = amk()
        .args(["chat", MODEL, "--max-tokens", "40", "--json", "--temperature", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    // The first answer says that the program is up. Whenever a signal comes after it, even between two answers, the
    // program goes on.
    stdin.write_all(b"Hi\n").unwrap();
    answers.next().unwrap().unwrap();
    for _ in 0..2 {
        stdin.write_all(b"The river\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let killed = std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap();
        assert!(killed.success());
        let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        assert!(answer["tokens"].as_array().unwrap().len() <= 40);
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_talked_with_is_refused() {
    run(&["chat", "tests/checkpoints/qwen3-bf16"]).exits(2).says(&["no chat template"]);
    run(&["chat", MODEL, "--top-p", "0"]).exits(2).says(&["top-p is 0", "at most 1"]);
}
