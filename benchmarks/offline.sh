#!/bin/sh
# The engine beside llama.cpp, on every model given: the figures of README.md's speed table.
#
#   make peers
#   benchmarks/offline.sh OUT_DIR MODEL.gguf...
#
# For each model OUT_DIR/<model>.json, .md and .html; ratios.py makes one table of them.
# PYTHON and PEER_PYTHON say which Pythons; ARGS is handed on (--threads 2 --rounds 9).
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
peer=${PEER_PYTHON:-$here/.peers/bin/python}
out=$1
shift
mkdir -p "$out"
for model in "$@"; do
  name=$out/$(basename "$model" .gguf)
  "$python" -m gristmill bench offline "$model" --peer llama.cpp --peer-python "$peer" \
    --profile --json "$name.json" --md "$name.md" --html "$name.html" ${ARGS:-}
done
"$python" "$here/benchmarks/ratios.py" "$out"/*.json
