#!/usr/bin/env python3
"""Write a small GGUF file with the `gguf` package, and what that package and transformers make of it.

    python3 make_gguf.py --out ../tests/checkpoints/gguf --golden ../tests/goldens/hf/gguf.json
    python3 make_gguf.py --tokenizers ../tests/goldens/hf/gguf CHECKPOINT...

One tensor of each supported type; K-quants, which the package reads but does not write, are made of random blocks with
small scales. The golden has samples of every tensor as the package dequantises it, and greedy tokens and logits of
transformers' own GGUF loading (float32, eager attention). Needs torch, transformers and gguf.

The second form writes GGUF files of tokenizers alone, NAME.gguf, from the tokenizer.json of checkpoints; their goldens
are the ids of tests/goldens/hf/tokenizers.json. It says for how many of those texts transformers' own GGUF reader gives
the same ids: it knows neither NFC for Qwen 2 nor the space that Llama 2 puts before a text that begins with one. Needs
transformers and gguf.
"""
import argparse, json, os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

H, FF, HEADS, KV, V, LAYERS = 256, 256, 4, 2, 96, 1
SPM = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]


def blocks(rng, kind, rows, cols):
    """random blocks of a K-quant"""
    n = rows * cols // 256
    if kind == Q.Q4_K:
        raw = rng.integers(0, 256, (n, 144), dtype=np.uint8)
        raw[:, 0:2] = np.array([0.0006], dtype=np.float16).view(np.uint8)
        raw[:, 2:4] = np.array([0.004], dtype=np.float16).view(np.uint8)
    else:
        raw = rng.integers(0, 256, (n, 210), dtype=np.uint8)
        raw[:, 208:210] = np.array([0.00003], dtype=np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def write_tokenizer(folder, path):
    """metadata of a checkpoint's tokenizer, as converters write them"""
    t = json.load(open(os.path.join(folder, "tokenizer.json")))
    config = json.load(open(os.path.join(folder, "tokenizer_config.json")))
    model, added = t["model"], {a["id"]: a for a in t["added_tokens"]}
    spm = model["byte_fallback"]
    names = {i: name for name, i in model["vocab"].items()} | {i: a["content"] for i, a in added.items()}
    size = json.load(open(os.path.join(folder, "config.json")))["vocab_size"]
    merges = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    rank = {}
    for r, (left, right) in enumerate(merges):
        rank.setdefault(left + right, r)
    tokens, scores, types = [], [], []
    for i in range(size):
        name = names.get(i, f"[PAD{i}]")
        tokens.append(name)
        scores.append(-float(rank.get(name, len(merges) + i)))
        byte = spm and len(name) == 6 and name.startswith("<0x")
        control = 3 if i in added and added[i]["special"] else 4 if i in added else None
        unknown = 2 if spm and name == model["unk_token"] else None
        types.append(unknown or control or (6 if byte else 1 if i in names else 5))
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama" if spm else "gpt2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    if spm:
        w.add_token_scores(scores)
    else:
        digits = any(p["type"] == "Digits" for p in t["pre_tokenizer"]["pretokenizers"])
        w.add_tokenizer_pre("smollm" if digits else "qwen2" if t["normalizer"] else "llama-bpe")
        w.add_token_merges([" ".join(m) for m in merges])
    for role, add in [("bos_token", w.add_bos_token_id), ("eos_token", w.add_eos_token_id), ("unk_token", w.add_unk_token_id)]:
        text = config.get(role)
        text = text["content"] if isinstance(text, dict) else text
        if text is not None:
            add(tokens.index(text))
    post = json.dumps(t["post_processor"])
    w.add_add_bos_token("SpecialToken" in post)
    if "chat_template" in config:
        w.add_chat_template(config["chat_template"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def tokenizers(out, checkpoints):
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer
    os.makedirs(out, exist_ok=True)
    here = os.path.dirname(os.path.abspath(__file__))
    texts = json.load(open(os.path.join(here, "../tests/goldens/hf/tokenizers.json")))["tokenizers"]
    for folder in checkpoints:
        name = os.path.basename(os.path.normpath(folder))
        path = os.path.join(out, name + ".gguf")
        write_tokenizer(folder, path)
        fields = gguf.GGUFReader(path).fields
        renames = GGUF_TOKENIZER_MAPPING["tokenizer"]
        parts = {to: fields["tokenizer." + key].contents() for key, to in renames.items() if "tokenizer." + key in fields}
        tokenizer, _ = convert_gguf_tokenizer("llama", parts)
        cases = texts[name]["cases"]
        same = sum(tokenizer.encode(c["text"], add_special_tokens=False).ids == c["ids_no_special"] for c in cases)
        print(name, len(cases), "texts,", same, "as the checkpoint's tokenizer.json")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out")
    a.add_argument("--golden")
    a.add_argument("--tokenizers", metavar="DIR")
    a.add_argument("checkpoints", nargs="*")
    o = a.parse_args()
    if o.tokenizers:
        return tokenizers(o.tokenizers, o.checkpoints)
    import torch
    from transformers import AutoModelForCausalLM
    os.makedirs(o.out, exist_ok=True)
    path = os.path.join(o.out, "mixed.gguf")
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("mixed")
    w.add_context_length(128)
    w.add_embedding_length(H)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(H // HEADS)
    w.add_vocab_size(V)
    pieces = ["▁", "t", "h", "e", "r", "i", "v", "▁t", "he", "▁the", "er", "ri", "ver", "▁r", "▁river", "in", "an", "a", "n", "d"]
    tokens = SPM + [(p, -float(i), 1) for i, p in enumerate(pieces)]
    tokens += [("<0x%02X>" % b, 0.0, 6) for b in range(V - len(tokens))]
    w.add_tokenizer_model("llama")
    w.add_token_list([t for t, _, _ in tokens])
    w.add_token_scores([s for _, s, _ in tokens])
    w.add_token_types([k for _, _, k in tokens])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    rng = np.random.default_rng(7)
    normal = lambda rows, cols, s: (rng.standard_normal((rows, cols)) * s).astype(np.float32)
    done = {}

    def put(name, data, kind):
        if kind in (Q.Q4_K, Q.Q6_K):
            raw = blocks(rng, kind, *data)
        elif kind == Q.F32:
            raw = data
        elif kind == Q.F16:
            raw = data.astype(np.float16)
        else:
            raw = gguf.quants.quantize(data, kind)
        w.add_tensor(name, raw, raw_dtype=kind)
        values = gguf.quants.dequantize(raw, kind).astype(np.float32)
        flat = values.reshape(-1)
        at = [int(i) for i in np.linspace(0, flat.size - 1, 50)]
        done[name] = {"type": kind.name, "shape": list(values.shape), "sum": float(flat.astype(np.float64).sum()), "at": at,
                      "bits": flat[at].view(np.int32).tolist()}

    put("token_embd.weight", normal(V, H, 1.0), Q.Q8_0)
    put("output_norm.weight", (1 + 0.2 * rng.standard_normal(H)).astype(np.float32), Q.F32)
    put("output.weight", normal(V, H, 4 * H ** -0.5), Q.BF16)
    q = dict(zip(["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"],
                 [Q.Q4_0, Q.Q4_1, Q.F16, Q.Q4_K, Q.Q6_K, Q.Q8_0, Q.Q4_0]))
    rows = dict(attn_q=H, attn_k=H * KV // HEADS, attn_v=H * KV // HEADS, attn_output=H, ffn_gate=FF, ffn_up=FF, ffn_down=H)
    for l in range(LAYERS):
        put(f"blk.{l}.attn_norm.weight", (1 + 0.2 * rng.standard_normal(H)).astype(np.float32), Q.F32)
        put(f"blk.{l}.ffn_norm.weight", (1 + 0.2 * rng.standard_normal(H)).astype(np.float32), Q.F32)
        for part, kind in q.items():
            data = (rows[part], H) if kind in (Q.Q4_K, Q.Q6_K) else normal(rows[part], H, 1.6 * H ** -0.5)
            put(f"blk.{l}.{part}.weight", data, kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model = AutoModelForCausalLM.from_pretrained(o.out, gguf_file="mixed.gguf", dtype=torch.float32, attn_implementation="eager").eval()
    ids, out, best = [1, 12, 17, 9, 30, 55, 71, 6], [], []
    seq = list(ids)
    with torch.no_grad():
        for _ in range(12):
            logits = model(input_ids=torch.tensor([seq]), use_cache=False).logits[0, -1]
            top = torch.topk(logits, 2).values
            best.append(float(top[0]))
            seq.append(int(logits.argmax()))
            out.append(float(top[0] - top[1]))
    print(os.path.getsize(path), seq[len(ids):], "margin", min(out))
    json.dump({"schema": 1, "versions": {"transformers": __import__("transformers").__version__, "gguf": __import__("importlib.metadata").metadata.version("gguf")},
               "tensors": done, "prompt_ids": ids, "generated_ids": seq[len(ids):], "best_logits": best}, open(o.golden, "w"), separators=(",", ":"))


if __name__ == "__main__":
    main()
