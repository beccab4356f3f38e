#!/usr/bin/env bash
# All correctness tests on the GPU and the main benchmarks, in under eight minutes:
#
#     bench/gpu_check.sh                      # on a machine with a GPU; files in ${OUT:-bench-out}
#     bench/gpu_check.sh --dry-run            # the same commands on the CPU, at tiny sizes
#
# Every step runs whatever became of the others. Prints a short table, then one line of JSON; fails if a step did.
set -u
cd "$(dirname "$0")/.." || exit 1

DEVICE=cuda DTYPE=bfloat16 SIZE=() MODEL=small ROUNDS=5 PATIENCE=1
if [ "${1:-}" = "--dry-run" ]; then
    DEVICE=cpu DTYPE=float32 SIZE=(--quick) MODEL=quickstart ROUNDS=1 PATIENCE=10
elif [ $# -gt 0 ]; then
    echo "usage: bench/gpu_check.sh [--dry-run]" >&2
    exit 2
fi
OUT=${OUT:-bench-out}
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd)
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export SPROUT_TEST_DEVICE=$DEVICE CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
unset TRITON_INTERPRET

# A checkout that was not installed still runs, without its native kernels: the folders are the package.
if ! "$PYTHON" -c 'import sprout.kernels' 2>/dev/null; then
    PACKAGE=$(mktemp -d)
    mkdir "$PACKAGE/sprout"
    for folder in kernels engine seed bench; do ln -s "$PWD/$folder" "$PACKAGE/sprout/$folder"; done
    export PYTHONPATH="$PACKAGE${PYTHONPATH:+:$PYTHONPATH}"
fi

STEPS=()
step() { # name, seconds allowed, command...: its output goes to NAME.log, what became of it into STEPS
    local name=$1 limit=$(($2 * PATIENCE)) start=$SECONDS code=0
    shift 2
    echo "== $name: $*"
    timeout "$limit" "$@" >"$OUT/$name.log" 2>&1 || code=$?
    STEPS+=("$name=$code=$((SECONDS - start))")
    if [ "$code" -ne 0 ]; then
        echo "$name FAILED with code $code (124: out of time); the end of $OUT/$name.log:"
        tail -n 25 "$OUT/$name.log"
    fi
}
sprout() { # a step that runs a command of ours
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$PYTHON" -c 'from sprout.seed.cli import main; main()' "$@"
}

[ "$DEVICE" = cuda ] && step nvidia-smi 20 nvidia-smi
sprout doctor 60 doctor
step tests 170 "$PYTHON" -m pytest -q tests/kernels/cuda tests/engine/test_reference.py --tb=short -p no:cacheprovider
sprout kernels 150 bench kernels --device "$DEVICE" --dtype "$DTYPE" --rounds "$ROUNDS" --no-compile \
    --out "$OUT/kernels" --json ${SIZE[@]+"${SIZE[@]}"}
sprout pair 50 bench pair --device "$DEVICE" --model "$MODEL" --rounds "$ROUNDS" --backend all --json
sprout generate 50 bench generate --device "$DEVICE" --rounds "$ROUNDS" --backend all --json

"$PYTHON" bench/gpu_check.py "$OUT" "${STEPS[@]}"
