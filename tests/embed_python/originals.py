# SPDX-License-Identifier: MIT
"""Runs DeepEP's own tests unchanged by `peerbus.deep_ep.run`, at small sizes:

    python3 originals.py CHECKOUT [part of a file's name...]

CHECKOUT has DeepEP 2.1.0. PEERBUS_PYTHON is the interpreter whose torch is used, and
PEERBUS_ORIGINALS_RANKS the numbers of ranks, by default "2 4 8". Prints a line for each file, and the
end of the output of those that fail. Nothing is timed: PEERBUS_BENCH_CALLS is 0 unless it is set.
"""

import os
import shlex
import socket
import subprocess
import sys
import time

LOW_LATENCY = "--num-tokens 16 --hidden 512 --num-topk 4 --num-experts 16"
ELASTIC = "--num-tokens 32 --hidden 512 --num-topk 4 --num-experts 16"
ENGRAM = "--num-entries 512 --num-tokens 32 --num-entries-per-token 4"
# The file, its options, the most ranks (test_agrs.py keeps 1 GiB for each pair of ranks) and the least:
# with --shrink-test ranks 1, 3 and 5 leave.
FILES = (("legacy/test_low_latency.py", LOW_LATENCY, 8),
         ("legacy/test_low_latency.py", LOW_LATENCY + " --use-logfmt", 8),
         ("legacy/test_low_latency.py", LOW_LATENCY + " --shrink-test", 8, 6),
         ("legacy/test_intranode.py", "--num-tokens 64 --hidden 512 --num-topk 4 --num-experts 16", 8),
         ("elastic/test_ep.py", ELASTIC, 8),
         ("elastic/test_ep.py", ELASTIC + " --test-first-only --do-cpu-sync 0 --masked-ratio 0.3", 8),
         ("elastic/test_ep.py", ELASTIC + " --test-first-only --allow-multiple-reduction 0", 8),
         ("elastic/test_ep.py", ELASTIC + " --test-first-only --deterministic --unbalanced-ratio 2"
                                          " --precise-unbalanced-ratio", 8),
         ("elastic/test_barrier.py", "", 8),
         ("elastic/test_engram.py", ENGRAM, 8),
         ("elastic/test_engram.py", ENGRAM + " --use-fp8", 8),
         ("elastic/test_pp.py", "--num-tokens 16 --hidden 512", 8),
         ("elastic/test_agrs.py", "--num-stress-iterations 1 --num-max-inflight-agrs 2", 2))
LIMIT = 900  # Seconds for a file.


def free_port():
    """Returns a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def main():
    checkout, parts = os.path.abspath(sys.argv[1]), sys.argv[2:]
    python = shlex.split(os.environ.get("PEERBUS_PYTHON", sys.executable))
    asked = subprocess.run([*python, "-c", "import torch; print(torch.__version__)"],
                           capture_output=True, text=True)
    if asked.returncode != 0:
        sys.exit(f"{shlex.join(python)} has no torch:\n{asked.stderr}")
    torch = asked.stdout.strip()
    failed = 0
    for file, options, most, *least in FILES:
        path = os.path.join(checkout, "tests", file)
        if parts and not any(part in file for part in parts):
            continue
        for ranks in map(int, os.environ.get("PEERBUS_ORIGINALS_RANKS", "2 4 8").split()):
            if ranks > most or ranks < max(least, default=1):
                continue
            environment = dict(os.environ, MASTER_PORT=free_port())
            environment.setdefault("OMP_NUM_THREADS", "1")
            environment.setdefault("PEERBUS_BENCH_CALLS", "0")
            begun = time.monotonic()
            ended = subprocess.run(
                [*python, "-m", "peerbus.deep_ep.run", "--timeout", str(LIMIT), path,
                 "--num-processes", str(ranks), *options.split()],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            failed += ended.returncode != 0
            print(f"original: {file} {options}, torch {torch}, {ranks} ranks: "
                  f"{'FAILED' if ended.returncode else 'passed'} "
                  f"({time.monotonic() - begun:.0f} s)".replace(" ,", ","), flush=True)
            if ended.returncode != 0:
                print("    " + "\n    ".join(ended.stdout.splitlines()[-25:]), flush=True)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
