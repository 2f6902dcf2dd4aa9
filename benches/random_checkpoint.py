#!/usr/bin/env python3
"""A checkpoint of a given shape with random weights, and what transformers says of it.

    python3 random_checkpoint.py CONFIG.json OUT_DIR [--seed 0]      writes OUT_DIR in HuggingFace layout
    python3 random_checkpoint.py --logits DIR IDS OUT.f32            float32 logits after the ids (GPU if there is one)

Needs torch, transformers and safetensors.
"""
import json
import os
import shutil
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def make(config, out, seed):
    os.makedirs(out, exist_ok=True)
    c = json.load(open(config))
    c["torch_dtype"] = "bfloat16"
    json.dump(c, open(os.path.join(out, "config.json"), "w"))
    torch.manual_seed(seed)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(dev):
        m = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out), dtype=torch.bfloat16)
    for name, p in m.named_parameters():
        with torch.no_grad():
            if p.dim() == 1:
                p.copy_(1 + 0.1 * torch.randn(p.shape, device=p.device))
            else:
                p.copy_(torch.randn(p.shape, device=p.device) * p.shape[1] ** -0.5)
    m.save_pretrained(out, max_shard_size="100GB")
    json.dump(c, open(os.path.join(out, "config.json"), "w"))


def logits(folder, ids, out):
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").to(dev).eval()
    with torch.no_grad():
        x = m(torch.tensor([ids], device=dev)).logits[0, -1].float().cpu()
    open(out, "wb").write(x.numpy().tobytes())
    print(json.dumps({"argmax": int(x.argmax()), "top2": x.topk(2).values.tolist()}))


if sys.argv[1] == "--logits":
    logits(sys.argv[2], [int(x) for x in sys.argv[3].split(",")], sys.argv[4])
else:
    make(sys.argv[1], sys.argv[2], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
