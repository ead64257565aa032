# SPDX-License-Identifier: MIT
"""Tests of the example generate_text.py: it runs, and fails where ranks compute something else."""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import peerbus
from ranks import main, needs_torch

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(peerbus.__file__)), "generate_text.py")
SMALL = ["--steps", "3", "--tokens", "6"]


def ended(*command, expected=0):
    """Runs a program of Python and returns what it printed."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100)
    printed = done.stdout + done.stderr
    assert done.returncode == expected, f"ended with {done.returncode}:\n{printed}"
    return printed


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
