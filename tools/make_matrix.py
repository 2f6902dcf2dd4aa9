#!/usr/bin/env python3
"""Write the goldens of the matrix of generated configurations: every family x tied x grouped heads x odd sizes x shards.

    python3 make_matrix.py --out ../tests/goldens/hf/matrix.json

Needs torch and transformers (requirements-golden.txt). The weights are not stored: each is offset + scale * noise, where
noise comes from SplitMix64 over (seed, crc32 of the tensor's name, index); offset and scale per kind of tensor are in
the file. The test makes the same bits without any of these libraries. CPU, eager attention, float32 arithmetic. Tokens
come from uncached passes, except where frequencies follow the length of the sequence (dynamic rope): there the cached
pass is what `generate` computes.
"""
import argparse, json, os, tempfile, zlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

MARGIN, N_NEW = 2e-3, 10


def splitmix(key, n):
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0 ** -53


def noise(seed, name, n):
    """near-normal, unit variance: the sum of four uniforms, in this order"""
    u = splitmix(((seed & 0xFFFFFFFF) << 32) | zlib.crc32(name.encode()), 4 * n).reshape(n, 4)
    return (((u[:, 0] + u[:, 1]) + u[:, 2]) + u[:, 3] - 2.0) * 1.7320508075688772


def kind(name):
    """the tensor's name without its layer"""
    part = name.split(".")
    return ".".join(p for p in part if not p.isdigit())


def scale(cfg, name, shape):
    """(offset, scale), so that no activation dies or explodes"""
    h, gemma = cfg["hidden_size"], cfg["model_type"].startswith("gemma")
    tied = cfg.get("tie_word_embeddings", False)
    last = name.split(".")[-2]
    if name.endswith("norm.weight"):
        centre = {"q_norm": 1.4, "k_norm": 1.4}.get(last, 1.0)
        if "post_" in last and cfg["model_type"] in ("gemma2", "gemma3_text", "olmo2"):
            centre = 4.0 if tied else 2.0
        if name == "model.norm.weight" and tied:
            centre = 4.0 / h ** 0.5 if gemma else 4.0 * cfg.get("logits_scaling", 1) / h ** 0.5 * cfg.get("embedding_multiplier", 1)
            if gemma:
                centre = 4.0
        return (centre - 1.0 if gemma else centre), 0.2 * centre
    if last == "embed_tokens":
        return 0.0, h ** -0.5 if gemma else 1.0 / cfg.get("embedding_multiplier", 1)
    if last == "lm_head":
        return 0.0, 4.0 * cfg.get("logits_scaling", 1) * h ** -0.5
    if name.endswith("bias"):
        return 0.0, 0.3
    gain = {"q_proj": 1.5, "k_proj": 1.5, "v_proj": 1.3, "qkv_proj": 1.4, "gate_proj": 1.3, "up_proj": 1.3,
            "gate_up_proj": 1.3, "o_proj": 4.0, "down_proj": 3.0}[last]
    if last in ("o_proj", "down_proj"):
        gain /= cfg.get("residual_multiplier", 1)
    if last == "q_proj" and "attention_multiplier" in cfg:
        gain /= cfg["attention_multiplier"] * (h // cfg["num_attention_heads"]) ** 0.5
    return 0.0, gain * shape[1] ** -0.5


def base(arch, model_type, **kw):
    c = dict(architectures=[arch], model_type=model_type, hidden_act="silu", max_position_embeddings=64,
             rms_norm_eps=1e-5, rope_theta=10000.0, bos_token_id=1, eos_token_id=2, pad_token_id=0, num_hidden_layers=3)
    c.update(kw)
    return c


# (heads, kv heads, hidden, head width or None, MLP width, vocabulary): grouped by 1, 4 and 8, no multiple of a tile
SIZES = [(8, 8, 48, None, 52, 131), (8, 2, 80, None, 75, 257), (8, 1, 56, 10, 92, 300)]

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
SHORT = [1.0, 1.1, 1.3, 1.6, 2.0, 2.2, 2.5, 3.0]
LONG = [1.0, 1.5, 2.2, 3.1, 4.0, 5.5, 7.0, 9.0]

FAMILIES = {
    "llama": lambda i: base("LlamaForCausalLM", "llama", rope_scaling=[None, LLAMA3, dict(type="linear", factor=2.5)][i],
                            mlp_bias=i == 2, attention_bias=i == 1),
    "mistral": lambda i: base("MistralForCausalLM", "mistral", sliding_window=[None, 7, 5][i]),
    "ministral": lambda i: base("MinistralForCausalLM", "ministral", sliding_window=6,
                                layer_types=[["sliding_attention", "full_attention", "sliding_attention"], ["full_attention"] * 3, None][i]),
    "qwen2": lambda i: base("Qwen2ForCausalLM", "qwen2", use_sliding_window=i > 0, sliding_window=6, max_window_layers=i),
    "qwen3": lambda i: base("Qwen3ForCausalLM", "qwen3", attention_bias=i == 1, use_sliding_window=False, sliding_window=None,
                            rope_scaling=[None, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16), None][i]),
    "smollm3": lambda i: base("SmolLM3ForCausalLM", "smollm3", attention_bias=i == 2, mlp_bias=i == 1,
                              use_sliding_window=i == 2, sliding_window=5 if i == 2 else None,
                              **([dict(no_rope_layers=[1, 0, 1]), dict(no_rope_layer_interval=2), dict(no_rope_layers=[0, 1, 0])][i])),
    "phi3": lambda i: base("Phi3ForCausalLM", "phi3", sliding_window=[None, 8, None][i],
                           partial_rotary_factor=[1.0, 0.67, 0.8][i]),
    "gemma": lambda i: base("GemmaForCausalLM", "gemma", hidden_act=["gelu", "gelu_pytorch_tanh", "gelu_new"][i]),
    "gemma2": lambda i: base("Gemma2ForCausalLM", "gemma2", hidden_act="gelu", hidden_activation="gelu_pytorch_tanh",
                             query_pre_attn_scalar=[8, 5, 12][i], sliding_window=6, attn_logit_softcapping=[5.0, None, 3.5][i],
                             final_logit_softcapping=[8.0, 6.0, None][i]),
    "gemma3": lambda i: base("Gemma3ForCausalLM", "gemma3_text", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=[8, 6, 10][i],
                             sliding_window=5, sliding_window_pattern=[2, 3, 2][i], rope_local_base_freq=500.0, rope_theta=100000.0,
                             rope_scaling=[None, dict(rope_type="linear", factor=4.0), None][i], final_logit_softcapping=[None, None, 7.0][i]),
    "granite": lambda i: base("GraniteForCausalLM", "granite", embedding_multiplier=[12.0, 6.0, 1.0][i], residual_multiplier=[0.22, 1.0, 0.3][i],
                              attention_multiplier=[0.25, 0.4, 0.15][i], logits_scaling=[8.0, 3.0, 1.0][i], attention_bias=i == 1, mlp_bias=i == 1),
    "olmo2": lambda i: base("Olmo2ForCausalLM", "olmo2", attention_bias=i == 1, rope_theta=500000.0),
}


def shaped(cfg, i, shift):
    heads, kv, hidden, width, inner, vocab = SIZES[(i + shift) % 3]
    cfg = dict(cfg, num_attention_heads=heads, num_key_value_heads=kv, hidden_size=hidden, intermediate_size=inner,
               vocab_size=vocab, tie_word_embeddings=(i + shift) % 2 == 0)
    if width or cfg["model_type"] in ("qwen3", "gemma", "gemma2", "gemma3_text", "ministral"):
        cfg["head_dim"] = width or hidden // heads
    return cfg


def extra():
    """one configuration for each kind of rope, in the newer spelling where there is one"""
    heads = dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=48, head_dim=16, intermediate_size=60, vocab_size=199,
                 tie_word_embeddings=False)
    llama = lambda **kw: {k: v for k, v in {**base("LlamaForCausalLM", "llama"), **heads, **kw}.items() if v is not None}
    phi = lambda **kw: {**base("Phi3ForCausalLM", "phi3"), **heads, "hidden_size": 64, **kw}
    new = lambda **kw: dict(rope_theta=None, rope_parameters=dict(rope_theta=5000.0, **kw))
    yield "rope-new-default", llama(**new(rope_type="default"))
    yield "rope-new-llama3", llama(**new(**LLAMA3))
    yield "rope-yarn", llama(**new(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))
    yield "rope-yarn-attention-factor", llama(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.9, beta_fast=16.0, beta_slow=2.0))
    yield "rope-yarn-mscale", llama(rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8, mscale=1.2, mscale_all_dim=0.8, truncate=False))
    yield "rope-dynamic", llama(rope_scaling=dict(rope_type="dynamic", factor=4.0), max_position_embeddings=16)
    yield "rope-longrope-short", phi(max_position_embeddings=128, original_max_position_embeddings=64, rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG))
    yield "rope-longrope-crossed", phi(max_position_embeddings=64, original_max_position_embeddings=16, rope_scaling=dict(type="su", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=16))
    yield "rope-longrope-partial", phi(max_position_embeddings=64, original_max_position_embeddings=8, partial_rotary_factor=0.5,
                                       rope_scaling=dict(rope_type="longrope", short_factor=SHORT[:4], long_factor=LONG[:4], attention_factor=1.1))
    gemma3 = {**base("Gemma3ForCausalLM", "gemma3_text", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, sliding_window=5,
                     layer_types=["sliding_attention", "full_attention", "sliding_attention"]), **heads}
    gemma3["rope_parameters"] = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=100000.0), sliding_attention=dict(rope_type="default", rope_theta=700.0))
    gemma3.pop("rope_theta")
    yield "gemma3-new-spelling", gemma3
    yield "llama-gelu", llama(hidden_act="gelu")


def cases():
    for f, (name, make) in enumerate(FAMILIES.items()):
        for i in range(3):
            yield f"{name}-{i}", shaped({k: v for k, v in make(i).items() if v is not None or k in ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "pad_token_id")}, i, f)
    yield from extra()


@torch.no_grad()
def run(folder, ids, cached):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    hidden = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    hidden = [t[0, -1] for t in hidden]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out, tokens, best, margin = None, list(ids), [], []
    for _ in range(N_NEW):
        if cached and out is not None:
            out = model(input_ids=torch.tensor([tokens[-1:]]), use_cache=True, past_key_values=out.past_key_values)
        else:
            out = model(input_ids=torch.tensor([tokens]), use_cache=cached)
        logits = out.logits[0, -1]
        top = torch.topk(logits, 2).values
        best.append(float(top[0]))
        margin.append(float(top[0] - top[1]))
        tokens.append(int(logits.argmax()))
    return hidden, tokens[len(ids):], best, min(margin)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", required=True)
    a.add_argument("--only")
    o = a.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    digits = lambda v: float("%.7g" % v)
    done = []
    for n, (name, cfg) in enumerate(cases()):
        if o.only and o.only not in name:
            continue
        dtype = "bf16" if n % 4 == 1 else "f32"
        shards = 1 + n % 3
        ids = [3 + int(u * (cfg["vocab_size"] - 3)) for u in splitmix(zlib.crc32(name.encode()), 14)]
        for seed in range(1, 60):
            with tempfile.TemporaryDirectory() as folder:
                json.dump(cfg, open(os.path.join(folder, "config.json"), "w"))
                config = transformers.AutoConfig.from_pretrained(folder)
                with torch.device("meta"):
                    shapes = {k: tuple(p.shape) for k, p in AutoModelForCausalLM.from_config(config).state_dict().items()}
                if cfg.get("tie_word_embeddings"):
                    shapes.pop("lm_head.weight", None)
                scales, state = {}, {}
                for key, shape in shapes.items():
                    offset, s = scale(cfg, key, shape)
                    scales[kind(key)] = [offset, s]
                    x = torch.from_numpy((offset + s * noise(seed, key, int(np.prod(shape)))).reshape(shape))
                    state[key] = x.to(torch.float32).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
                save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
                hidden, tokens, best, margin = run(folder, ids, "dynamic" in name)
            if margin >= MARGIN and len(set(tokens)) > N_NEW // 2:
                break
        else:
            raise SystemExit(f"{name}: no seed gives clear margins")
        print(name, dtype, shards, "seed", seed, "margin %.4f" % margin, tokens, flush=True)
        done.append({"name": name, "config": cfg, "dtype": dtype, "shards": shards, "seed": seed, "scales": scales,
                     "prompt_ids": ids, "generated_ids": tokens, "best_logits": [digits(v) for v in best],
                     "hidden": [[digits(v) for v in t.tolist()] for t in hidden]})
    doc = {"schema": 1, "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "cases": done}
    with open(o.out, "w") as f:
        json.dump(doc, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
