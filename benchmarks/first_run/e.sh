#!/usr/bin/env bash
# Call E, 8 minutes: why. Counters of four kernels, generated and from libraries; decoding with and without graphs; threads.
MINUTES=8
# shellcheck source=setup.sh
source "$(dirname "$0")/setup.sh"

# counted CASE ENGINE: a call of the kernels of an engine, with every section of counters; clocks stay as they are.
counted() {
  piece 45 "ncu $1, $2" ncu --clock-control none --set full --profile-from-start off --page details \
    "$PYTHON" $HERE/one_kernel.py "$1" "$2"
}

main() {
  ready
  piece 80 "decoding, and threads" "$PYTHON" $HERE/decode.py
  local case
  for case in matmul_4096_f16 attention_2048 layer_norm_4096 gelu; do
    counted $case native-cuda
  done
  for case in matmul_4096_f16 attention_2048 layer_norm_4096; do
    counted $case kernelyard
  done
  summary
}

main 2>&1 | tee "$OUT/e.log"
