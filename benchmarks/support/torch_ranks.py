# SPDX-License-Identifier: MIT
"""The ranks of benchmarks that compare with torch.distributed: processes of this host, joined by gloo."""

import os
import socket
import subprocess
import sys


def join():
    """Returns (torch, torch.distributed) of a rank, which has joined the others by gloo and computes with
    one thread."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.setdefault("USE_LIBUV", "0")  # Debian builds torch without it.
    dist.init_process_group("gloo")
    return torch, dist


def add_options(parser, calls):
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=calls, help="of a round")


def run(chosen, run_rank):
    """Calls `run_rank(chosen)` if this process is a rank. Otherwise starts `chosen.ranks` processes of the
    same program, and waits for them."""
    if "RANK" in os.environ:
        return run_rank(chosen)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = dict(os.environ, WORLD_SIZE=str(chosen.ranks), MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=str(port))
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(shared, RANK=str(rank)))
             for rank in range(chosen.ranks)]
    if any([rank.wait() for rank in ranks]):
        raise SystemExit("a rank failed")
