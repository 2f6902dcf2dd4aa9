#!/usr/bin/env bash
# Everything that needs a GPU, each part bounded in time and runnable alone.
#
#   benches/device_check.sh AMK OUT_DIR [PART ...]
#
# AMK is a release build of amk. Parts, in the order they run when none is named:
#   info verify live refusals hang corrupt repeat other prefill bench trace profile sanitizer
# Each part writes OUT_DIR/PART.jsonl (or more files) and its time to OUT_DIR/times.jsonl.
# Environment: SHAPES (names under tests/shapes or SmolLM2-135M-Instruct, for all parts that measure), POSITIONS, ROUNDS, BATCH,
# BASELINE (graph,compile or empty), STEPS (tokens of a long launch), KNOBS (a file, for bench), REPEAT (launches), WORK (folder for random checkpoints, kept), MODELS (checkpoints of verify), AMK_COMMIT,
# SMOLLM2 (folder that tools/fetch_smollm2.py made; without it there is no live comparison, and verify leaves the model out).
set -u
amk=$(realpath "$1"); out=$2; shift 2
mkdir -p "$out"; out=$(realpath "$out")
cd "$(dirname "$0")/.."
WORK=${WORK:-/tmp/amk-device-check}; mkdir -p "$WORK"
export AMK_CACHE=${AMK_CACHE:-$WORK/cache}
SHAPES=${SHAPES:-llama-3.2-1b}; POSITIONS=${POSITIONS:-16,256,1024,4000}; ROUNDS=${ROUNDS:-20}; BATCH=${BATCH:-20}
BASELINE=${BASELINE-graph}; STEPS=${STEPS:-128}; KNOBS=${KNOBS:-}; REPEAT=${REPEAT:-10000}
MODELS=${MODELS:-embedded $(cd tests/checkpoints && ls -d -- *-bf16 *-f32 *-f16)}
fails=0

# say NAME LIMIT_S COMMAND...: runs bounded, appends {name, rc, seconds, answer} to $file; the answer is the last JSON line.
say() {
  local name=$1 limit=$2 start end rc; shift 2
  start=$(date +%s.%N)
  timeout -k 5 "$limit" "$@" > "$WORK/say.out" 2> "$WORK/say.err"; rc=$?
  end=$(date +%s.%N)
  python3 - "$name" $rc "$start" "$end" "$WORK/say.out" "$WORK/say.err" "$file" <<'P'
import json, sys
name, rc, start, end, out, err, file = sys.argv[1:]
answer = None
for line in open(out, errors="replace"):
    if line.startswith("{"):
        try: answer = json.loads(line)
        except ValueError: pass
tail = open(err, errors="replace").read()[-600:]
row = {"name": name, "rc": int(rc), "seconds": round(float(end) - float(start), 2), "answer": answer}
if int(rc) not in (0,): row["stderr"] = tail
open(file, "a").write(json.dumps(row) + "\n")
short = json.dumps(answer)[:260] if answer else tail[-260:]
print(f"{name}: rc {rc}, {row['seconds']} s, {short}", flush=True)
P
  return $rc
}
# expect RC NAME LIMIT COMMAND...: as say, and counts another exit code as a failure.
expect() {
  local want=$1 rc; shift
  say "$@"; rc=$?
  [ $rc -eq "$want" ] || { fails=$((fails + 1)); echo "  ^ FAILED: exit code $rc, $want is right"; }
}
missed() { fails=$((fails + 1)); echo "FAILED: there is no checkpoint of $1"; }
SMOLLM2=${SMOLLM2:-}; [ -n "$SMOLLM2" ] && MODELS="$MODELS SmolLM2-135M-Instruct"
model_of() {
  case $1 in embedded) ;; SmolLM2-135M-Instruct) echo "$SMOLLM2" ;; *) echo "tests/checkpoints/$1" ;; esac
}
golden_of() { [ "$1" = embedded ] && echo models/default/golden.json || echo "tests/goldens/hf/$1.json"; }
has_bf16() { python3 -c "import json, sys; sys.exit('bf16' not in json.load(open(sys.argv[1]))['runs'])" "$(golden_of "$1")"; }
checkpoint() { # name of a shape: a random checkpoint of it, made once; the one real model is where SMOLLM2 says
  local dir=$WORK/$1
  [ "$1" = SmolLM2-135M-Instruct ] && { echo "${SMOLLM2:?is not set}"; return; }
  [ -f "$dir/config.json" ] && [ -n "$(ls "$dir"/*.safetensors 2>/dev/null)" ] \
    || timeout 200 python3 benches/random_checkpoint.py "tests/shapes/$1.json" "$dir" >&2 || return 1
  echo "$dir"
}

part_info() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader | tee "$out/device.txt"
  expect 0 doctor 60 "$amk" doctor --require-gpu --json
}
part_verify() { # goldens in both modes; images are compiled on all cores first
  for m in $MODELS; do for mode in f32 bf16; do
    echo "$amk" verify $(model_of $m) --golden "$(golden_of $m)" --device cuda --activations $mode --prompts 1 --tokens 1 --json --self-test skip
  done; done | xargs -P 6 -I{} timeout 100 sh -c '{} > /dev/null 2>&1'
  for m in $MODELS; do for mode in f32 bf16; do
    [ $mode = bf16 ] && ! has_bf16 $m && continue
    expect 0 "verify $m $mode" 100 "$amk" verify $(model_of $m) --golden "$(golden_of $m)" --device cuda --activations $mode --json
  done; done
}
part_live() { # against transformers in float32 on this machine, a process for each prompt
  [ -n "$SMOLLM2" ] || { echo "SMOLLM2 is not set: no live comparison"; return; }
  local golden=tests/goldens/hf/SmolLM2-135M-Instruct.json label
  live() { python3 benches/live_compare.py "$amk" "$SMOLLM2" $golden --new 512 --prompts "$1" --out "$WORK/live-$1.json" > "$WORK/live-$1.log" 2>&1; }
  rm -f "$WORK"/live-*.json
  for label in $(python3 -c "import json; print(*(p['label'] for p in json.load(open('$golden'))['runs']['f32']['prompts']))"); do
    live "$label" &
  done
  wait
  expect 0 live 20 python3 benches/live_compare.py --merge "$WORK"/live-*.json --out "$out/live.json"
}
part_refusals() { expect 0 refusals 60 "$amk" diagnose refusals --json; }
part_hang() {
  for f in signal packet boundary; do expect 1 "hang $f" 40 "$amk" diagnose hang --fault $f --json; done
  # The device works as before.
  expect 0 "after the hangs" 40 "$amk" generate --prompt "In the beginning" --max-tokens 8 --device cuda --json
}
part_corrupt() { expect 0 corrupt 60 "$amk" diagnose corrupt --json; }
part_repeat() {
  expect 0 "repeat embedded" 120 "$amk" bench --repeat-check "$REPEAT" --json
  for s in $SHAPES; do
    local c; c=$(checkpoint $s) || { missed $s; continue; }
    expect 0 "repeat $s" 200 "$amk" bench "$c" --repeat-check "$REPEAT" --json
  done
}
part_other() { # the sm_80 family from PTX, and the 99 KB of sm_120, by tokens
  for m in embedded llama-mha-f32 llama-gqa-bf16; do for how in "--target sm_80" "--resources-of sm_120"; do for mode in f32 bf16; do
    [ $mode = bf16 ] && ! has_bf16 $m && continue
    expect 0 "verify $m $mode $how" 100 "$amk" verify $(model_of $m) --golden "$(golden_of $m)" --device cuda --activations $mode $how --json
  done; done; done
  local ids; ids=$(seq -s, 100 140)
  for how in "" "--target sm_80" "--resources-of sm_120"; do
    expect 0 "generate $how" 60 "$amk" generate --prompt-ids "$ids" --max-tokens 40 --ignore-eos --device cuda --activations f32 $how --json
  done
}
part_prefill() {
  for s in $SHAPES; do
    local c; c=$(checkpoint $s) || { missed $s; continue; }
    expect 0 "prefill $s" 120 "$amk" bench "$c" --prefill --positions 16 --rounds "$ROUNDS" --batch "$BATCH" --no-ceiling --json
    expect 0 "one position $s" 120 "$amk" bench "$c" --positions 16 --rounds "$ROUNDS" --batch "$BATCH" --no-ceiling --json
  done
}
part_bench() {
  for s in $SHAPES; do
    local c; c=$(checkpoint $s) || { missed $s; continue; }
    expect 0 "bench $s" 580 "$amk" bench "$c" --positions "$POSITIONS" --rounds "$ROUNDS" --batch "$BATCH" ${KNOBS:+--knobs "$KNOBS"} ${BASELINE:+--baseline $BASELINE} --save "$out/bench-$s.json" --json
    expect 0 "bench $s $STEPS tokens" 120 "$amk" bench "$c" --positions 16 --steps "$STEPS" --rounds 8 --batch 2 ${KNOBS:+--knobs "$KNOBS"} --save "$out/bench-$s-$STEPS.json" --json
  done
}
part_trace() {
  for s in $SHAPES; do
    local c; c=$(checkpoint $s) || { missed $s; continue; }
    expect 0 "trace $s" 120 "$amk" trace "$c" --position 16 --out "$out/trace-$s" --self-test skip --json
    gzip -f "$out/trace-$s/trace.json"
  done
}
part_profile() { # where the warps of one launch stand, by instruction; Nsight Compute follows one process, so the watching parent is left out
  local ncu; ncu=$(command -v ncu || echo /usr/local/cuda/bin/ncu)
  for s in $SHAPES; do
    local c; c=$(checkpoint $s) || { missed $s; continue; }
    AMK_WATCH_FILE=$WORK/unwatched expect 0 "profile $s" 150 "$ncu" --target-processes all --launch-skip 3 --launch-count 1 \
      --section SourceCounters --section WarpStateStats -f -o "$WORK/profile-$s" \
      "$amk" bench "$c" --positions 16 --rounds 1 --batch 4 --no-ceiling --self-test skip --patience 600 --json
    "$ncu" --import "$WORK/profile-$s.ncu-rep" --page source --csv | gzip > "$out/profile-$s.csv.gz"
  done
}
part_sanitizer() { # a tiny model; the tool slows everything down by two orders of magnitude
  local tool m=tests/checkpoints/llama-gqa-bf16 bin
  bin=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  printf '{"grid": 8}\n' > "$WORK/small.json"
  for tool in memcheck racecheck synccheck; do
    # The watching parent is left out: the tool follows one process, and every wait is as slow as everything else.
    AMK_WATCH_FILE=$WORK/unwatched expect 0 "$tool" 150 "$bin" --tool $tool --error-exitcode 9 --log-file "$out/$tool.txt" \
      "$amk" generate "$m" --prompt-ids 1,2,3,4,5 --max-tokens 3 --ignore-eos --device cuda --knobs "$WORK/small.json" --self-test skip --patience 600 --json
    tail -3 "$out/$tool.txt"
  done
}

parts=${*:-info verify live refusals hang corrupt repeat other prefill bench trace profile sanitizer}
for part in $parts; do
  file=$out/$part.jsonl; : > "$file"
  start=$(date +%s.%N); before=$fails
  echo "== $part"
  "part_$part"
  seconds=$(python3 -c "import sys,time; print(round(time.time() - float(sys.argv[1]), 1))" "$start")
  echo "{\"part\": \"$part\", \"seconds\": $seconds, \"failed\": $((fails - before))}" | tee -a "$out/times.jsonl"
done
[ $fails -eq 0 ]
