#!/usr/bin/env bash
# Everything about correctness and speed that needs a GPU, in one run: goldens of the small checkpoints in
# bf16 and float32 mode, a random checkpoint of a large shape against transformers, and launch times.
# Usage: benches/device_check.sh GPU_EXAMPLE OUT_DIR [SHAPE.json]
set -u
gpu=$1; out=$2; shape=${3:-tests/shapes/llama-3.2-1b.json}
work=$(mktemp -d)
export AMK_CACHE=${AMK_CACHE:-$work/cache}
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/device.txt"
models="embedded llama-mha-f32 llama-odd-f32 llama-gqa-bf16 llama-gqa-tied-bf16 llama-headdim-bf16 llama-rope-linear-f16 llama-rope-llama3-bf16 llama-sharded-bf16 llama-v5config-bf16 mistral-full-bf16"
verify() { # model mode prompts
  local m=$1 d=tests/checkpoints/$1 g=tests/goldens/hf/$1.json
  if [ "$m" = embedded ]; then d=embedded; g=models/default/golden.json; fi
  timeout 100 "$gpu" verify "$d" "$g" "$2" ${3:-} 2>&1 | sed "s/^/$m $2 /"
}
export -f verify; export gpu
# Compile in parallel first (the images are cached), then judge one at a time.
for m in $models; do for mode in f32 bf16; do echo "$m $mode 1"; done; done | xargs -P 12 -L 1 bash -c 'verify $0 $1 $2' > "$out/warm.txt" 2>&1
for m in $models; do for mode in f32 bf16; do verify $m $mode; done; done | tee "$out/verify.txt" | cut -c1-400
ckpt=$work/$(basename "$shape" .json)
[ -d "$ckpt" ] || python3 benches/random_checkpoint.py "$shape" "$ckpt" 2>&1 | tail -1
ids=$(seq -s, 100 116)
python3 benches/random_checkpoint.py --logits "$ckpt" "$ids" "$work/ref.f32" 2>&1 | tail -1
for mode in bf16 f32; do
  timeout 200 "$gpu" run "$ckpt" "$ids" 1 $mode "$work/ours.f32" 2>&1 | cut -c1-200
  python3 - $mode "$work" <<'P'
import numpy as np, sys
a = np.fromfile(sys.argv[2] + '/ref.f32', np.float32); b = np.fromfile(sys.argv[2] + '/ours.f32', np.float32)
print(sys.argv[1], 'relative error', float(np.linalg.norm(a - b) / np.linalg.norm(a)), 'argmax', int(a.argmax()), int(b.argmax()))
P
done
for pos in 16 256 1024; do timeout 100 "$gpu" time "$ckpt" $pos 1 bf16 200 2>&1 | tee -a "$out/time.jsonl"; done
timeout 100 "$gpu" time "$ckpt" 16 32 bf16 40 2>&1 | tee -a "$out/time.jsonl"
timeout 100 "$gpu" time "$ckpt" 16 1 f32 100 2>&1 | tee -a "$out/time.jsonl"
