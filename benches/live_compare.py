#!/usr/bin/env python3
"""Greedy tokens of amk on a CUDA device against transformers in float32 on the same machine, token by token.

    python3 live_compare.py AMK CHECKPOINT GOLDEN.json [--new 512] [--prompts LABEL,...] [--out REPORT.json]
    python3 live_compare.py --merge REPORT.json ... --out REPORT.json

The prompts are the golden's, all or those named; nothing else of it is used. Reports of several runs can be made one. Needs torch and transformers. Where the two part, the report has
transformers' own logits of both tokens there: two sums in another order may part where those are equal to the last bits.
Exit code 0 if every prompt agrees to its end.
"""
import argparse
import json
import subprocess
import sys


def write(report, out):
    if out:
        with open(out, "w") as f:
            json.dump(report, f, indent=1)
            f.write("\n")


def merge(files, out):
    reports = [json.load(open(f)) for f in files]
    same = {k: v for k, v in reports[0].items() if k not in ("ok", "prompts")}
    for file, report in zip(files, reports):
        for key, value in same.items():
            if report.get(key) != value:
                sys.exit(f"{file}: {key} is {report.get(key)}, and {value} in {files[0]}; reports of one model and machine can be merged")
    whole = {"ok": all(r["ok"] for r in reports), **same, "prompts": [p for r in reports for p in r["prompts"]]}
    write(whole, out)
    print(json.dumps({"ok": whole["ok"], "prompts": len(whole["prompts"])}))
    return 0 if whole["ok"] else 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("amk", nargs="?")
    p.add_argument("checkpoint", nargs="?")
    p.add_argument("golden", nargs="?")
    p.add_argument("--new", type=int, default=512)
    p.add_argument("--prompts", help="labels of the golden's prompts, separated by commas; all by default")
    p.add_argument("--merge", nargs="+", metavar="REPORT")
    p.add_argument("--out")
    args = p.parse_args()
    if args.merge:
        return merge(args.merge, args.out)
    if not args.golden:
        p.error("AMK, CHECKPOINT and GOLDEN are needed")
    prompts = json.load(open(args.golden))["runs"]["f32"]["prompts"]
    if args.prompts:
        wanted = args.prompts.split(",")
        unknown = set(wanted) - {q["label"] for q in prompts}
        if unknown:
            p.error(f"the golden has no prompt {', '.join(sorted(unknown))}; it has {', '.join(q['label'] for q in prompts)}")
        prompts = [q for q in prompts if q["label"] in wanted]

    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32, attn_implementation="eager")
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(dev).eval()
    # Greedy and nothing else; an end-of-sequence token ends nothing, as with --ignore-eos.
    model.generation_config = transformers.GenerationConfig(eos_token_id=None)
    rows = []
    for prompt in prompts:
        ids = prompt["prompt_ids"]
        command = [args.amk, "generate", args.checkpoint, "--prompt-ids", ",".join(map(str, ids)), "--max-tokens",
                   str(args.new), "--ignore-eos", "--device", "cuda", "--activations", "f32", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            print(done.stdout[-500:], done.stderr[-500:], file=sys.stderr)
            return 1
        ours = json.loads(done.stdout.splitlines()[-1])
        with torch.no_grad():
            x = torch.tensor([ids], device=dev)
            out = model.generate(x, max_new_tokens=args.new, do_sample=False, pad_token_id=0,
                                 attention_mask=torch.ones_like(x))
        theirs = out[0, len(ids):].tolist()
        same = 0
        while same < min(len(theirs), len(ours["tokens"])) and theirs[same] == ours["tokens"][same]:
            same += 1
        row = {"prompt": prompt["label"], "prompt_tokens": len(ids), "new": len(theirs), "equal": same,
               "self_test": [v["ok"] for v in ours["self_test"]], "timings": ours["timings"]}
        if same < len(theirs):
            with torch.no_grad():
                x = torch.tensor([ids + theirs[:same]], device=dev)
                logits = model(x).logits[0, -1].float()
            a, b = theirs[same], ours["tokens"][same]
            row["parts"] = {"theirs": a, "ours": b, "logit_theirs": float(logits[a]), "logit_ours": float(logits[b])}
        rows.append(row)
        print(json.dumps(row), flush=True)
    report = {
        "ok": all(r["equal"] == r["new"] for r in rows), "checkpoint": args.checkpoint, "new_tokens": args.new,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda},
        "device": torch.cuda.get_device_name() if dev == "cuda" else "cpu", "dtype": "float32", "attention": "eager",
        "prompts": rows,
    }
    write(report, args.out)
    print(json.dumps({k: report[k] for k in ("ok", "device", "versions")}))
    return 0 if report["ok"] else 1


sys.exit(main())
