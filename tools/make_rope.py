#!/usr/bin/env python3
"""Write the table of rotary frequencies that HuggingFace transformers computes for many configs.

    python3 make_rope.py --out ../tests/goldens/hf/rope.json

Per case: the config, the length of the sequence, the inverse frequencies and the factor of cosines and sines as bits of
float32, and cosines at some positions, the last one of the context included. Needs torch and transformers.
"""
import argparse, json, os, tempfile

import torch
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

bits = lambda t: t.to(torch.float32).contiguous().view(torch.int32).tolist()


def config(arch, model_type, head_dim, positions, **kw):
    c = dict(architectures=[arch], model_type=model_type, hidden_size=4 * head_dim, num_attention_heads=4, num_key_value_heads=2,
             head_dim=head_dim, intermediate_size=32, vocab_size=64, num_hidden_layers=2, max_position_embeddings=positions,
             rms_norm_eps=1e-5)
    c.update(kw)
    return c


llama = lambda head_dim, positions, **kw: config("LlamaForCausalLM", "llama", head_dim, positions, **kw)
phi3 = lambda head_dim, positions, **kw: config("Phi3ForCausalLM", "phi3", head_dim, positions, pad_token_id=None, **kw)
gemma3 = lambda head_dim, positions, **kw: config("Gemma3ForCausalLM", "gemma3_text", head_dim, positions, hidden_activation="gelu_pytorch_tanh",
                                                  query_pre_attn_scalar=head_dim, sliding_window=512, sliding_window_pattern=2, **kw)


def cases():
    """(config, lengths)"""
    for head_dim, theta, positions in [(64, 1e4, 2048), (128, 5e5, 131072), (20, 1e4, 512), (80, 1e6, 32768), (96, 250000.0, 1048576), (256, 5000000, 65536)]:
        yield llama(head_dim, positions, rope_theta=theta), [0]
        yield llama(head_dim, positions, rope_theta=theta, rope_scaling=dict(type="linear", factor=2.5)), [0]
        yield llama(head_dim, positions, rope_parameters=dict(rope_type="dynamic", rope_theta=theta, factor=4.0)), [0, positions, positions + 1, 2 * positions, 4 * positions]
        for factor in (8.0, 32.0, 3.7):
            yield llama(head_dim, positions, rope_theta=theta, rope_scaling=dict(rope_type="llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                              original_max_position_embeddings=positions // 4)), [0]
        yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=positions // 4)
        for more in ({}, dict(attention_factor=1.25), dict(mscale=0.707, mscale_all_dim=1.0), dict(mscale=0.707), dict(beta_fast=20.0, beta_slow=2.0), dict(truncate=False)):
            yield llama(head_dim, positions, rope_parameters=dict(yarn, rope_theta=theta, **more)), [0]
    for head_dim, partial, original, positions in [(96, 1.0, 4096, 131072), (128, 0.75, 4096, 131072), (64, 0.5, 64, 64)]:
        n = int(head_dim * partial) // 2
        short, long = [1.0 + 0.01 * i for i in range(n)], [1.0 + 0.7 * i ** 1.3 for i in range(n)]
        more = dict(partial_rotary_factor=partial, original_max_position_embeddings=original, rope_theta=1e4)
        yield phi3(head_dim, positions, **more), [0]
        lengths = [0, original, original + 1]
        yield phi3(head_dim, positions, rope_scaling=dict(type="longrope", short_factor=short, long_factor=long), **more), lengths
        yield phi3(head_dim, positions, rope_scaling=dict(type="su", short_factor=short, long_factor=long, attention_factor=1.19, original_max_position_embeddings=original), **more), lengths
    yield gemma3(256, 131072, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=8.0)), [0]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", required=True)
    o = a.parse_args()
    transformers.logging.set_verbosity_error()
    done = []
    for raw, lengths in cases():
        with tempfile.TemporaryDirectory() as folder:
            json.dump(raw, open(os.path.join(folder, "config.json"), "w"))
            c = AutoConfig.from_pretrained(folder)
        for length in lengths:
            cls = {"phi3": Phi3RotaryEmbedding, "gemma3_text": Gemma3RotaryEmbedding}.get(raw["model_type"], LlamaRotaryEmbedding)
            for layer_type in (["full_attention", "sliding_attention"] if raw["model_type"] == "gemma3_text" else [None]):
                rope = cls(c)
                kw = {} if layer_type is None else {"layer_type": layer_type}
                if length:
                    rope(torch.zeros(1), torch.tensor([[length - 1]]), **kw)
                prefix = "" if layer_type is None else layer_type + "_"
                inv_freq, scale = getattr(rope, prefix + "inv_freq"), float(getattr(rope, prefix + "attention_scaling"))
                positions = sorted({1, 17, c.max_position_embeddings // 2 + 1, c.max_position_embeddings - 1})
                at = [(p, (float(p) * inv_freq).cos() * scale, (float(p) * inv_freq).sin() * scale) for p in positions]
                done.append({"config": raw, "layer_type": layer_type, "length": length, "inv_freq": bits(inv_freq), "scale": bits(torch.tensor([scale]))[0],
                             "at": [{"position": p, "cos": [float("%.6g" % v) for v in cs.tolist()[:4]], "sin": [float("%.6g" % v) for v in sn.tolist()[:4]]} for p, cs, sn in at]})
    with open(o.out, "w") as f:
        json.dump({"schema": 1, "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "cases": done}, f, separators=(",", ":"))
        f.write("\n")
    print(len(done), "cases")


if __name__ == "__main__":
    main()
