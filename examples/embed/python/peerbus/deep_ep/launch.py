# SPDX-License-Identifier: MIT
"""Starts a program on ranks of this host, which may pretend to be several hosts, with `deep_ep` in
place."""

import argparse
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time

_here = os.path.dirname(os.path.abspath(__file__))
_module = "module:"  # Before the name of a module that is the program: `-m` would be an option.
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # Of <linux/prctl.h>.


def positive(text):
    """Returns the number that an argument names, which must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number of at least 1")
    return int(text)


def parser(module, description):
    """Returns a parser with the arguments that all programs of this kind have."""
    made = argparse.ArgumentParser(
        allow_abbrev=False,
        prog=f"python -m peerbus.deep_ep.{module}", description=description,
        usage=f"python -m peerbus.deep_ep.{module} [options] program.py [arguments of the program]")
    made.add_argument("-n", "--ranks", type=positive, metavar="N",
                      help="processes to start, as torchrun does (default: the program runs once, "
                           "and starts its ranks itself)")
    made.add_argument("--hosts", type=positive, metavar="H", default=1,
                      help="with -n: hosts that the ranks pretend to be on, as equal in size as they "
                           "can be; ranks of different hosts share no memory")
    made.add_argument("--timeout", type=float, metavar="SECONDS", help="ends the program then")
    made.add_argument("--no-cuda", action="store_true",
                      help="leave torch as it is: the program does not say cuda")
    made.add_argument("program", help="the program, or -m and a module")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def split(arguments):
    """Returns the arguments with `-m module` of the program as one word, as argparse needs it."""
    for i, word in enumerate(arguments):
        if word == "-m" and i + 1 < len(arguments):
            return [*arguments[:i], _module + arguments[i + 1], *arguments[i + 2:]]
        if not word.startswith("-") and (i == 0 or not arguments[i - 1] in (
                "-n", "--ranks", "--hosts", "--timeout", "--json", "--target", "--platform",
                "--target-ranks")):
            break
    return arguments


def parse(made, words):
    """Returns the options of the arguments `words`. Ends the process if they are wrong."""
    options = made.parse_args(split(words))
    if options.hosts > (options.ranks or 1):
        made.error(f"--hosts {options.hosts}, expected at most the ranks of -n, {options.ranks or 'which is missing'}")
    if not options.program.startswith(_module) and not os.path.exists(options.program):
        made.error(f"there is no program {options.program}")
    return options


def words_of(program):
    """Returns the words that name a program to Python."""
    return ["-m", program[len(_module):]] if program.startswith(_module) else [program]


def run(options, **variables):
    """Runs the program of `options` on its ranks and returns the exit status: the first one that is
    not 0. A rank that fails ends the others. `variables` are added to the environment."""
    command = [sys.executable, *words_of(options.program), *options.arguments]
    package = os.path.dirname(os.path.dirname(_here))
    paths = [os.path.join(_here, "as_deep_ep"), package, os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)),
                       PEERBUS_CUDA_ON_CPU="0" if options.no_cuda else "1", **variables)
    if options.ranks is None:
        status = _wait([_start(command, environment)], options.timeout)
        if status != 0 and "RANK" not in environment:
            print("give -n N if the program does not start its ranks itself", file=sys.stderr)
        return status
    port = 20000 + 2 * (os.getpid() % 5000)
    if options.hosts > 1:  # The port beside is for peerbus: a store of torch listens at the first.
        environment.pop("PEERBUS_SECRET_FILE", None)
        environment.update(PEERBUS_SECRET=secrets.token_hex(16), PEERBUS_PORT=str(port + 1))
    host_of = [rank * options.hosts // options.ranks for rank in range(options.ranks)]
    ranks = []
    for rank, host in enumerate(host_of):
        if options.hosts > 1:
            environment["PEERBUS_HOST"] = f"host {host}"
        # The shell may have been started by another launcher, srun --pty or mpirun -n 1.
        of_rank = dict(environment, PEERBUS_RANK_VARIABLE="RANK", RANK=str(rank),
                       LOCAL_RANK=str(host_of[:rank].count(host)),
                       WORLD_SIZE=str(options.ranks), LOCAL_WORLD_SIZE=str(host_of.count(host)),
                       MASTER_ADDR=environment.get("MASTER_ADDR", "127.0.0.1"),
                       MASTER_PORT=environment.get("MASTER_PORT", str(port)))
        ranks.append(_start(command, of_rank))
    return _wait(ranks, options.timeout)


def _start(command, environment):
    """Starts a process that the kernel ends when this one ends, in whatever way that is."""
    return subprocess.Popen(command, env=environment,
                            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def _wait(ranks, timeout):
    until = None if timeout is None else time.monotonic() + timeout
    status = 0
    try:
        while any(rank.poll() is None for rank in ranks):
            for number, rank in enumerate(ranks):
                if rank.poll() and status == 0:
                    status = rank.returncode
                    print(f"rank {number} ended with {rank.returncode}", file=sys.stderr)
            if until is not None and time.monotonic() > until and status == 0:
                status = 124
                print(f"the program has not ended within {timeout:g} s", file=sys.stderr)
            if status != 0:
                _end(ranks)
            time.sleep(0.02)
    except KeyboardInterrupt:
        _end(ranks)
        status = 130
    return status or next((rank.returncode for rank in ranks if rank.returncode), 0)


def _end(ranks):
    """Ends the processes. They have a second to report why they fail."""
    until = time.monotonic() + 1
    while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
        time.sleep(0.02)
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(signal.SIGTERM)
    until = time.monotonic() + 2
    for rank in ranks:
        try:
            rank.wait(max(0.01, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
