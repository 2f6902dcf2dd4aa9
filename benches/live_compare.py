#!/usr/bin/env python3
"""Greedy tokens of amk on a CUDA device against transformers in float32 on the same machine, token by token.

    python3 live_compare.py AMK CHECKPOINT GOLDEN.json [--new 512] [--out REPORT.json]

The prompts are the golden's; nothing else of it is used. Needs torch and transformers. Where the two part, the report has
transformers' own logits of both tokens there: two sums in another order may part where those are equal to the last bits.
Exit code 0 if every prompt agrees to its end.
"""
import argparse
import json
import subprocess
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM


def main():
    p = argparse.ArgumentParser()
    p.add_argument("amk")
    p.add_argument("checkpoint")
    p.add_argument("golden")
    p.add_argument("--new", type=int, default=512)
    p.add_argument("--out")
    args = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32, attn_implementation="eager")
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(dev).eval()
    # Greedy and nothing else; an end-of-sequence token ends nothing, as with --ignore-eos.
    model.generation_config = transformers.GenerationConfig(eos_token_id=None)
    rows = []
    for prompt in json.load(open(args.golden))["runs"]["f32"]["prompts"]:
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
    if args.out:
        with open(args.out, "w") as f:
            json.dump(report, f, indent=1)
            f.write("\n")
    print(json.dumps({k: report[k] for k in ("ok", "device", "versions")}))
    return 0 if report["ok"] else 1


sys.exit(main())
