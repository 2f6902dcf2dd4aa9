//! `amk compile`: files, reports, determinism, and what it refuses.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Run, amk, finish, nvrtc, run};

const SIX: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"];

/// Compiles into a new folder.
fn compile(args: &[&str]) -> (TempDir, Run) {
    let dir = TempDir::new().unwrap();
    let run = finish(amk().arg("compile").args(args).arg("--out").arg(dir.path()));
    (dir, run)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_embedded_model_for_all_six_targets() {
    nvrtc();
    let (dir, run) = compile(&["--json"]);
    let document = run.exits(0).json();
    assert_eq!(document["ok"], true);
    assert_eq!(document["validated"], true);
    assert_eq!(document["compute"], "bf16");
    let targets = document["targets"].as_array().unwrap();
    let sms: Vec<&str> = targets.iter().map(|t| t["sm"].as_str().unwrap()).collect();
    assert_eq!(sms, SIX);

    let mut expected = vec!["report.html".to_owned(), "report.json".to_owned()];
    for (i, target) in targets.iter().enumerate() {
        let sm = SIX[i];
        assert_eq!(target["spill_bytes"], 0, "{sm}");
        assert!((32..=255).contains(&target["registers"].as_u64().unwrap()), "{target}");
        assert!(target["shared_bytes"].as_u64().unwrap() > 32_768, "{target}");
        assert!(target["seconds"].as_f64().unwrap() > 0.0);
        let stem = if i == 0 { "model".to_owned() } else { format!("model.{sm}") };
        for name in [
            format!("{stem}.sched"),
            format!("{stem}.sched.json"),
            format!("megakernel.{sm}.cu"),
            format!("megakernel.{sm}.cubin"),
        ] {
            expected.push(name);
        }
        for field in ["source", "cubin", "schedule", "schedule_json"] {
            let path = Path::new(target[field].as_str().unwrap());
            assert!(path.starts_with(dir.path()) && path.is_file(), "{field}: {path:?}");
        }
        let cubin = fs::read(dir.path().join(format!("megakernel.{sm}.cubin"))).unwrap();
        assert!(cubin.starts_with(b"\x7fELF"));
        let source = fs::read_to_string(dir.path().join(format!("megakernel.{sm}.cu"))).unwrap();
        assert!(!source.contains("#include"));

        // Both forms are the program that the document names.
        let hash = target["program_hash"].as_str().unwrap();
        let text = fs::read_to_string(dir.path().join(format!("{stem}.sched"))).unwrap();
        let program = amk_schedule_ir::text::parse(&text).unwrap();
        assert_eq!(amk_schedule_ir::hash::hex(&program.hash()), hash);
        let form = fs::read(dir.path().join(format!("{stem}.sched.json"))).unwrap();
        let again: amk_schedule_ir::Program = serde_json::from_slice(&form).unwrap();
        assert_eq!(again, program);
        assert_eq!(target["instructions"], program.instructions.len());
    }
    expected.sort();
    assert_eq!(names(dir.path()), expected);
    assert_eq!(document["program_hash"], targets[0]["program_hash"]);
    assert_eq!(document["instructions"], targets[0]["instructions"]);

    // The schedule ran on the VM and said what the reference says.
    let run = &document["run"];
    let tokens = run["tokens"].as_array().unwrap().len();
    assert_eq!(tokens, 32);
    assert!(run["text"].as_str().unwrap().split_whitespace().count() > 10, "{run}");

    // What was written is accepted when it is read back.
    for file in names(dir.path()).iter().filter(|n| n.contains(".sched")) {
        let verdict = finish(amk().arg("validate").arg(dir.path().join(file)).arg("--json"));
        assert_eq!(verdict.exits(0).json()["faults"], json!([]), "{file}");
    }
    check_report(dir.path(), targets);
}

fn check_report(dir: &Path, targets: &[Value]) {
    let report: Value =
        serde_json::from_slice(&fs::read(dir.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["format"], 1);
    assert_eq!(report["model"]["parameters"], 951_680);
    for (t, target) in report["targets"].as_array().unwrap().iter().zip(targets) {
        assert_eq!(t["program_hash"], target["program_hash"]);
        assert_eq!(t["image"]["registers"], target["registers"]);
        assert!(t["image"]["occupancy"]["by_registers"].as_u64().unwrap() >= 1);
        assert!(t["image"]["sass_instructions"].as_u64().unwrap() > 1000);
        // Every SM's bytes are in the balance, and every op's in the table.
        let sms = t["balance"]["sms"].as_array().unwrap();
        assert_eq!(sms.len() as u64, t["blocks"].as_u64().unwrap());
        let sum = |list: &Value, field: &str| -> u64 {
            list.as_array().unwrap().iter().map(|x| x[field].as_u64().unwrap()).sum()
        };
        let weights = t["balance"]["weight_bytes"].as_u64().unwrap();
        assert_eq!(sum(&t["balance"]["sms"], "weight_bytes"), weights);
        assert_eq!(sum(&t["ops"], "weight_bytes"), weights);
        assert_eq!(sum(&t["ops"], "instructions"), t["instructions"].as_u64().unwrap());
        assert_eq!(sum(&t["dependences"]["stages"], "weight_bytes"), weights);
        assert!(t["dependences"]["predicted_step_us"].as_f64().unwrap() > 0.0);
    }
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    for part in SIX.iter().chain(&["Dependence graph", "Balance", "predicted", "Verdicts", "<svg"])
    {
        assert!(page.contains(part), "no {part} in the page");
    }
    for link in ["http:", "https:", "<script", "<link", " src=", "@import", "url(http"] {
        assert!(!page.contains(link), "the page is not self-contained: {link}");
    }
}

#[test]
fn two_runs_write_the_same_bytes() {
    nvrtc();
    let args = ["--target", "sm_90a", "--target", "sm_80", "--no-cache", "--no-run", "--quiet"];
    let (one, first) = compile(&args);
    let (two, second) = compile(&args);
    first.exits(0);
    second.exits(0);
    let mut compared = 0;
    for name in names(one.path()).iter().filter(|n| !n.starts_with("report")) {
        let (a, b) = (fs::read(one.path().join(name)), fs::read(two.path().join(name)));
        assert!(a.unwrap() == b.unwrap(), "{name} differs");
        compared += 1;
    }
    assert_eq!(compared, 8);
}

#[test]
fn without_a_compiler_there_are_sources_and_a_line_how_to_get_one() {
    let cache = TempDir::new().unwrap();
    let dir = TempDir::new().unwrap();
    // No toolkit, no Python, an empty cache; a library of the system may still be there.
    let bare = |args: &[&str]| {
        let mut command = amk();
        command.args(args).env("AMK_CACHE", cache.path()).env("AMK_PYTHON", "/no/python");
        command.env_remove("AMK_NVRTC").env_remove("CUDA_HOME").env_remove("CUDA_PATH");
        command
    };
    let there = finish(&mut bare(&["toolchain", "status", "--json"])).json()["ok"] == true;
    let out = dir.path().to_str().unwrap();
    let run =
        finish(&mut bare(&["compile", "--target", "sm_80", "--no-run", "--json", "--out", out]));
    let run = run.exits(0);
    let document = run.json();
    let cubin = dir.path().join("megakernel.sm_80.cubin");
    if there {
        assert!(cubin.is_file() && document["warnings"] == json!([]));
        return;
    }
    assert!(document["targets"][0]["cubin"].is_null());
    assert!(document["targets"][0]["registers"].is_null());
    assert!(document["compiler"].is_null());
    assert!(run.err.contains("amk toolchain fetch"), "{}", run.err);
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    assert!(dir.path().join("megakernel.sm_80.cu").is_file() && !cubin.exists());
    assert!(dir.path().join("report.html").is_file());
}

#[test]
fn a_named_compiler_that_is_not_there_is_three() {
    let (dir, run) = compile(&["--target", "sm_80", "--nvrtc", "/no/such/library"]);
    run.exits(3).says(&["/no/such/library"]);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn targets_are_found_or_refused_by_name() {
    let (_dir, run) = compile(&["--target", "sm_77"]);
    run.exits(2).says(&["sm_77", "sm_90a"]);
    let (_dir, run) = compile(&["--target", "h100", "--target", "h200"]);
    run.exits(2).says(&["two of the targets are sm_90a"]);
    let (_dir, run) = compile(&["--target-file", "no-such.json"]);
    run.exits(2).says(&["no-such.json"]);
}

#[test]
fn a_record_decides_what_fits() {
    let records = TempDir::new().unwrap();
    let shipped = fs::read_to_string("src/target/data/rtx5090.json").unwrap();
    let mut record: Value = serde_json::from_str(&shipped).unwrap();
    let large = ["--shape-only", "tests/shapes/llama-3.2-1b.json"];
    let mut with = |field: &str, value: Value, model: &[&str]| {
        record[field] = value;
        let path = records.path().join(format!("{field}.json"));
        fs::write(&path, record.to_string()).unwrap();
        let path = path.to_str().unwrap().to_owned();
        compile(&[&["--target-file", &path, "--no-run", "--json"], model].concat()).1
    };
    let few = with("sm_count", json!(7), &[]).exits(0).json();
    let few_blocks = few["run"].is_null() && few["targets"][0]["name"] == "rtx5090";
    assert!(few_blocks, "{few}");
    assert_eq!(few["targets"][0]["sm"], "sm_120");
    assert!(few["targets"][0]["shared_bytes"].as_u64().unwrap() <= 101_376);
    with("shared_per_block", json!(20_000), &large).exits(2).says(&["shared memory"]);
    with("threads_per_block", json!("many"), &[]).exits(2).says(&["threads_per_block"]);
}

#[test]
fn knobs_change_the_program_and_wrong_ones_are_named() {
    let files = TempDir::new().unwrap();
    let with = |text: &str| {
        let path = files.path().join("knobs.json");
        fs::write(&path, text).unwrap();
        compile(&["--target", "sm_90a", "--no-run", "--json", "--knobs", path.to_str().unwrap()]).1
    };
    let plain = with("{}").exits(0).json();
    let turned = with(r#"{"rotation": 3}"#).exits(0).json();
    assert_ne!(plain["program_hash"], turned["program_hash"]);
    with(r#"{"rotatoin": 3}"#).exits(2).says(&["rotatoin", "knobs.json"]);
    with(r#"{"consumer_warps": 99}"#).exits(2).says(&["consumer_warps", "99"]);
    with("not json").exits(2).says(&["knobs.json"]);
}

#[test]
fn positions_choose_the_bucket() {
    let at_300 = ["--target", "sm_90a", "--position", "300"];
    let (_dir, run) = compile(&[&at_300[..], &["--json"]].concat());
    let document = run.exits(0).json();
    assert!(document["run"].is_null());
    let (dir, run) = compile(&at_300);
    run.exits(0);
    let report: Value =
        serde_json::from_slice(&fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(report["bucket"], json!({"first": 256, "last": 511}));
    let (_dir, run) = compile(&["--target", "sm_90a", "--position", "512"]);
    run.exits(2).says(&["position 512", "512 positions"]);
    let (_dir, run) = compile(&[&at_300[..], &["--prompt", "And"]].concat());
    run.exits(2).says(&["--position"]);
}

#[test]
fn a_prompt_runs_any_model() {
    let model = "tests/checkpoints/llama-gqa-tied-bf16";
    let args = [
        model,
        "--target",
        "sm_120",
        "--compute",
        "f32",
        "--prompt",
        "hello",
        "--max-tokens",
        "7",
        "--allow-spills",
    ];
    let (_dir, run) = compile(&[&args[..], &["--json"]].concat());
    let document = run.exits(0).json();
    assert_eq!(document["compute"], "f32");
    assert_eq!(document["run"]["sm"], "sm_120");
    // The model says three tokens, the last of which ends it; the reference says the same.
    assert_eq!(document["run"]["tokens"], json!([273, 357, 2]));
    assert_eq!(document["run"]["agrees_with_reference"], 3);
    let (_dir, run) = compile(&[model, "--target", "sm_120", "--json"]);
    assert!(run.exits(0).json()["run"].is_null());
}

#[test]
fn weights_that_are_no_bf16_are_compiled_in_float32() {
    for model in ["llama-odd-f32", "llama-rope-linear-f16"] {
        let (_dir, run) =
            compile(&[&format!("tests/checkpoints/{model}"), "--target", "sm_80", "--json"]);
        let document = run.exits(0).json();
        assert_eq!(document["compute"], "f32", "{model}");
        assert_eq!(document["targets"][0]["spill_bytes"], 0, "{model}");
    }
}

#[test]
fn shapes_of_large_models_compile_from_a_config_alone() {
    let (dir, run) = compile(&[
        "--shape-only",
        "tests/shapes/llama-3.1-8b.json",
        "--target",
        "sm_90a",
        "--json",
    ]);
    let document = run.exits(0).json();
    let report: Value =
        serde_json::from_slice(&fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    let seconds = &report["targets"][0]["seconds"];
    println!("llama-3.1-8b for sm_90a: {seconds}");
    assert_eq!(document["targets"][0]["spill_bytes"], 0);
    assert!(document["instructions"].as_u64().unwrap() > 10_000);
    assert!(report["model"]["weight_bytes"].is_null());
    assert!(report["targets"][0]["balance"]["weight_bytes"].as_u64().unwrap() > 14_000_000_000);
    // Two layers and the last are drawn, the others named.
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("and 29 layers alike"));
    let (_dir, run) = compile(&["--shape-only", "Cargo.toml"]);
    run.exits(2).says(&["Cargo.toml"]);
}

/// Heads of 256 with windows and soft caps keep to the registers, on the oldest part and on the one with least shared
/// memory.
#[test]
fn wide_heads_do_not_spill() {
    let model = ["--shape-only", "tests/shapes/gemma-2-2b.json"];
    let targets = ["--target", "sm_80", "--target", "sm_120", "--json"];
    let (_dir, run) = compile(&[&model[..], &targets].concat());
    let document = run.exits(0).json();
    let targets = document["targets"].as_array().unwrap();
    assert!(targets.len() == 2 && targets.iter().all(|t| t["spill_bytes"] == 0), "{targets:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_the_environments_fault() {
    run(&["compile", "--target", "sm_80", "--no-run", "--out", "Cargo.toml/out"])
        .exits(3)
        .says(&["Cargo.toml/out"]);
}

#[test]
fn a_damaged_image_in_the_cache_is_compiled_again() {
    let library = nvrtc();
    let cache = TempDir::new().unwrap();
    let dir = TempDir::new().unwrap();
    let go = || {
        let out = dir.path().to_str().unwrap();
        let args = ["compile", "--target", "sm_89", "--no-run", "--json", "--out", out];
        let run =
            finish(amk().args(args).env("AMK_CACHE", cache.path()).env("AMK_NVRTC", &library));
        run.exits(0);
        fs::read(dir.path().join("megakernel.sm_89.cubin")).unwrap()
    };
    let first = go();
    let image = fs::read_dir(cache.path().join("images")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&image, &bytes).unwrap();
    assert!(go() == first);
    assert!(fs::read(&image).unwrap() != bytes, "the damaged image was left there");
}
