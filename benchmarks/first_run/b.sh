#!/usr/bin/env bash
# Call B, 9 minutes: all tests, plugin by plugin; of CUTLASS those without measuring tiles, which compile six times as much.
MINUTES=9
# shellcheck source=setup.sh
source "$(dirname "$0")/setup.sh"

# suite SECONDS PLUGIN OPTION...: pytest is interrupted a little before, so that it still reports what it had.
suite() {
  local seconds plugin=$2
  seconds=$(allowed "$1")
  shift 2
  piece "$seconds" "$plugin" "$PYTHON" tests/gpu_suite.py "plugins/$plugin/tests" --results "$OUT" \
    --jobs "${GPU_JOBS:-12}" --seconds $((seconds - 25)) "$@"
}

main() {
  ready
  suite 180 native-cuda
  suite 80 cublas
  suite 100 cudnn
  suite 140 cutlass -k "not True"
  summary
}

main 2>&1 | tee "$OUT/b.log"
