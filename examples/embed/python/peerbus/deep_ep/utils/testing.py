# SPDX-License-Identifier: MIT
"""The measurements of DeepEP's tests, by the clock of this process."""

import os
import statistics
import time


def _calls():
    return int(os.environ.get("PEERBUS_BENCH_CALLS", "10"))


def bench(fn, num_warmups=None, num_tests=None, post_fn=None):
    """Returns the (mean, least, greatest) seconds of `fn()`, over PEERBUS_BENCH_CALLS (10) calls
    after a fifth as many that are not measured. DeepEP's numbers are accepted and not used."""
    def timed():
        begun = time.perf_counter()
        fn()
        seconds = time.perf_counter() - begun
        if post_fn is not None:
            post_fn()
        return seconds

    for _ in range(1 + _calls() // 5):
        timed()
    times = [timed() for _ in range(_calls())]
    return statistics.fmean(times), min(times), max(times)


def bench_kineto(fn, kernel_names, num_tests=None, suppress_kineto_output=False, trace_path=None,
                 barrier_comm_profiling=False, num_kernels_per_period=1, **_):
    """Returns the mean seconds of `fn()`, once for each name of a kernel. There are no kernels: the
    whole call counts for each, in equal parts if a kernel is named several times in a period."""
    mean = bench(fn)[0]
    parts = [mean / num_kernels_per_period] * num_kernels_per_period
    of_kernel = mean if num_kernels_per_period == 1 else parts
    return tuple(of_kernel for _ in kernel_names) if isinstance(kernel_names, tuple) else of_kernel
