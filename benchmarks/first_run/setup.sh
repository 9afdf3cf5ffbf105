# Sourced by a.sh to e.sh: where results go, what is installed, and pieces that never stop a script.
# MINUTES: that the script has in all.
# shellcheck shell=bash
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
export PYTHONUNBUFFERED=1
export OUT=${OUT:-$PWD/gpu-results}
export PYTHONPATH=$PWD/.gpu-site${PYTHONPATH:+:$PYTHONPATH}
HERE=benchmarks/first_run
PYTHON=${PYTHON:-python3}
DEADLINE=$((SECONDS + 60 * ${MINUTES:-10}))
mkdir -p "$OUT"
FAILED=()

# allowed SECONDS: so many, or as many as are left.
allowed() {
  local left=$((DEADLINE - SECONDS - 10))
  echo $(($1 < left ? $1 : left))
}

# piece SECONDS NAME COMMAND...: run a command for at most so long, and go on whatever comes of it.
piece() {
  local seconds name=$2 began=$SECONDS status
  seconds=$(allowed "$1")
  shift 2
  echo "=== $name"
  if ((seconds < 5)); then
    echo "--- $name: LEFT OUT, no time is left" && FAILED+=("$name: left out")
    return 0
  fi
  timeout --kill-after=5 "$seconds" "$@"
  status=$?
  case $status in
    0) echo "--- $name: well, $((SECONDS - began)) s" ;;
    124 | 137) echo "--- $name: NOT DONE in $seconds s" && FAILED+=("$name: not done in $seconds s") ;;
    *) echo "--- $name: FAILED with $status, $((SECONDS - began)) s" && FAILED+=("$name: status $status") ;;
  esac
}

# summary: what failed; the status of the script.
summary() {
  echo "=== ${#FAILED[@]} pieces failed"
  ((${#FAILED[@]} == 0)) || printf '%s\n' "${FAILED[@]}"
  return $((${#FAILED[@]} > 0))
}

# A folder of packages, from wheels/ and this checkout, without a network; again where the sources changed.
install_packages() {
  local options=(--quiet --no-index --no-deps --upgrade --no-warn-conflicts --target .gpu-site)
  if [[ -e .gpu-site/installed && -z $(find core plugins -name '*.py' -newer .gpu-site/installed -print -quit) ]]; then
    return 0
  fi
  compgen -G 'wheels/*.whl' >/dev/null || { echo "wheels/ is empty: make gpu-wheels fills it, where there is a network" && return 1; }
  timeout 120 "$PYTHON" -m pip install "${options[@]}" wheels/*.whl || return
  local plugins=() each
  for each in plugins/*/pyproject.toml; do
    [[ $each == */_template/* ]] || plugins+=("./$(dirname "$each")")
  done
  timeout 120 "$PYTHON" -m pip install "${options[@]}" --no-build-isolation . "${plugins[@]}" && touch .gpu-site/installed
}

# NVRTC of CUDA 13.0 finds its own second library only along the loader's path.
use_wheels_of_nvidia() {
  timeout 30 "$PYTHON" $HERE/compiler.py && return 0
  local folder
  folder=$("$PYTHON" -c 'import nvidia; print(list(nvidia.__path__)[0] + "/cu13/lib")' 2>/dev/null) || return 1
  export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  echo "again with LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
  timeout 30 "$PYTHON" $HERE/compiler.py
}

# ready: what every call begins with. Its status is no reason to stop.
ready() {
  local began=$SECONDS
  echo "=== install"
  install_packages && use_wheels_of_nvidia && echo "--- install: well, $((SECONDS - began)) s" && return 0
  echo "--- install: FAILED, $((SECONDS - began)) s" && FAILED+=("install")
}
