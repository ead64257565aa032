#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The calls of DeepEP from Python beside torch.distributed's gloo, which moves the same bytes.

Each rank sends fp8 rows with scales to the experts and bfloat16 outputs home: peerbus by
low_latency_dispatch and low_latency_combine (zero_copy), which also quantise and add up; gloo by two
all_to_all_single between buffers that are packed already; `copy` by a copy of as many bytes within
the process, which is the least that an operation does that fills a receive buffer. The three run in
turns. Prints the median wall time of the slowest rank, and the processor time of all ranks divided
by the cores, below which the wall time cannot fall. Needs torch (Debian: python3-torch).

    PEERBUS_LIBRARY=.../libpeerbus.so PYTHONPATH=examples/embed/python \\
        /usr/bin/python3 benchmarks/deep_ep/gloo.py
"""

import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import torch_ranks

HIDDEN, TOP_K, EXPERTS = 7168, 8, 256


def run_rank(chosen):
    """Measures as one rank. Rank 0 prints."""
    tokens, calls = chosen.tokens, chosen.calls
    import peerbus.deep_ep as deep_ep
    torch, dist = torch_ranks.join()
    rank, size = dist.get_rank(), dist.get_world_size()
    buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True)
    torch.manual_seed(rank)
    x = torch.randn(tokens, HIDDEN).to(torch.bfloat16)
    ids = torch.rand(tokens, EXPERTS).topk(TOP_K, dim=1).indices
    weights = torch.rand(tokens, TOP_K)
    sent = [int((ids // (EXPERTS // size) == peer).sum()) for peer in range(size)]
    table = [torch.zeros(size, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(table, torch.tensor(sent))
    received = [int(row[rank]) for row in table]

    def rows(count, nbytes):
        return torch.ones(count, nbytes, dtype=torch.uint8)

    coded, plain = HIDDEN + HIDDEN // 128 * 4, 2 * HIDDEN
    there = rows(sum(sent), coded), rows(sum(received), coded)
    back = rows(sum(received), plain), rows(sum(sent), plain)

    def by_peerbus():
        _, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, tokens, EXPERTS)
        outputs = buffer.get_next_low_latency_combine_buffer(handle)
        buffer.low_latency_combine(outputs, ids, weights, handle, zero_copy=True)

    def by_gloo():
        dist.all_to_all_single(there[1], there[0], received, sent)
        dist.all_to_all_single(back[1], back[0], sent, received)

    def by_copy():
        for source, target in (there, back):
            target[:len(source)] = source[:len(target)]

    sides = {"peerbus": by_peerbus, "gloo": by_gloo, "copy": by_copy}
    figures = {name: [] for name in sides}
    for number in range(-1, chosen.rounds):
        for name, call in sides.items():
            buffer.comm.barrier()
            wall, used = time.perf_counter(), time.process_time()
            for _ in range(calls):
                call()
            own = torch.tensor([time.perf_counter() - wall, time.process_time() - used])
            slowest, total = own.clone(), own.clone()
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            dist.all_reduce(total)
            if number >= 0:  # The first round makes the memory.
                figures[name].append((slowest[0].item(), total[1].item()))
    if rank != 0:
        return
    cores = min(size, len(os.sched_getaffinity(0)))
    middle = {}
    for name, samples in figures.items():
        wall, used = ([sample[i] / calls * 1e3 for sample in samples] for i in range(2))
        middle[name] = statistics.median(wall), statistics.median(used) / cores
        print(f"{name:8} {middle[name][0]:7.2f} ms ({min(wall):.2f} to {max(wall):.2f}), "
              f"processors {middle[name][1]:.2f} ms")
    for name in ("peerbus", "copy"):
        print(f"gloo / {name}: {middle['gloo'][0] / middle[name][0]:.1f}, by processor time "
              f"{middle['gloo'][1] / middle[name][1]:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    torch_ranks.add_options(parser, calls=20)
    torch_ranks.run(parser.parse_args(), run_rank)


if __name__ == "__main__":
    main()
