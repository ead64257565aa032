# SPDX-License-Identifier: MIT
"""Functions that the tests of the Python module share. They run by unittest or by pytest."""

import gc
import glob
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

import numpy


has_hosts = all(glob.glob(os.path.join(os.path.dirname(os.environ.get("PEERBUS_LIBRARY", "")),
                                       f"libpeerbus_{part}.so.*")) for part in ("tcp", "fabric"))
"""Whether libpeerbus has what groups of several hosts need."""


class _Forked:
    """A copy of this process that calls a function: it need not import anything again."""

    def __init__(self, function, environment):
        self._errors = tempfile.TemporaryFile("w+")
        self._pid = os.fork()
        if self._pid == 0:
            self._call(function, environment)

    def _call(self, function, environment):
        code = 1
        try:
            os.environ.clear()
            os.environ.update(environment)
            os.dup2(self._errors.fileno(), 2)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        gc.collect()  # What the function has left leaves the group in good order.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def communicate(self, timeout):
        end = time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.002)
        self.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        with self._errors as file:
            file.seek(0)
            return None, file.read()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds):
    """Lets this process be killed in so many seconds, whatever it does then."""
    signal.signal(signal.SIGALRM, lambda *_: die())
    signal.setitimer(signal.ITIMER_REAL, seconds)


def run(ranks, function, hosts=1, fresh=False, killed=(), **variables):
    """Calls `function()` on `ranks` processes that a launcher's variables describe. It is a function
    of a file that calls `main`. If there are several `hosts`, the ranks pretend to be on as many. The
    processes are copies of this one, which has made no communicator; `fresh`: new ones, which import
    everything again and end as interpreters do. The ranks `killed` must end by SIGKILL. `variables` are
    added to the environment, `{rank}` in them as the number of the rank."""
    if hosts > 1 and not has_hosts:
        return print(f"not tested: {function.__name__} on {hosts} hosts, as libpeerbus is built without networks")
    if hosts > 1:
        variables = dict({"PEERBUS_SECRET": os.urandom(8).hex(), "PEERBUS_PORT": free_port()}, **variables)
    job = f"{os.getpid()}-{function.__name__}-{ranks}"
    file = sys.modules[function.__module__].__file__
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        shared = {name: value for name, value in os.environ.items() if name != "PEERBUS_SECRET_FILE"}
        shared.update(variables, WORLD_SIZE=str(ranks), PEERBUS_JOB=job, TEST_FOLDER=folder)
        started = []
        for rank in range(ranks):
            own = {name: value.format(rank=rank) for name, value in variables.items()}
            if hosts > 1:
                own["PEERBUS_HOST"] = f"host {rank * hosts // ranks}"
            environment = dict(shared, RANK=str(rank), **own)
            started.append(subprocess.Popen([sys.executable, file, "--rank", function.__name__],
                                            env=environment, stderr=subprocess.PIPE, text=True)
                           if fresh else _Forked(function, environment))
        for rank, process in enumerate(started):
            _, errors = process.communicate(timeout=100)
            if process.returncode != (-signal.SIGKILL if rank in killed else 0):
                failures.append(f"rank {rank} ended with {process.returncode}:\n{errors}")
    if failures:
        raise AssertionError("\n".join(failures))


def free_port():
    """Returns a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def ended(*command, expected=0):
    """Runs a program of Python and returns what it printed."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100)
    printed = done.stdout + done.stderr
    assert done.returncode == expected, f"ended with {done.returncode}:\n{printed}"
    return printed


def raises(kind, fragment, call, *arguments, **options):
    """Requires that a call raises `kind` with a text that has `fragment`."""
    try:
        call(*arguments, **options)
    except kind as problem:
        assert fragment in str(problem), f"said '{problem}', expected it to say '{fragment}'"
    else:
        raise AssertionError(f"raised nothing, expected {kind.__name__}")


def bf16(values):
    """Returns the bits of `values`, which bfloat16 holds exactly."""
    return (numpy.asarray(values, numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def widened(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


needs_torch = unittest.skipUnless(
    importlib.util.find_spec("torch") is not None,  # Does not import it here.
    "torch is not installed (Debian: python3-torch)")
"""Marks a test as one that needs torch."""


def main(names):
    """Runs the tests of a file, or the function of a rank."""
    if sys.argv[1:2] == ["--rank"]:
        names[sys.argv[2]]()
    else:
        result = unittest.main(module="__main__", exit=False).result
        reasons = [reason for _, reason in result.skipped]
        for reason in sorted(set(reasons)):
            print(f"not tested: {reasons.count(reason)} of {result.testsRun} tests: {reason}")
        sys.exit(not result.wasSuccessful())
