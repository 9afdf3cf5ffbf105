#!/usr/bin/env bash
# Call D, 9 minutes: models, each in a process of its own; first without torch.compile, then with it.
MINUTES=9
# shellcheck source=setup.sh
source "$(dirname "$0")/setup.sh"
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$PWD/.gpu-site/inductor}

# models SECONDS ENGINES NAME...: all into one table.
models() {
  local seconds=$1 engines=$2 name
  shift 2
  for name in "$@"; do
    # shellcheck disable=SC2086  # several engines
    piece "$seconds" "$name ($engines)" "$PYTHON" benchmarks/gpu.py "$name" --results "$OUT" --engines $engines
  done
}

main() {
  ready
  models 45 "kernelyard native-cuda eager" mlp_b1 gpt2_step_kv256 bert_base_1x128 llama_block_s64 resnet50_b32
  models 45 "kernelyard eager compile" mlp_b1 gpt2_step_kv256 bert_base_1x128 llama_block_s64
  models 90 "kernelyard kernelyard-tuned max-autotune" mlp_b1 bert_base_1x128
  summary
}

main 2>&1 | tee "$OUT/d.log"
