#!/usr/bin/env python3
"""Golden greedy outputs of HuggingFace transformers for one or more checkpoints.

    python3 make_golden.py --out FOLDER CKPT_DIR [CKPT_DIR ...]
                           [--compute f32,bf16] [--tokens 64] [--prompt-file F]

One JSON file per checkpoint folder, FOLDER/<name>.json.  Format: tests/goldens/hf/README.md.
CPU, eager attention, 2 threads.  f32 = the checkpoint's weights widened to f32
and every operation in f32; bf16 = transformers' own bf16 arithmetic on the CPU.
Needs torch, transformers, tokenizers, numpy.
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
import zlib

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

N_NEW = 64
TEXT = False                    # set by --text
TIE = 1e-3
COMPUTE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


# ------------------------------------------------------------------ prompts
def splitmix_ids(key, n, lo, hi):
    m, out, z0 = (1 << 64) - 1, [], key
    for _ in range(n):
        z0 = (z0 + 0x9E3779B97F4A7C15) & m
        z = z0
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
        z ^= z >> 31
        out.append(lo + z % (hi - lo))
    return out


def tiny_prompts(name, vocab, ps):
    """[(label, ids)]: random ids, lengths on both sides of the small windows"""
    return [("random-%d" % n,
             splitmix_ids(zlib.crc32(("%s/%s/%d" % (name, ps["salt"], n)).encode()),
                          n, 3, vocab)) for n in ps["lens"]]


def tiny_text(name, vocab, ps):
    return splitmix_ids(zlib.crc32(("%s/%s/text" % (name, ps["salt"])).encode()),
                        128, 3, vocab)


ALICE = (  # Carroll, 1865, public domain
    "Alice was beginning to get very tired of sitting by her sister on the bank, "
    "and of having nothing to do: once or twice she had peeped into the book her "
    "sister was reading, but it had no pictures or conversations in it, \"and what "
    "is the use of a book,\" thought Alice \"without pictures or conversations?\" "
    "So she was considering in her own mind (as well as she could, for the hot day "
    "made her feel very sleepy and stupid), whether the pleasure of making a "
    "daisy-chain would be worth the trouble of getting up and picking the daisies, "
    "when suddenly a White Rabbit with pink eyes ran close by her. There was "
    "nothing so very remarkable in that; nor did Alice think it so very much out of "
    "the way to hear the Rabbit say to itself, \"Oh dear! Oh dear! I shall be "
    "late!\"")
# A prompt set: salt and lengths for the random-id prompts of the tiny
# checkpoints; for SmolLM2 label -> text, list of chat messages or list of ids,
# and the text whose perplexity is measured.  --prompt-file reads another one.
SHARED_PROMPTS = {
    "name": "shared", "salt": "shared", "lens": [1, 5, 17, 48],
    "texts": {
        "chat-capital": [{"role": "user",
                          "content": "What is the capital of France?"}],
        "chat-list": [{"role": "user", "content": "Name three colours and say "
                       "where one sees each of them in nature."}],
        "story": "Once upon a time, there was",
        "fact": "The planets of the solar system, in order from the Sun, are",
        "code": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci "
                "number.\"\"\"\n",
        "digits": "1 2 3 4 5 6 7 8 9 10 11 12",
        "long": ALICE + "\n\n",
        "one-token": [1],
    },
    "perplexity": ["alice", ALICE],
}


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


def prompts_for(path, name, config, ps):
    """-> [(label, ids, text)], (text label, ids, text)"""
    if not TEXT and not name.startswith("SmolLM2"):
        v = config.vocab_size
        return ([(a, b, None) for a, b in tiny_prompts(name, v, ps)],
                ("random-128", tiny_text(name, v, ps), None))
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer
    tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    hf = AutoTokenizer.from_pretrained(path)
    out = []
    for label, p in ps["texts"].items():
        if isinstance(p, list) and isinstance(p[0], int):
            out.append((label, p, None))
            continue
        if isinstance(p, list) and not hf.chat_template:
            continue
        if isinstance(p, list):
            p = hf.apply_chat_template(p, add_generation_prompt=True, tokenize=False)
        ids = tok.encode(p).ids
        assert ids == hf(p)["input_ids"], label
        out.append((label, ids, p))
    label, text = ps["perplexity"]
    return out, (label, tok.encode(text).ids, text)


def golden(path, ps, computes, n_new):
    name = os.path.basename(os.path.normpath(path))
    f32_tf = {}
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
        small = config.vocab_size <= 2048
        prompts, (tl, tids, ttext) = prompts_for(path, name, config, ps)
        run = {"prompts": []}
        for i, (label, ids, text) in enumerate(prompts):
            t = time.time()
            d = one_prompt(model, label, ids, n_new, eos,
                           small or (c == "f32" and i == 0), text)
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
    ap.add_argument("--prompt-file", help="JSON like SHARED_PROMPTS")
    ap.add_argument("--compute", default="f32")
    ap.add_argument("--tokens", type=int, default=N_NEW)
    ap.add_argument("--text", action="store_true", help="text prompts through the checkpoint's own tokenizer, not random ids")
    ap.add_argument("--suffix", default="")
    args = ap.parse_args()
    global TEXT
    TEXT = args.text
    torch.set_num_threads(2)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ps = SHARED_PROMPTS
    if args.prompt_file:
        with open(args.prompt_file, encoding="utf-8") as fh:
            ps = json.load(fh)
    os.makedirs(args.out, exist_ok=True)
    for p in args.ckpt:
        name, doc = golden(p, ps, args.compute.split(","), args.tokens)
        dump(os.path.join(args.out, name + args.suffix + ".json"), doc)


if __name__ == "__main__":
    main()
