# SPDX-License-Identifier: MIT
"""Tests of the example generate_text.py: it runs, and fails where ranks compute something else."""

import argparse
import contextlib
import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import peerbus
from ranks import ended, main, needs_torch

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(peerbus.__file__)), "generate_text.py")
SMALL = ["--steps", "3", "--tokens", "6"]


def end_with_parent():
    """Lets the kernel end this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def namespaces():
    """Returns a process that keeps namespaces of a host, or None if they cannot be made."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "hostname"))):
        return None
    keeper = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "cat"], stdin=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
    own = os.readlink("/proc/self/ns/net")
    while keeper.poll() is None:  # Until it has them; it ends if it may not.
        if os.readlink(f"/proc/{keeper.pid}/ns/net") != own:
            return keeper
        time.sleep(0.01)
    return None


def entering(host):
    return ["nsenter", "--target", str(host.pid), "--net", "--uts", "--mount"]


def within(host, *command):
    subprocess.run([*entering(host), *command], check=True)


@needs_torch
class Tests(unittest.TestCase):
    def forked(self, ranks):
        """Runs the example on copies of this process, which need not import torch again."""
        import generate_text
        options = argparse.Namespace(ranks=ranks, steps=3, tokens=6, seed=5)
        with tempfile.TemporaryDirectory() as folder:
            generate_text.torch.multiprocessing.start_processes(
                generate_text.run_rank, (options, f"file://{folder}/ranks"), ranks,
                start_method="fork")

    def test_program(self):
        self.assertIn("2 ranks and one process agree: 0 of 6 texts differ",
                      ended(EXAMPLE, "--ranks", "2", *SMALL))

    def test_launched(self):
        """A launcher starts the ranks, and the checker sees the four calls."""
        text = ended("-m", "peerbus.deep_ep.check", "-n", "2", "--target", "unrestricted",
                     EXAMPLE, *SMALL)
        for words in ("2 ranks and one process agree", "[4] ", "unrestricted (peerbus, on CPUs): takes every call"):
            self.assertIn(words, text)

    def test_two_hosts(self):
        """Two hosts of two ranks, as torchrun starts them: network namespaces with names and mounts of their
        own, which a pair of virtual interfaces joins."""
        hosts = [namespaces() for _ in range(2)]
        try:
            if None in hosts:
                self.skipTest("no namespaces can be made here")
            names = [f"pbt{os.getpid() % 100000}{side}" for side in "ab"]
            joined = subprocess.run(
                ["ip", "link", "add", names[0], "netns", str(hosts[0].pid), "type", "veth", "peer",
                 "name", names[1], "netns", str(hosts[1].pid)], capture_output=True, text=True)
            if joined.returncode != 0:
                self.skipTest(f"no virtual interfaces can be made here: {joined.stderr}")
            for i, host in enumerate(hosts):
                within(host, "hostname", f"host{i}")
                within(host, "ip", "addr", "add", f"10.77.0.{i + 1}/24", "dev", names[i])
                within(host, "ip", "link", "set", names[i], "up")
                within(host, "ip", "link", "set", "lo", "up")
            ranks = []
            for rank in range(4):
                variables = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank % 2), WORLD_SIZE="4",
                                 LOCAL_WORLD_SIZE="2", MASTER_ADDR="10.77.0.1", MASTER_PORT="29500",
                                 GLOO_SOCKET_IFNAME=names[rank // 2], OMP_NUM_THREADS="1")
                ranks.append(subprocess.Popen(
                    [*entering(hosts[rank // 2]), sys.executable, "-m", "peerbus.deep_ep.run", EXAMPLE,
                     *SMALL], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, preexec_fn=end_with_parent))
            texts = [rank.communicate(timeout=100)[0] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0] * 4, "\n".join(texts))
            self.assertIn("4 ranks and one process agree: 0 of 6 texts differ", texts[0])
        finally:
            for host in filter(None, hosts):
                host.communicate()  # It ends with its input.

    def test_ranks(self):
        """4 ranks have different numbers of prompts, and of 8 ranks 2 have none."""
        for ranks in (1, 4, 8):
            self.forked(ranks)

    def test_difference(self):
        """Weights of another expert are found, and so is a difference in their last bit."""
        from generate_text import TokenDispatcher, torch
        changes = (lambda weights: weights.flip(1), lambda weights: weights * (1 + 2**-23))
        for name in ("prefill", "decode"):
            call = getattr(TokenDispatcher, name)
            for change in changes:
                def wrong(self, x, topk_idx, topk_weights, expert):
                    return call(self, x, topk_idx, change(topk_weights), expert)

                with mock.patch.object(TokenDispatcher, name, wrong), \
                        self.assertRaises(torch.multiprocessing.ProcessExitedException) as raised:
                    self.forked(2)
                self.assertEqual(raised.exception.exit_code, 1)

    def test_arguments(self):
        import generate_text
        for arguments, words in ((["--ranks", "3"], "expected a number that divides the 8 experts"),
                                 (["--ranks", "0"], "expected a whole number from 1"),
                                 (["--steps", "-1"], "argument --steps: -1, expected"),
                                 (["--tokens", "x"], "argument --tokens: x, expected"),
                                 (["--seed", "9" * 20], "argument --seed: 9999")):
            errors = io.StringIO()
            with mock.patch.object(sys, "argv", [EXAMPLE, *arguments]), \
                    contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as raised:
                generate_text.main()
            self.assertEqual(raised.exception.code, 2)
            self.assertIn(words, errors.getvalue())


class WithoutTorch(unittest.TestCase):
    def test_message(self):
        """A Python without torch is told which package has it."""
        text = ended("-c", "import sys; sys.modules['torch'] = None; import generate_text",
                     expected=1)
        self.assertIn("torch is not installed (Debian: apt-get install python3-torch)", text)


if __name__ == "__main__":
    main(globals())
