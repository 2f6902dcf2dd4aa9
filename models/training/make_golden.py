#!/usr/bin/env python3
"""Golden greedy outputs of HuggingFace transformers for one or more checkpoints.

    python3 make_golden.py --prompt-file prompts.json --out FOLDER CKPT_DIR [CKPT_DIR ...]
                           [--compute f32,bf16] [--tokens 64] [--drop-below MARGIN]

One JSON file per checkpoint folder, FOLDER/<name>.json; its fields are described in the data card of models/default.
CPU, eager attention, 2 threads.  f32 = the checkpoint's weights widened to f32
and every operation in f32; bf16 = transformers' own bf16 arithmetic on the CPU.
"""
import argparse
import hashlib
import json
import math
import os
import platform
import sys
import time
import warnings

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

N_NEW = 64
TIE = 1e-3
COMPUTE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


# -------------------------------------------------------------------- model
@torch.no_grad()
def greedy(model, ids, n_new):
    """-> (all ids, first eos index or None, logits [n_new, vocab] f32);
    KV cache, does not stop at EOS"""
    out, logits = list(ids), []
    r = model(input_ids=torch.tensor([ids]), use_cache=True)
    for i in range(n_new):
        lg = r.logits[0, -1].float()
        logits.append(lg)
        out.append(int(lg.argmax()))
        if i + 1 < n_new:
            r = model(input_ids=torch.tensor([[out[-1]]]), use_cache=True,
                      past_key_values=r.past_key_values)
    return out, None, torch.stack(logits)


@torch.no_grad()
def full(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def f(x, digits=7):
    """short decimals: %.7g is within 1 ulp of the f32"""
    if isinstance(x, torch.Tensor):
        x = x.tolist()
    if isinstance(x, list):
        return [f(v, digits) for v in x]
    return float("%.*g" % (digits, x))


def nll(logits, ids):
    """-log p(ids[i+1] | ids[..i]) for every i, in f64 from f32 logits"""
    lp = torch.log_softmax(logits[:-1].double(), -1)
    return -lp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def one_prompt(model, label, ids, n_new, eos, full_final, text=None):
    seq, _, lg = greedy(model, ids, n_new)
    gen = seq[len(ids):]
    tf = full(model, seq[:-1])              # positions that predict seq[1:]
    same = tf[len(ids) - 1:]
    top_ids, top_vals = top2(lg)
    margin = top_vals[:, 0] - top_vals[:, 1]
    near = torch.nonzero(margin < TIE).flatten().tolist()
    fin = lg[-1]
    k = torch.topk(fin, 32)
    d = {"label": label, "prompt_ids": list(ids), "generated_ids": gen,
         "eos_at": next((i for i, t in enumerate(gen) if t in eos), None),
         "top2_ids": top_ids.tolist(), "top2_logits": f(top_vals),
         "margin": f(margin), "min_margin": f(float(margin.min())),
         "near_ties": near,
         "final_logits_top32": {"ids": k.indices.tolist(), "logits": f(k.values)},
         "final_logits_stats": stats(fin),
         "teacher_forced": {
             "argmax": tf.argmax(-1).tolist(),
             "max_logit": f(tf.max(-1).values),
             "logsumexp": f(torch.logsumexp(tf.double(), -1)),
             "nll_of_next": f(nll(torch.cat([tf, tf[-1:]]), seq)),
             "stats": stats(tf),
             "sha256_f32le": sha(tf),
             "max_abs_diff_cached_vs_full": f(float((same - lg).abs().max())),
             "argmax_differs_from_cached_at": torch.nonzero(
                 same.argmax(-1) != top_ids[:, 0]).flatten().tolist()}}
    assert gen == top_ids[:, 0].tolist()
    if full_final:
        d["final_logits"] = f(fin)
    if text is not None:
        d["text"] = text
    return d


def top2(lg):
    """ids and logits of the two best; a tie goes to the lower id, as in argmax"""
    first = lg.argmax(-1, keepdim=True)
    second = lg.scatter(-1, first, float("-inf")).argmax(-1, keepdim=True)
    ids = torch.cat([first, second], -1)
    return ids, lg.gather(-1, ids)


def stats(x):
    x = x.double()
    return {"mean": f(float(x.mean())), "std": f(float(x.std(correction=0))),
            "l2": f(float(x.norm())), "max": f(float(x.max())),
            "min": f(float(x.min()))}


def sha(x):
    return hashlib.sha256(
        np.ascontiguousarray(x.numpy().astype("<f4")).tobytes()).hexdigest()


def sha_file(p):
    h = hashlib.sha256()
    with open(p, "rb") as fh:
        for b in iter(lambda: fh.read(1 << 20), b""):
            h.update(b)
    return h.hexdigest()


def load(path, compute):
    m = AutoModelForCausalLM.from_pretrained(
        path, dtype=COMPUTE[compute], attn_implementation="eager")
    return m.eval()


def prompts_for(path, ps):
    """-> [(label, ids, text)], (text label, ids, text); a prompt is a text, or a list of ids taken as they are"""
    tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    hf = AutoTokenizer.from_pretrained(path)
    out = []
    for label, p in ps["texts"].items():
        if isinstance(p, list):
            out.append((label, p, None))
            continue
        ids = tok.encode(p).ids
        assert ids == hf(p)["input_ids"], label
        out.append((label, ids, p))
    label, text = ps["perplexity"]
    return out, (label, tok.encode(text).ids, text)


def golden(path, ps, computes, n_new, drop_below):
    name = os.path.basename(os.path.normpath(path))
    f32_tf, dropped = {}, set()
    doc = {"schema": 1, "checkpoint": name, "prompts": ps["name"],
           "n_new": n_new, "near_tie_threshold": TIE,
           "files_sha256": {n: sha_file(os.path.join(path, n))
                            for n in sorted(os.listdir(path))
                            if n.endswith((".json", ".safetensors"))},
           "versions": {"torch": torch.__version__,
                        "transformers": transformers.__version__,
                        "numpy": np.__version__,
                        "python": platform.python_version(),
                        "device": "cpu", "threads": torch.get_num_threads(),
                        "attention": "eager"},
           "runs": {}}
    for c in computes:
        model = load(path, c)
        config = model.config
        eos = config.eos_token_id
        eos = set(eos if isinstance(eos, list) else [eos])
        prompts, (tl, tids, ttext) = prompts_for(path, ps)
        run = {"prompts": []}
        for i, (label, ids, text) in enumerate(prompts):
            if label in dropped:
                continue
            t = time.time()
            d = one_prompt(model, label, ids, n_new, eos,
                           c == "f32" or i == 0, text)
            if c == "f32" and d["min_margin"] < drop_below:
                sys.stderr.write("%s %s: left out, min margin %.4g\n" % (name, label, d["min_margin"]))
                dropped.add(label)
                continue
            if c == "f32":
                seq = list(ids) + d["generated_ids"][:-1]
                f32_tf[label] = seq, full(model, seq)[len(ids) - 1:]
            elif label in f32_tf:
                seq, a = f32_tf[label]
                b = full(model, seq)[len(ids) - 1:]
                off = torch.nonzero(a.argmax(-1) != b.argmax(-1)).flatten()
                ma = top2(a)[1]
                d["along_f32_path"] = {
                    "steps": len(a), "argmax_differs_at": off.tolist(),
                    "f32_margin_there": f((ma[:, 0] - ma[:, 1])[off]),
                    "max_abs_dlogit": f(float((a - b).abs().max())),
                    "rms_dlogit": f(float((a - b).pow(2).mean().sqrt()))}
            run["prompts"].append(d)
            sys.stderr.write("%s %s %s: min margin %.4g, distinct %d, tf diff %.2g, "
                             "%.1f s\n" % (name, c, label, d["min_margin"],
                                           len(set(d["generated_ids"])),
                                           d["teacher_forced"]["max_abs_diff_cached_vs_full"],
                                           time.time() - t))
        x = nll(full(model, tids), tids)
        run["perplexity"] = {"label": tl, "ids": tids, "n_predicted": len(tids) - 1,
                             "nll_sum": f(float(x.sum()), 9),
                             "perplexity": f(math.exp(float(x.mean())), 9)}
        if ttext is not None:
            run["perplexity"]["text"] = ttext
        doc["runs"][c] = run
    if "f32" in doc["runs"]:
        for c, run in doc["runs"].items():
            if c == "f32":
                continue
            for a, b in zip(doc["runs"]["f32"]["prompts"], run["prompts"]):
                b["first_difference_from_f32"] = next(
                    (i for i, (x, y) in enumerate(zip(a["generated_ids"],
                                                      b["generated_ids"]))
                     if x != y), None)
    return name, doc


def dump(path, doc):
    s = json.dumps(doc, ensure_ascii=False, separators=(",", ":"))
    with open(path, "w", encoding="utf-8") as fh:
        fh.write(s + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("ckpt", nargs="+")
    ap.add_argument("--out", required=True)
    ap.add_argument("--prompt-file", required=True, help='JSON: {"name", "texts": {label: text or ids}, "perplexity": [label, text]}')
    ap.add_argument("--compute", default="f32", help="comma-separated: f32 (first), bf16, f16")
    ap.add_argument("--tokens", type=int, default=N_NEW)
    ap.add_argument("--drop-below", type=float, default=0.0,
                    help="leave out a prompt whose f32 run has a step with a smaller top-2 margin")
    ap.add_argument("--suffix", default="")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with open(args.prompt_file, encoding="utf-8") as fh:
        ps = json.load(fh)
    os.makedirs(args.out, exist_ok=True)
    for p in args.ckpt:
        name, doc = golden(p, ps, args.compute.split(","), args.tokens, args.drop_below)
        dump(os.path.join(args.out, name + args.suffix + ".json"), doc)


if __name__ == "__main__":
    main()
