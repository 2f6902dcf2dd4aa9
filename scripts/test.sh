#!/usr/bin/env bash
# Runs all tests. Fetches, once and into ignored folders, what some of them need: SmolLM2-135M-Instruct
# (through pip) and the CUDA compiler NVRTC (through `amk toolchain fetch`, which is pip too).
# Arguments go to `cargo test`: scripts/test.sh --test cli
set -euo pipefail
cd "$(dirname "$0")/.."

python3 tools/fetch_smollm2.py --out .cache/SmolLM2-135M-Instruct --cache .cache/wheels
cargo run --release -- toolchain fetch
cargo test --release --workspace "$@"

# Where Ray is installed: requests and a campaign through a local cluster.
if python3 -c 'import ray' 2>/dev/null; then
  cargo build --release
  AMK="${CARGO_TARGET_DIR:-target}/release/amk" python3 autoresearch/ray/test_amk_ray.py
fi
