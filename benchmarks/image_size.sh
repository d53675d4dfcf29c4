#!/usr/bin/env bash
# How large an image's own content is: the wheel and all it needs, installed into a bare folder.
#   benchmarks/image_size.sh [WHEEL]      (without one, it is built: some minutes)
# Debian's base and its python3 come on top: about 115 MB. Fails above LIMIT megabytes (350).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
limit=${LIMIT:-350}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
wheel=${1:-}
if [ -z "$wheel" ]; then
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$place/wheel" .
  wheel=$(echo "$place"/wheel/*.whl)
fi
"$python" -m pip install --quiet --no-compile --target "$place/tree" "$wheel" pip
size() { du -sm --apparent-size "$1" | cut -f1; }
echo "the largest parts, in MB:"
du -sm --apparent-size "$place"/tree/* | sort -rn | head -12 | sed "s|$place/tree/||"
total=$(size "$place/tree")
echo "in all: $total MB (limit $limit)"
[ "$total" -le "$limit" ]
