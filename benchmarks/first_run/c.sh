#!/usr/bin/env bash
# Call C, 8 minutes: compute-sanitizer on small kernels of every kind, and kernels alone beside the libraries.
MINUTES=8
# shellcheck source=setup.sh
source "$(dirname "$0")/setup.sh"

# sanitized SECONDS TOOL KIND
sanitized() {
  piece "$1" "$2 of $3 kernels" compute-sanitizer --tool "$2" --error-exitcode 9 "$PYTHON" $HERE/small_kernels.py "$3"
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
  piece 200 kernels "$PYTHON" benchmarks/gpu.py --kernels --minutes 3 --results "$OUT" \
    --engines native-cuda kernelyard cublaslt cublaslt-tuned cudnn eager
  summary
}

main 2>&1 | tee "$OUT/c.log"
