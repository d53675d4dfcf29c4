#!/bin/sh
# gristmill's server beside llama.cpp's, over HTTP, on one model: the figures of README.md's
# table of servers.
#
#   make peers
#   benchmarks/serve.sh OUT_NAME MODEL.gguf [options of `gristmill bench serve`]
#
# Writes OUT_NAME.json, .md and .html. Without options: --preset cpu-article. Both servers are
# started here and wait idle while the other is measured. PYTHON, PEER_PYTHON and THREADS (2).
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
peer=${PEER_PYTHON:-$here/.peers/bin/python}
threads=${THREADS:-2}
out=$1
model=$2
shift 2
[ $# -gt 0 ] || set -- --preset cpu-article
"$python" -m gristmill serve "$model" --port 18401 --threads "$threads" >"$out.log" 2>&1 &
ours=$!
"$peer" "$here/benchmarks/llamacpp_server.py" "$model" 18402 "$threads" >>"$out.log" 2>&1 &
theirs=$!
trap 'kill $ours $theirs 2>/dev/null || true' EXIT
for port in 18401 18402; do
  tries=0
  until "$python" -c "import httpx; httpx.get('http://127.0.0.1:$port/health').raise_for_status()" 2>/dev/null; do
    tries=$((tries + 1))
    kill -0 "$ours" && kill -0 "$theirs" && [ $tries -lt 120 ] || { echo "the server on port $port does not start: see $out.log" >&2; exit 1; }
    sleep 1
  done
done
"$python" -m gristmill bench serve gristmill=http://127.0.0.1:18401 \
  llama.cpp=http://127.0.0.1:18402 --pid "$ours" --pid "$theirs" \
  --json "$out.json" --md "$out.md" --html "$out.html" "$@"
