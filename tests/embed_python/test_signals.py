# SPDX-License-Identifier: MIT
"""Tests of the Python module among signals, threads, forks and the ends of processes:
python3 test_signals.py [TEST...]."""

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
import ranks
from ranks import bf16, main, raises

run = functools.partial(ranks.run, fresh=True)  # Signals, and what the end of an interpreter leaves.


def interrupted():
    """Ctrl-C while the main thread waits."""
    comm = peerbus.Communicator()
    window = comm.window(8, signals=1)
    for _ in range(3):
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        begun = time.monotonic()
        raises(KeyboardInterrupt, "", window.wait, 0, 1, timeout=30)
        assert time.monotonic() - begun < 20
    comm.barrier()  # An interrupted wait of a window spoils nothing.


class Raised(Exception):
    """What a handler of these tests raises."""


def interrupted_with_others():
    """A handler that runs in a wait of the main thread does not end the wait of another thread."""
    comm = peerbus.Communicator()
    window, own = comm.window(8, signals=1), comm.subgroup([0]).window(8, signals=1)
    ends = []

    def wait():
        try:
            own.wait(0, 1, timeout=60)
            ends.append(None)
        except BaseException as problem:
            ends.append(problem)

    def handler(*_):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)  # The other thread waits for that long, and longer.
        own.signal(0, 0, 1)
        waiting.join()
        window.signal(0, 0, 1)

    signal.signal(signal.SIGUSR1, handler)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    window.wait(0, 1, timeout=60)
    assert ends == [None], ends


def interrupted_within():
    """A handler calls the library while a barrier waits, and Ctrl-C ends the handler's call alone."""
    comm = peerbus.Communicator()
    window, own = comm.window(8, signals=1), comm.subgroup([comm.rank]).window(8, signals=1)
    if comm.rank == 1:
        window.wait(0, 1, timeout=60)
        comm.barrier()
        return
    handled = []

    def handler(*_):
        raises(peerbus.TimedOut, "", own.wait, 0, 1, timeout=0.2)
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        raises(KeyboardInterrupt, "", own.wait, 0, 1, timeout=60)
        raises(peerbus.InvalidArgument, "in another call", comm.barrier)
        window.signal(1, 0, 1)
        handled.append(True)

    signal.signal(signal.SIGUSR1, handler)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    comm.barrier()
    assert handled == [True]


def interrupted_twice():
    """Two handlers raise in one wait: the second exception is raised at the next chance, and then
    waits can be interrupted as before. An exception is let go of when it was handled."""
    comm = peerbus.Communicator()
    window = comm.window(8, signals=1)
    seen, kept = [], []

    def handler(number, _):
        problem = Raised(number)
        kept.append(weakref.ref(problem))
        raise problem

    def kill():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handler)
    for _ in range(3):
        threading.Timer(0.2, kill).start()
        while len(seen) < 2:
            try:
                while True:
                    window.wait(0, 1, timeout=30)
            except Raised as problem:
                seen.append(problem.args[0])
        assert sorted(seen) == [signal.SIGUSR1, signal.SIGUSR2], seen
        seen.clear()
    gc.collect()
    assert not any(problem() for problem in kept)


def destroyed_by_handler():
    """A handler destroys what the call that waits uses. The call ends as any other."""
    comm = peerbus.Communicator()
    window, peer = comm.window(8, signals=1), comm.subgroup([comm.rank]).window(8, signals=1)

    def clean_up(*_):
        window.destroy()
        comm.destroy()
        raise Raised("by the handler")

    signal.signal(signal.SIGUSR1, clean_up)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    raises(Raised, "by the handler", window.wait, 0, 1, timeout=60)
    raises(peerbus.InvalidArgument, "the window was destroyed", window.wait, 0, 1)
    peer.signal(0, 0, 1)
    peer.wait(0, 1)


def destroyed_by_others():
    """The main thread destroys what a call of another thread uses, as `with` does. That call ends as
    any other, and the rank leaves the group then."""
    comm = peerbus.Communicator()
    x, ids = bf16(numpy.ones([4, 128])), numpy.zeros([4, 1], numpy.int64)
    weights = numpy.ones([4, 1], numpy.float32)
    ends = comm.window(8, signals=1)

    def calls(group):
        team, channels, window = group.team(), group.channels(), group.window(8, signals=1)
        moe = group.exchange(experts=4, hidden=128, top_k=1, max_tokens=4)
        buffer = deep_ep.Buffer(group)
        yield group, group.barrier
        yield team, lambda: team.all_reduce(weights)
        yield channels, lambda: channels.recv(weights, 1)
        yield window, lambda: window.wait(0, 1)
        yield moe, lambda: moe.dispatch(x, ids, weights)
        yield buffer, lambda: buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)

    for i in range(6):
        group = comm.subgroup([0, 1], timeout=1)
        used, call = list(calls(group))[i]
        if comm.rank == 0:
            waiting = threading.Thread(target=raises, args=((peerbus.TimedOut, peerbus.PeerDead), "", call))
            failures, threading.excepthook = [], lambda args: failures.append(args.exc_value)
            waiting.start()
            time.sleep(0.2)
            used.destroy()
            group.destroy()
            waiting.join()
            assert not failures, failures
            ends.signal(1, 0, i + 1)
        else:
            ends.wait(0, i + 1, timeout=60)


def forked_by_handler():
    """A child that a handler forks in a barrier does not take part in it."""
    comm = peerbus.Communicator()
    window = comm.window(8, signals=1)
    if comm.rank == 1:
        window.wait(0, 1, timeout=60)
        comm.barrier()
        comm.barrier()
        return
    parent, children = os.getpid(), []

    def handler(*_):
        child = os.fork()
        if child:
            children.append(child)
            window.signal(1, 0, 1)

    signal.signal(signal.SIGUSR1, handler)
    threading.Timer(0.2, os.kill, [parent, signal.SIGUSR1]).start()
    status = 1
    try:
        comm.barrier()
    except peerbus.InvalidArgument as problem:
        status = 0 if "began before this process became a child by fork" in str(problem) else 2
    finally:
        if os.getpid() != parent:
            os._exit(status)
    assert os.waitpid(children[0], 0)[1] == 0
    comm.barrier()


def ended_with_objects():
    """The process ends while a module keeps objects alive, and says nothing."""
    program = ("import numpy, peerbus, peerbus.deep_ep as deep_ep\n"
               "comm = peerbus.Communicator(rank=0, size=1, job='JOB')\n"
               "comm.all_reduce(numpy.ones(4, numpy.float32))\n"
               "window, buffer = comm.window(8), deep_ep.Buffer(comm)\n"
               "numpy.kept = comm, window, window.part(0), comm.channels(), buffer")
    job = f"{os.environ['PEERBUS_JOB']}-end"
    ended = subprocess.run([sys.executable, "-c", program.replace("JOB", job)], timeout=60,
                           stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended


def ended_while_waiting():
    """The process ends while daemon threads wait in calls."""
    comm = peerbus.Communicator()
    ended = comm.window(8, signals=1)
    pair, dropped = comm.subgroup([0, 1]), comm.subgroup([0, 1])
    window = dropped.window(8, signals=1)
    del dropped
    buffer, ids = deep_ep.Buffer(comm), numpy.zeros([4, 1], numpy.int64)

    def dispatch():
        return buffer.low_latency_dispatch(bf16(numpy.ones([4, 64])), ids, 4, 2, use_fp8=False,
                                           return_recv_hook=True)[-1]

    dispatch()()
    said = os.path.join(os.environ["TEST_FOLDER"], "said")
    if comm.rank == 1:
        raises(peerbus.PeerDead, "rank 0", ended.wait, 0, 1, awaited=0, timeout=60)
        with open(said) as file:
            assert file.read() == ""
        return
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    for call in (pair.barrier, lambda: window.wait(0, 1, timeout=float("inf")), dispatch()):
        threading.Thread(target=call, daemon=True).start()
    time.sleep(0.1)

    class Slow:  # Keeps the interpreter from ending for some slices of the waits.
        def __del__(self, sleep=time.sleep):
            sleep(0.3)

    sys.slow = Slow()


def interrupted_calls():
    """A handler ends every call that waits for a late rank, whatever the call waits for, and soon."""
    comm = peerbus.Communicator(timeout=60)
    x, ids = bf16(numpy.ones([4, 128])), numpy.zeros([4, 1], numpy.int64)
    weights, out = numpy.ones([4, 1], numpy.float32), numpy.empty([4, 1], numpy.float32)

    def in_exchange(group):
        moe = group.exchange(experts=4, hidden=128, top_k=1, max_tokens=4)
        return lambda: moe.dispatch(x, ids, weights)

    def bad_in_exchange(group):
        moe = group.exchange(experts=4, hidden=128, top_k=1, max_tokens=4)
        return lambda: moe.dispatch(x[:, :64], ids, weights)

    def bad_reduction(group):
        return lambda: group.all_reduce(weights, timeout="soon")

    def in_channels(group):
        channels = group.channels()
        return lambda: channels.batch_send_recv([(weights, 1)], [(out, 1)])

    def low_latency(group):
        buffer = deep_ep.Buffer(group)

        def dispatch():
            buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)[3].current_stream_wait()
        return dispatch

    def normal(group):
        buffer = deep_ep.Buffer(group, num_max_tokens_per_rank=4)

        def dispatch():
            layout = buffer.get_dispatch_layout(ids, 4)
            buffer.dispatch(x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=layout[0],
                            is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])
        return dispatch

    def again(prepare):
        def prepared(group):
            call = prepare(group)
            call()
            return call
        return prepared

    def reduction(group):
        return lambda: group.all_reduce(weights)

    calls = [lambda group: group.barrier, lambda group: lambda: group.window(64),
             lambda group: group.channels, in_channels, in_exchange, bad_in_exchange, bad_reduction]
    for prepare in (reduction, low_latency, normal):
        calls += [prepare, again(prepare)]

    def handler(*_):
        raise Raised("by the handler")

    signal.signal(signal.SIGUSR1, handler)
    ends = comm.window(8, signals=1)
    for i, prepare in enumerate(calls):
        call = prepare(comm.subgroup([0, 1]))
        if comm.rank == 0:
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
            begun = time.monotonic()
            raises(Raised, "by the handler", call)
            assert time.monotonic() - begun < 30, i
            ends.signal(1, 0, i + 1)
        else:
            ends.wait(0, i + 1, timeout=60)
    comm.barrier()


def interrupted_making():
    """Ctrl-C while the other rank is late for what all make together."""
    comm = peerbus.Communicator()
    interrupt_making(comm.subgroup([0, 1]), "window", lambda part: part.window(4096, timeout=60))
    interrupt_making(comm, "subgroup", lambda part: part.subgroup([0, 1]))


def interrupted_meeting():
    """A rank that waits for another one, which does not come, takes signals; and what it makes after all
    is nobody's."""
    place = {"size": 2, "port": 30000 + os.getpid() % 10000, "job": "interrupted"}
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    began = time.monotonic()
    raises(KeyboardInterrupt, "", peerbus.Communicator, 0, **place, meet_timeout=60)
    assert time.monotonic() - began < 30
    raises(peerbus.TimedOut, "", peerbus.Communicator, 0, size=2, port=place["port"], job="nobody comes",
           meet_timeout=0.1)
    child = os.fork()
    if child == 0:  # The other rank comes, and finds nobody who serves.
        comm = peerbus.Communicator(1, **place, meet_timeout=20)
        raises(peerbus.PeerDead, "rank 0", comm.barrier)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def interrupt_making(comm, name, make):
    done = os.path.join(os.environ["TEST_FOLDER"], "done_" + name)
    if comm.rank == 1:
        while not os.path.exists(done):
            time.sleep(0.01)
        return
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        raises(KeyboardInterrupt, "", make, comm)
        assert not os.path.exists(done)
    finally:
        open(done, "w").close()


def forked():
    comm = peerbus.Communicator()
    child = os.fork()
    if child == 0:
        try:
            raises(peerbus.InvalidArgument, "fork", comm.barrier)
            comm.destroy()
            os._exit(0)
        except BaseException as problem:  # The child must not go on with the parent's program.
            print(problem, file=sys.stderr)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    comm.barrier()
    pair = comm.subgroup([1, 0])
    assert pair.rank == 1 - comm.rank
    pair.barrier()


class Tests(unittest.TestCase):
    def test_interrupted(self):
        run(1, interrupted)
        run(1, interrupted_with_others)
        run(1, interrupted_meeting)
        run(2, interrupted_within)
        run(1, interrupted_twice)
        run(2, interrupted_making)
        run(2, interrupted_calls)
        run(1, destroyed_by_handler)
        run(2, destroyed_by_others)

    def test_ended_while_waiting(self):
        run(2, ended_while_waiting)
        run(1, ended_with_objects)

    def test_forked(self):
        run(2, forked)
        run(2, forked_by_handler)


if __name__ == "__main__":
    main(globals())
