#!/usr/bin/env python3
"""Per-layer hidden states of HF transformers, float32, CPU, eager attention, for layer-by-layer checks.

    python3 make_hidden.py --out FOLDER --golden FOLDER CKPT_DIR [CKPT_DIR ...]

For each checkpoint, the longest prompt of its golden file is run uncached; FOLDER/<name>.json gets, for the last
position: `layers`, a list of vectors (the embedding output, then the residual stream after each decoder layer; the last
entry is after the final norm, as `output_hidden_states` gives it), and `prompt_ids`. Values are float32, printed with 9 digits.
"""
import argparse
import json
import os

import torch
import transformers
from transformers import AutoModelForCausalLM


def hidden(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        states = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    return [[float("%.9g" % v) for v in t[0, -1].tolist()] for t in states]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", required=True)
    ap.add_argument("--golden", required=True)
    ap.add_argument("ckpt", nargs="+")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for path in a.ckpt:
        name = os.path.basename(os.path.normpath(path))
        with open(os.path.join(a.golden, name + ".json"), encoding="utf-8") as fh:
            doc = json.load(fh)
        ids = max((p["prompt_ids"] for p in doc["runs"]["f32"]["prompts"]), key=len)
        layers = hidden(path, ids)
        with open(os.path.join(a.out, name + ".json"), "w", encoding="utf-8") as fh:
            json.dump({"schema": 1, "checkpoint": name, "prompt_ids": ids, "layers": layers,
                       "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}, fh,
                      separators=(",", ":"))
            fh.write("\n")
        print(name, len(layers), "vectors of", len(layers[0]))


if __name__ == "__main__":
    main()
