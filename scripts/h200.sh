#!/usr/bin/env bash
# The H200 comparison, for anyone with a CUDA machine: makes the 35B-shaped file, measures ours against llama-server,
# then one thing off at a time. Needs: this package set up (npm run build), a folder of llama.cpp's CUDA libraries
# (LLAMA_DIR; default: the npm CUDA package), llama-server of the same build (PEER), 20 GB of disk, a GPU of 140 GB.
#   LLAMA_DIR=/path/to/libs PEER=/path/to/llama-server OUT=results scripts/h200.sh [core|ablations|all]
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
OUT=${OUT:-runs/h200}
MODEL=${MODEL:-$OUT/35b.gguf}
PEER=${PEER:-llama-server}
foretoken() { node dist/src/cli.js "$@"; }
if [ -z "${LLAMA_DIR:-}" ]; then
  LLAMA_DIR=$(dirname "$(find node_modules/@node-llama-cpp/*-cuda/bins -name 'libllama.*' 2>/dev/null | head -n 1)")
fi
export FORETOKEN_LLAMA_DIR=$LLAMA_DIR LD_LIBRARY_PATH=$LLAMA_DIR${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$OUT"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,temperature.gpu --format=csv > "$OUT/conditions.txt"
[ -f "$MODEL" ] || foretoken synth --shape ornith-35b --type IQ4_XS --head-type Q6_K -o "$MODEL"

if [ "$what" != ablations ]; then
  foretoken bench sweep recipes/h200-shape.yaml --set "model=$MODEL" --set "peer=$PEER" --set "llamaDir=$LLAMA_DIR" --output "$OUT/sweep"
  foretoken bench sweep recipes/plans/h200-many.yaml --set "model=$MODEL" --set "llamaDir=$LLAMA_DIR" --output "$OUT/many"
fi
[ "$what" != core ] || exit 0

base=(-m "$MODEL" --parallel 16 -c 16384 -b 4096 --prompt-len 145 --max-tokens 128 --host-slots 0 -n 32 --concurrency 16)
device=(--sampling device-greedy --ubatch-size 2560)
draft=(--spec-type draft-mtp --spec-draft-n-max 2 --spec-synth-rates 0.947,0.812 --spec-gate fixed)
: > "$OUT/ablations.txt"
run() {
  local name=$1
  shift
  echo "### $name: $*" | tee -a "$OUT/ablations.txt"
  foretoken trace "$@" 2>&1 | tee -a "$OUT/ablations.txt"
}
run base "${base[@]}" "${device[@]}" "${draft[@]}" --spec-draft-pad
run target-only "${base[@]}" "${device[@]}"
run host "${base[@]}" --ubatch-size 2560 "${draft[@]}" --spec-draft-pad --sampling host --spec-draft-sampling host
run nopad "${base[@]}" "${device[@]}" "${draft[@]}"
run nopin "${base[@]}" "${device[@]}" "${draft[@]}" --spec-draft-pad --kv-pin 0
run by-row-argmax "${base[@]}" "${device[@]}" "${draft[@]}" --spec-draft-pad --no-batched-argmax
run immediate "${base[@]}" "${device[@]}" "${draft[@]}" --spec-catchup immediate
run ubatch512 "${base[@]}" --sampling device-greedy --ubatch-size 512 "${draft[@]}" --spec-draft-pad
run unedited "${base[@]}" "${device[@]}" "${draft[@]}" --spec-draft-pad --graph-edits none
run all-edits "${base[@]}" "${device[@]}" "${draft[@]}" --spec-draft-pad --graph-edits all
run by-depth "${base[@]}" "${device[@]}" "${draft[@]}" --spec-verify by-depth
run sequential "${base[@]}" "${device[@]}" "${draft[@]}" --spec-verify sequential
