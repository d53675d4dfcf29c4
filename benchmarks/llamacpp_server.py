"""llama.cpp's own server on a port of this machine, from the ``xllamacpp`` package.

    PEERS/bin/python benchmarks/llamacpp_server.py MODEL.gguf PORT THREADS

Runs in the peers' environment (`make peers`), until it is ended.
"""

from __future__ import annotations

import os
import signal
import sys

import xllamacpp  # pyright: ignore[reportMissingImports]

SLOTS, CONTEXT = 8, 2304


def main() -> None:
    """Serve."""
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.port = int(sys.argv[2])  # of 127.0.0.1, unless hostnames says otherwise
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT
    params.kv_unified = False  # each slot attends to its own cache only: faster
    params.cache_ram_mib = 0
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # its threads would be waited for


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
