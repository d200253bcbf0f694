#!/usr/bin/env bash
# One session on a GPU machine: benchmarks/gpu_session.sh STEP...
#
# In the order of what they are worth:
#
#   look       what there is: do this first
#   tests      the tests marked gpu
#   graphs     ONNX files (PyTorch, CPU)
#   resnet50   its FP16 and INT8 engines, two minutes or three
#   rates      rates of TensorRT, answers compared; LANES=3 for other lanes than trtfuse's four
#   user       trtfuse doctor, build, inspect, infer, verify, bench, as typed; needs FACES, the folder
#              that `gpu_faces.py prepare` made of the photographs on a machine that has them
#   recovery   a killed worker
#   scaling    several GPUs with DEVICES=1,2,4; else workers on the one, of which one is killed, and
#              one slowed; SCALING has other flags for it. Needs the TORCH step's Python
#   instances  workers against lanes
#   torch      rates of PyTorch; without it, those of the last result file stay
#   unet       its FP16 and INT8 engines; `rates` after it adds them
#   calibrator TensorRT's own INT8 calibrator against its ranges in Q/DQ pairs (4 minutes)
#   fp32       engines of both in FP32, for their answers alone
#   table      the result files: last, whatever there was time for
#
# Where all of them together may take TOTAL seconds, a step's limit is what is left of it, and the
# logs and results are packed in time:
#
#   TOTAL=290 PYTHON=trtpy OUT=... benchmarks/gpu_session.sh look tests+graphs resnet50 table
#
# A builder times kernels: run one alone, or with what computes on the CPU. That device memory stays
# the same over 10,000 batches is one of the tests.
#
# "a+b" runs two steps at the same time: tests+graphs, say, where one computes on the CPU alone.
#
# PYTHON runs TensorRT (default: python; it needs what `pip install '.[gpu]' psutil pytest` brings,
# ONNX Runtime and filelock among it, for user and scaling), TORCH runs PyTorch (default: python3),
# WORK keeps what one step makes for the next. Logs and results lie in WORK/out and, if OUT is set, packed in
# OUT/out.tgz. Every step has its own time limit and writes as it goes; one that fails does not stop
# the next.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python} TORCH=${TORCH:-python3} WORK=${WORK:-/tmp/trtfuse-bench}
LOGS=$WORK/out
mkdir -p "$LOGS"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# The settings of pyproject.toml, without what asks for plugins that need not be there.
cat > "$WORK/pytest.ini" <<'INI'
[pytest]
addopts = --strict-markers -ra -p no:cacheprovider
filterwarnings =
    error
    ignore:Use del obj instead:DeprecationWarning
faulthandler_timeout = 60
markers =
    gpu: needs TensorRT and a device
    slow: minutes; not part of the default run
INI

limited() { # seconds, log, command...
  local limit=$1 log=$LOGS/${2// /}.log begun=$SECONDS left=$((${TOTAL:-86400} - SECONDS - 12)); shift 2
  if ((left < 5)); then echo "== $(basename "$log" .log): no time left"; return; fi
  ((limit = left < limit ? left : limit))
  timeout --kill-after=10 "$limit" "$@" > "$log" 2>&1
  local code=$?
  echo "== $(basename "$log" .log): exit $code, $((SECONDS - begun)) s"
  tail -n 40 "$log"
}

bench() { # seconds, step, Python, flags...
  local limit=$1 step=$2 python=$3; shift 3
  limited "$limit" "$step${*:+ $*}" "$python" benchmarks/vs_pytorch.py "$step" "$WORK" \
    --results "$LOGS" "$@"
}

calibrator() { # seconds, step, python
  limited "$1" "calibrator-$2" "$3" benchmarks/gpu_calibrator.py "$2" "$WORK" --results "$LOGS"
}

# On one GPU what matters is workers that die and slow ones; else everything.
scaling=
[ "${DEVICES:-1}" != 1 ] || scaling="--instances 2,3 --models resnet50 --precisions fp16 \
  --parts decoded,disturbed,bound,folder --pictures 2048 --seconds 6"

run() {
  case $1 in
    look) limited 60 look "$PYTHON" -c 'from trtfuse.gpu import devices, tensorrt
print(devices.scan(), tensorrt.installed("tensorrt"))' ;;
    tests) limited 400 tests "$PYTHON" -m pytest -c "$WORK/pytest.ini" --rootdir . -m gpu \
             tests/gpu -v --durations=10 --junitxml "$LOGS/tests.xml" ;;
    graphs) bench 300 graphs "$TORCH" ;;
    torch) bench 420 torch "$TORCH" ;;
    resnet50 | unet)
      # Two commands: the second has its own limit, and the first its own log.
      bench 290 engines "$PYTHON" --net "$1" --precision fp16
      bench 290 engines "$PYTHON" --net "$1" --precision int8 ;;
    fp32) bench 290 engines "$PYTHON" --precision fp32 ;;
    instances) limited 400 instances "$PYTHON" benchmarks/gpu_instances.py "$WORK" --results "$LOGS" ;;
    rates) bench 420 rates "$PYTHON" ${LANES:+--lanes "$LANES"} ;;
    recovery) limited 120 recovery "$PYTHON" benchmarks/gpu_recovery.py "$WORK" --results "$LOGS" ;;
    calibrator) calibrator 150 graphs "$TORCH"; calibrator 400 engines "$PYTHON"
                calibrator 100 rates "$PYTHON" ;;
    user) mkdir -p "$WORK/faces"; cp -rn "${FACES:-$WORK/faces}"/. "$WORK/faces"/ 2>/dev/null
          limited 420 user "$PYTHON" benchmarks/gpu_faces.py run "$WORK" --results "$LOGS" \
            --logs "$LOGS" ;;
    scaling)
      # What the engines of resnet50 were timed with does for these too.
      mkdir -p "$WORK/scaling/engines" "$WORK/timings"
      [ -e "$WORK/scaling/engines/.timings" ] || ln -s "$WORK/timings" "$WORK/scaling/engines/.timings"
      # shellcheck disable=SC2086 # several flags
      limited 590 scaling "$PYTHON" benchmarks/scaling.py "$WORK/scaling" \
        --devices "${DEVICES:-1}" --torch "$TORCH" --results "$LOGS" ${SCALING-$scaling} ;;
    table) bench 60 table "$PYTHON" ;;
    *) echo "gpu_session.sh: no step $1" >&2 ;;
  esac
}

keep() {
  cp "$WORK"/*.json "$LOGS"/ 2>/dev/null
  [ -z "${OUT:-}" ] || tar -czf "$OUT/out.tgz" -C "$WORK" out
}

for steps in "$@"; do
  for one in ${steps//+/ }; do run "$one" & done
  wait
  keep
done
