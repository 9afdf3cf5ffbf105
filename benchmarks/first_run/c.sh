#!/usr/bin/env bash
# Call C, 8 minutes: compute-sanitizer on small kernels of every kind, and kernels alone beside the libraries.
MINUTES=8
# shellcheck source=setup.sh
source "$(dirname "$0")/setup.sh"

# sanitized SECONDS TOOL KIND
sanitized() {
  piece "$1" "$2 of $3 kernels" compute-sanitizer --tool "$2" --error-exitcode 9 "$PYTHON" $HERE/small_kernels.py "$3"
}

# kernels SECONDS NAME...: cases in a process of their own; after a kernel that faults nothing runs in its process.
kernels() {
  local seconds=$1
  shift
  piece "$seconds" "kernels: $*" "$PYTHON" benchmarks/gpu.py --kernels "$@" --minutes 1 --rounds 4 --burst 0.04 --results "$OUT" \
    --engines native-cuda kernelyard cublaslt cublaslt-tuned cudnn eager
}

main() {
  ready
  piece 60 "small generated kernels" "$PYTHON" $HERE/small_kernels.py generated
  piece 90 "small kernels of CUTLASS" "$PYTHON" $HERE/small_kernels.py cutlass # compiled now, from the cache below
  sanitized 40 memcheck generated
  sanitized 40 racecheck generated
  sanitized 30 initcheck generated
  sanitized 40 memcheck cutlass
  sanitized 40 racecheck cutlass
  kernels 75 negative_256mib matmul_8192_bf16 matmul_4096_f16 matmul_4096_f16_transposed
  kernels 60 attention_2048 attention_8192 attention_2048_bf16
  kernels 60 gemv_transposed gemv gemv_batch8 gemv_batch16
  kernels 60 conv3x3_64 conv3x3_64_last conv3x3_256_last
  kernels 75 layer_norm_4096 layer_norm_768 softmax_2048 softmax_50257 add gelu argmax_50257 argmax_50257_batch128 sum_of_rows
  summary
}

main 2>&1 | tee "$OUT/c.log"
