#!/usr/bin/env python3
"""What `amk bench` compares with: the same weights decoded by PyTorch, one token at a time.

Speaks JSON lines: one answer on standard output to each line on standard input (see src/bench/baseline.rs). `graph` is a
CUDA graph of cuBLAS and PyTorch's own kernels, `compile` a CUDA graph of what torch.compile (max-autotune) makes of
the same function. Weights are fused as an engine would (qkv, gate and up), the cache is static, attention sees
exactly `position` + 1 keys, and a token is everything from the embedding to the argmax.

    python3 baseline.py MODEL_DIR [--dtype bfloat16]

Needs torch and safetensors, and for models other than Llama's plain block it says so instead of measuring.
"""
import argparse
import json
import os
import sys
import time

# Answers alone go to standard output; whatever libraries print goes to standard error.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(**answer):
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


class Model:
    def __init__(self, folder, dtype):
        import torch
        from safetensors import safe_open

        self.torch = torch
        self.dev = torch.device("cuda")
        self.dtype = getattr(torch, dtype)
        c = json.load(open(os.path.join(folder, "config.json")))
        if c.get("model_type") not in ("llama", "mistral"):
            raise ValueError(f"the baseline knows Llama's block only, not {c.get('model_type')}")
        self.hidden = c["hidden_size"]
        self.heads = c["num_attention_heads"]
        self.kv = c.get("num_key_value_heads", self.heads)
        self.dim = c.get("head_dim") or self.hidden // self.heads
        self.eps = c.get("rms_norm_eps", 1e-6)
        self.n = c["num_hidden_layers"]
        theta = c.get("rope_theta") or (c.get("rope_parameters") or {}).get("rope_theta") or 10000.0
        tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                with safe_open(os.path.join(folder, name), "pt", device="cuda") as f:
                    for key in f.keys():
                        tensors[key] = f.get_tensor(key).to(self.dtype)
        t = lambda name: tensors["model." + name]
        self.embedding = t("embed_tokens.weight")
        self.head = tensors.get("lm_head.weight", self.embedding)
        self.norm = t("norm.weight")
        self.layers = []
        for i in range(self.n):
            w = lambda part: t(f"layers.{i}.{part}.weight")
            self.layers.append(
                dict(
                    n1=w("input_layernorm"),
                    qkv=torch.cat([w("self_attn.q_proj"), w("self_attn.k_proj"), w("self_attn.v_proj")]),
                    o=w("self_attn.o_proj"),
                    n2=w("post_attention_layernorm"),
                    gu=torch.cat([w("mlp.gate_proj"), w("mlp.up_proj")]),
                    d=w("mlp.down_proj"),
                )
            )
        del tensors
        torch.cuda.empty_cache()
        # Scaled variants have other frequencies and the same cost; speed is all that is asked for here.
        inv = 1.0 / theta ** (torch.arange(0, self.dim, 2, device=self.dev).float() / self.dim)
        self.inv = inv
        self.graphs = {}

    def prepare(self, what, position):
        torch = self.torch
        start = time.time()
        room = position + 1
        shape = (self.n, self.kv, room, self.dim)
        g = torch.Generator(device=self.dev).manual_seed(1)
        keys = torch.randn(shape, device=self.dev, generator=g).to(self.dtype)
        values = torch.randn(shape, device=self.dev, generator=g).to(self.dtype)
        angles = torch.outer(torch.arange(room, device=self.dev).float(), self.inv)
        cos, sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        token = torch.tensor([5], device=self.dev)
        where = torch.tensor([position], device=self.dev)
        F = torch.nn.functional

        def rot(x, c, s):
            a, b = x[..., : self.dim // 2], x[..., self.dim // 2 :]
            return torch.cat([a * c - b * s, b * c + a * s], -1)

        def step(token, where):
            h = self.embedding[token].view(1, self.hidden)
            c, s = cos.index_select(0, where), sin.index_select(0, where)
            for i, w in enumerate(self.layers):
                y = F.rms_norm(h, (self.hidden,), w["n1"], self.eps)
                q, k, v = F.linear(y, w["qkv"]).split([self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], -1)
                q, k = rot(q.view(-1, self.dim), c, s), rot(k.view(-1, self.dim), c, s)
                keys[i].index_copy_(1, where, k.view(self.kv, 1, self.dim))
                values[i].index_copy_(1, where, v.view(self.kv, 1, self.dim))
                o = F.scaled_dot_product_attention(
                    q.view(1, self.heads, 1, self.dim), keys[i : i + 1], values[i : i + 1], enable_gqa=self.kv != self.heads
                )
                h = h + F.linear(o.reshape(1, -1), w["o"])
                y = F.rms_norm(h, (self.hidden,), w["n2"], self.eps)
                gate, up = F.linear(y, w["gu"]).chunk(2, -1)
                h = h + F.linear(F.silu(gate) * up, w["d"])
            return F.linear(F.rms_norm(h, (self.hidden,), self.norm, self.eps), self.head).argmax(-1)

        fn = step
        if what == "compile":
            torch._dynamo.reset()
            fn = torch.compile(step, mode="max-autotune-no-cudagraphs", fullgraph=True)
        with torch.no_grad():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    fn(token, where)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = fn(token, where)
            graph.replay()
            torch.cuda.synchronize()
        # What the graph uses must live as long as it does.
        self.graphs[what] = (graph, keys, values, cos, sin, token, where, out, fn)
        return int(out[0]), time.time() - start

    def sample(self, what, count):
        torch = self.torch
        graph = self.graphs[what][0]
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        a.record()
        for _ in range(count):
            graph.replay()
        b.record()
        torch.cuda.synchronize()
        return a.elapsed_time(b) * 1e3 / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--dtype", default="bfloat16")
    args = p.parse_args()
    model = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            cmd = request.get("cmd")
            if cmd == "quit":
                return
            if model is None:
                model = Model(args.model, args.dtype)
            if cmd == "prepare":
                token, seconds = model.prepare(request["what"], int(request["position"]))
                torch = model.torch
                versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
                say(ok=True, token=token, seconds=round(seconds, 2), versions=versions, dtype=args.dtype)
            elif cmd == "sample":
                say(ok=True, us=model.sample(request["what"], int(request["count"])))
            else:
                say(ok=False, error=f"unknown command {cmd}")
        except Exception as e:  # the other side decides what to do about it
            say(ok=False, error=f"{type(e).__name__}: {e}")


main()
