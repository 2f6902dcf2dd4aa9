#!/usr/bin/env python3
"""Trains the default checkpoint and writes it in HuggingFace format.

    python3 train.py --text TEXT_FILE --tokenizer FOLDER --out FOLDER --report FILE [--steps N] ...

FOLDER of --tokenizer is what train_tokenizer.py wrote. --out receives config.json, generation_config.json,
model.safetensors (bf16) and the tokenizer files; --report what was run and the losses. All are rewritten whenever the
held-out loss improves, so an interrupted run leaves a whole checkpoint.

Batches are windows of the training chapters that begin at a random verse; the first token of each window is the
begin-of-text token, so a prompt may begin with any verse. The learning rate warms up linearly and falls on a cosine
over --steps, or over --minutes where those end first. Weights, optimiser state and norms are f32; products run under
bf16 autocast. Held-out loss is measured in f32 on the weights as rounded to bf16, which is what is shipped.
"""
import argparse
import json
import math
import os
import shutil
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import corpus

BOS, EOS = 0, 1


def arguments():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--text", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--report", required=True)
    ap.add_argument("--seed", type=int, default=1611)
    ap.add_argument("--steps", type=int, default=1200)
    ap.add_argument("--minutes", type=float, default=1e9, help="end the schedule early rather than run longer")
    ap.add_argument("--batch", type=int, default=64, help="windows a step")
    ap.add_argument("--context", type=int, default=512, help="tokens a window")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--final-lr", type=float, default=0.02, help="as a fraction of --lr")
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--weight-decay", type=float, default=1.0)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--eval-every", type=int, default=100)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--intermediate", type=int, default=320)
    ap.add_argument("--layers", type=int, default=5)
    ap.add_argument("--heads", type=int, default=8)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return ap.parse_args()


def config_json(a, vocab):
    """config.json in the field names that transformers 4 and 5 both read."""
    return {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": BOS, "eos_token_id": EOS, "head_dim": a.hidden // a.heads, "hidden_act": "silu",
            "hidden_size": a.hidden, "initializer_range": 0.04, "intermediate_size": a.intermediate,
            "max_position_embeddings": a.context, "mlp_bias": False, "model_type": "llama",
            "num_attention_heads": a.heads, "num_hidden_layers": a.layers, "num_key_value_heads": a.kv_heads,
            "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": vocab}


def build(a, cfg):
    skip = {"architectures", "torch_dtype", "model_type", "pretraining_tp"}
    torch.manual_seed(a.seed)
    model = LlamaForCausalLM(LlamaConfig(attn_implementation="sdpa", **{k: v for k, v in cfg.items() if k not in skip}))
    with torch.no_grad():       # what writes to the residual stream starts smaller, as in GPT-2
        for name, p in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(1.0 / math.sqrt(2 * a.layers))
    return model.float().to(a.device)


def encode(tok, chapters):
    """-> (token stream [N], begin of every verse in it, bytes of text); each chapter is BOS, verses, EOS."""
    stream, starts, size = [], [], 0
    for chapter in chapters:
        stream.append(BOS)
        for verse in chapter:
            starts.append(len(stream))
            stream += tok.encode(verse + "\n", add_special_tokens=False).ids
            size += len(verse) + 1
        stream.append(EOS)
    return torch.tensor(stream), torch.tensor(starts), size


def held_out_rows(stream, context):
    """Inputs [rows, context] and targets (-100: not counted) that cover every token of the stream but its first once."""
    n = -(-(len(stream) - 1) // context) * context
    x = torch.full((n,), EOS)
    y = torch.full((n,), -100)
    x[:len(stream) - 1] = stream[:-1]
    y[:len(stream) - 1] = stream[1:]
    y[y == BOS] = -100          # EOS then BOS is where chapters meet, not something to predict
    return x.view(-1, context), y.view(-1, context)


def rounded(model):
    """The weights as shipped: bf16, without the tied LM head."""
    return {n: p.detach().to(torch.bfloat16).cpu().contiguous().clone()
            for n, p in sorted(model.named_parameters()) if n != "lm_head.weight"}


@torch.no_grad()
def evaluate(model, weights, x, y):
    """Sum of -ln p over the targets, and their number, in f32 with the given weights in place of the model's."""
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    total, count = 0.0, 0
    for n, p in model.named_parameters():
        if n in weights:
            p.copy_(weights[n].to(p.device).float())
    for i in range(0, len(x), 32):
        logits = model(input_ids=x[i:i + 32], use_cache=False).logits.float()
        total += float(F.cross_entropy(logits.flatten(0, 1), y[i:i + 32].flatten(), ignore_index=-100, reduction="sum"))
        count += int((y[i:i + 32] != -100).sum())
    for n, p in model.named_parameters():
        p.copy_(kept[n])
    torch.set_float32_matmul_precision(precision)
    return total, count


def save_json(path, doc):
    with open(path + ".tmp", "w", encoding="utf-8") as fh:
        json.dump(doc, fh, indent=2)
        fh.write("\n")
    os.replace(path + ".tmp", path)


def save(a, cfg, weights, report):
    os.makedirs(a.out, exist_ok=True)
    path = os.path.join(a.out, "model.safetensors")
    save_file(weights, path + ".tmp", metadata={"format": "pt"})
    os.replace(path + ".tmp", path)
    save_json(os.path.join(a.out, "config.json"), cfg)
    save_json(os.path.join(a.out, "generation_config.json"), {"bos_token_id": BOS, "do_sample": False, "eos_token_id": EOS})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(a.tokenizer, name), os.path.join(a.out, name))
    save_json(a.report, report)


def main():
    a = arguments()
    torch.set_float32_matmul_precision("high")
    tok = Tokenizer.from_file(os.path.join(a.tokenizer, "tokenizer.json"))
    training, held = corpus.split(corpus.chapters(a.text))
    stream, starts, _ = encode(tok, training)
    held_stream, _, held_bytes = encode(tok, held)
    stream, starts = stream.to(a.device), starts.to(a.device)
    hx, hy = (t.to(a.device) for t in held_out_rows(held_stream, a.context))
    cfg = config_json(a, tok.get_vocab_size())
    model = build(a, cfg)
    params = sum(p.numel() for p in model.parameters())
    print("%d parameters, %d training tokens, %d held-out tokens, %s"
          % (params, len(stream), int((hy != -100).sum()), a.device), flush=True)

    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": a.weight_decay}, {"params": plain, "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=a.device.startswith("cuda"))
    draw = torch.Generator().manual_seed(a.seed)    # on the CPU: the same batches on any device
    offsets = torch.arange(a.context, device=a.device)
    first = torch.full((a.batch, 1), BOS, device=a.device)
    best, history, begun, done, step, running = math.inf, [], time.time(), 0.0, 0, None
    model.train()
    while done < 1.0:
        done = min(1.0, max((step + 1) / a.steps, (time.time() - begun) / (60 * a.minutes)))
        lr = a.lr * min(1.0, (step + 1) / a.warmup) * (a.final_lr + (1 - a.final_lr) * 0.5 * (1 + math.cos(math.pi * done)))
        for g in opt.param_groups:
            g["lr"] = lr
        at = starts[torch.randint(len(starts), (a.batch,), generator=draw).to(a.device)]
        y = stream[(at[:, None] + offsets) % len(stream)]
        x = torch.cat([first, y[:, :-1]], 1)
        y = y.masked_fill(y == BOS, -100)
        with torch.autocast(a.device.split(":")[0], dtype=torch.bfloat16):
            logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), ignore_index=-100)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        opt.step()
        step += 1
        running = loss.detach() if running is None else 0.98 * running + 0.02 * loss.detach()
        if step % a.eval_every and done < 1.0:
            continue
        weights = rounded(model)
        model.eval()
        total, count = evaluate(model, weights, hx, hy)
        model.train()
        entry = {"step": step, "lr": lr, "train_loss": float(running), "held_out_loss": total / count,
                 "held_out_bits_per_byte": total / math.log(2) / held_bytes, "seconds": round(time.time() - begun, 1)}
        history.append(entry)
        print(json.dumps(entry), flush=True)
        if total / count < best:
            best = total / count
            save(a, cfg, weights, {
                "parameters": params, "training_tokens": len(stream), "held_out_tokens": count, "held_out_bytes": held_bytes,
                "step": step, "train_loss": entry["train_loss"], "held_out_loss": best,
                "held_out_bits_per_byte": entry["held_out_bits_per_byte"],
                "arguments": {k: v for k, v in vars(a).items() if k not in ("text", "tokenizer", "out", "report")},
                "torch": torch.__version__, "history": history})
    print("best held-out loss %.4f after %.1f s" % (best, time.time() - begun), flush=True)


if __name__ == "__main__":
    main()
