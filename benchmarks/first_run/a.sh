#!/usr/bin/env bash
# Call A, 5 minutes: what this machine is, and one test of each kind.
MINUTES=5
# shellcheck source=setup.sh
source "$(dirname "$0")/setup.sh"

facts() {
  nvidia-smi || echo "no nvidia-smi"
  which make g++ nvcc cuobjdump ncu compute-sanitizer
  echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
  ldconfig -p | grep -E "nvrtc|cublasLt|cudnn|libcuda\." || echo "the loader knows no library of CUDA"
  "$PYTHON" --version
  "$PYTHON" -m pip list 2>/dev/null | grep -iE "torch|nvidia|cuda|numpy|pytest|xdist|hypothesis|onnx|triton"
  nproc && free -g | head -2
}

main() {
  piece 60 "the machine" bash -c "$(declare -f facts); PYTHON=$PYTHON facts"
  ready
  piece 60 doctor "$PYTHON" -c "from kernelyard.cli.main import main; main()" doctor
  piece 60 "device properties" "$PYTHON" $HERE/properties.py "$OUT/device.json"
  piece 90 native-cuda "$PYTHON" tests/gpu_suite.py plugins/native-cuda/tests --results "$OUT" --jobs 1 \
    -k "programs or artifacts or torch or measuring"
  piece 50 cublas "$PYTHON" tests/gpu_suite.py plugins/cublas/tests --results "$OUT" --jobs 1 -k "residuals or many_sizes"
  piece 60 cudnn "$PYTHON" tests/gpu_suite.py plugins/cudnn/tests --results "$OUT" --jobs 1 -k "relu or causal or layer"
  summary
}

main 2>&1 | tee "$OUT/a.log"
