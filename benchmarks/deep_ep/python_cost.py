#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What low-latency calls cost in Python, beside deep_ep_bench, which makes the same calls in C++.

With --hosts the ranks pretend to be on several hosts, which are joined by libfabric over the loopback
interface, and calls with relay are compared with those without, in Python.

Both run in turns. A sample is the slowest rank's time from a barrier on, for a dispatch and for a
combine from where experts write (zero_copy), fp8 rows. Prints for each the median of the runs'
medians, the least and the greatest of them, and the ratio of the first to the second. Every combined
element is compared before and after the timing.

    PEERBUS_LIBRARY=.../libpeerbus.so PYTHONPATH=examples/embed/python \\
        python3 benchmarks/deep_ep/python_cost.py build/release/benchmarks/deep_ep_bench
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

HIDDEN, TOP_K, EXPERTS = 7168, 8, 256


def samples_of(rank, size, tokens, iterations, job, hosts, relay):
    """Returns this rank's nanoseconds of each dispatch and combine, [2, iterations]."""
    import peerbus
    import peerbus.deep_ep as deep_ep
    if size <= os.cpu_count():
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    if hosts == 1:
        comm = peerbus.Communicator(rank=rank, size=size, port=1, job=job)
    else:
        comm = peerbus.Communicator(rank, size, address="127.0.0.1", port=29871, secret=job,
                                    host=f"host {rank * hosts // size}")
    buffer = deep_ep.Buffer(comm, relay=relay)
    draw = numpy.random.default_rng(rank)
    # Blocks of 128 whose greatest value is 448 have scale 1, and fp8 holds these values exactly.
    values = draw.integers(0, 16, [tokens, HIDDEN // 128, 128]).astype(numpy.float32)
    values[:, :, 0] = 448
    values = values.reshape(tokens, HIDDEN)
    x = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    ids = numpy.stack([draw.choice(EXPERTS, TOP_K, replace=False) for _ in range(tokens)])
    weights = numpy.tile(numpy.float32(2.0) ** -numpy.arange(TOP_K, dtype=numpy.float32), (tokens, 1))
    # E4M3: a sign, four bits of exponent with bias 7, three bits of fraction.
    bits = numpy.arange(128)
    exponent, fraction = bits >> 3, bits & 7
    e4m3 = numpy.where(exponent == 0, fraction / 8 * 2.0**-6,
                       (1 + fraction / 8) * 2.0**(exponent - 7.0)).astype(numpy.float32)
    # The factors add up to 255 / 128, so that the exact sum has a few bits more than bf16.
    exact = (values * numpy.float32(255 / 128)).view(numpy.uint32)
    expected = ((exact + 0x7fff + ((exact >> 16) & 1)) >> 16).astype(numpy.uint16)

    def dispatch():
        return buffer.low_latency_dispatch(x, ids, tokens, EXPERTS)

    def run_experts(received):
        """Writes the outputs, which are the decoded rows."""
        (rows, scales), counts, handle = received[:3]
        outputs = buffer.get_next_low_latency_combine_buffer(handle)
        for expert, count in enumerate(counts):
            decoded = e4m3[rows[expert, :count]] * numpy.repeat(scales[expert, :count], 128, axis=1)
            outputs[expert, :count] = decoded.view(numpy.uint32) >> 16

    def combine(received):
        handle = received[2]
        return buffer.low_latency_combine(buffer.get_next_low_latency_combine_buffer(handle), ids,
                                          weights, handle, zero_copy=True)[0]

    def check():
        received = dispatch()
        run_experts(received)
        # With relay the sum of each host is rounded to 8 bits, and then their sum.
        wrong = numpy.abs(combine(received).astype(numpy.int32) - expected)
        if wrong.max() > (0 if relay == "never" else 1):
            raise SystemExit(f"rank {rank}: a combined element is wrong")

    check()
    times = numpy.empty([2, iterations], numpy.int64)
    for i in range(-iterations // 10, iterations):
        comm.barrier()
        begin = time.perf_counter_ns()
        received = dispatch()
        dispatched = time.perf_counter_ns()
        comm.barrier()
        combining = time.perf_counter_ns()
        combine(received)
        times[:, max(i, 0)] = dispatched - begin, time.perf_counter_ns() - combining
    check()
    return times


def by_python(chosen, number, relay="never"):
    """Returns the medians of a run, in us."""
    job = f"python-cost-{os.getpid()}-{number}-{relay}"
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, f"{rank}.npy") for rank in range(chosen.ranks)]
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(chosen.ranks),
                                   str(chosen.tokens), str(chosen.iterations), job, file,
                                   str(chosen.hosts), relay])
                 for rank, file in enumerate(files)]
        if any([rank.wait() for rank in ranks]):
            raise SystemExit("a rank failed")
        slowest = numpy.max([numpy.load(file) for file in files], axis=0)
    return numpy.median(slowest, axis=1) / 1e3


def by_cpp(chosen):
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([chosen.program, "--alone", "--codec", "fp8", "--zero-copy", "--ranks",
                        str(chosen.ranks), "--tokens", str(chosen.tokens), "--iters",
                        str(chosen.iterations), "--json", file.name],
                       check=True, stdout=subprocess.DEVNULL)
        figures = json.load(file)
    return [figures[name]["p50"] for name in ("dispatch_us", "combine_us")]


def main():
    if sys.argv[1:2] == ["--rank"]:
        rank, size, tokens, iterations = map(int, sys.argv[2:6])
        numpy.save(sys.argv[7], samples_of(rank, size, tokens, iterations, sys.argv[6],
                                           int(sys.argv[8]), sys.argv[9]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="deep_ep_bench")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=1)
    chosen = parser.parse_args()
    sides = {"Python": by_python, "C++": lambda options, _: by_cpp(options)} if chosen.hosts == 1 else {
        "without relay": by_python, "with": lambda options, number: by_python(options, number, "always")}
    medians = {side: [] for side in sides}
    for number in range(chosen.runs):
        for side, measure in sides.items():
            medians[side].append(measure(chosen, number))
    print(f"{chosen.ranks} ranks on {chosen.hosts} hosts, {chosen.tokens} tokens, hidden {HIDDEN}, "
          f"top-{TOP_K} of {EXPERTS}, fp8, zero_copy, {chosen.runs} runs in turns, us")
    first, second = sides
    rows = {"dispatch": lambda run: run[0], "combine": lambda run: run[1], "both": sum}
    for name, part in rows.items():
        line, middle = f"{name:9}", {}
        for side, runs in medians.items():
            figures = [part(run) for run in runs]
            middle[side] = statistics.median(figures)
            line += f"  {side} {middle[side]:8.1f} ({min(figures):.1f} .. {max(figures):.1f})"
        print(f"{line}  ratio {middle[first] / middle[second]:.2f}")


if __name__ == "__main__":
    main()
