# SPDX-License-Identifier: MIT
"""The measurements of DeepEP's tests, by the clock of this process."""

import os
import statistics
import sys
import time


def _calls():
    return int(os.environ.get("PEERBUS_BENCH_CALLS", "10"))


def flush_l2_cache(enabled=True):
    """Writes 256 MB, so that caches hold nothing else, if `enabled`."""
    import torch
    if enabled:
        torch.empty(1 << 26, dtype=torch.int32).zero_()


def bench(fn, num_warmups=50, num_tests=50, post_fn=None, flush_l2=True):
    """Returns the (mean, least, greatest) seconds of `fn()`, over PEERBUS_BENCH_CALLS (10) calls
    after a fifth as many that are not measured. DeepEP's numbers are accepted and not used, and caches
    are not flushed. For 0 calls the result is 1 second."""
    def timed():
        begun = time.perf_counter()
        fn()
        seconds = time.perf_counter() - begun
        if post_fn is not None:
            post_fn()
        return seconds

    calls = _calls()
    if calls == 0:
        return 1.0, 1.0, 1.0
    for _ in range(1 + calls // 5):
        timed()
    times = [timed() for _ in range(calls)]
    return statistics.fmean(times), min(times), max(times)


def bench_kineto(fn, kernel_names, num_tests=30, suppress_kineto_output=False, trace_path=None,
                 flush_l2=True, barrier_comm_profiling=False, num_kernels_per_period=1,
                 barrier=None):
    """Returns the mean seconds of `fn()`, once for each name of a kernel. There are no kernels: the
    whole call counts for each, in equal parts if a kernel is named several times in a period, and no
    trace is written."""
    mean = bench(fn)[0]
    parts = [mean / num_kernels_per_period] * num_kernels_per_period
    of_kernel = mean if num_kernels_per_period == 1 else parts
    return tuple(of_kernel for _ in kernel_names) if isinstance(kernel_names, tuple) else of_kernel


class empty_suppress:
    """A `with` block that changes nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class suppress_stdout_stderr:
    """A `with` block whose output, that of C and of Python, goes nowhere."""

    def __enter__(self):
        self._python = sys.stdout, sys.stderr
        for stream in self._python:
            stream.flush()
        self._nowhere = open(os.devnull, "w")
        self._kept = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in self._kept:
            os.dup2(self._nowhere.fileno(), number)
        sys.stdout = sys.stderr = self._nowhere
        return self

    def __exit__(self, *_):
        self._nowhere.flush()
        sys.stdout, sys.stderr = self._python
        for number, kept in self._kept:
            os.dup2(kept, number)
            os.close(kept)
        self._nowhere.close()
