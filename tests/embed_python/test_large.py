# SPDX-License-Identifier: MIT
"""Sizes at which others stop: 64 ranks of Python, 16 groups in a process, offsets beyond 2^32."""

import os
import unittest

import numpy

import peerbus
from ranks import bf16, main, run, widened


def dispatch_and_combine(moe, comm, experts, count, top_k):
    """Sends `count` tokens to experts that double their rows, and compares the sums."""
    ids = (comm.rank + 7 * numpy.arange(count)[:, None] + numpy.arange(top_k)) % experts
    tokens = bf16(numpy.full([count, moe.hidden], 1 + comm.rank % 7))
    received = moe.dispatch(tokens, ids, numpy.full([count, top_k], 0.5, numpy.float32))
    received.outputs[:received.end] = bf16(2 * widened(received.row_data[:received.end]))
    assert (widened(moe.combine(received, count)) == top_k * widened(tokens)).all()


def sixty_four():
    with peerbus.Communicator() as comm:
        total = comm.all_reduce(numpy.array([comm.rank], numpy.int64))
        assert total[0] == comm.size * (comm.size - 1) // 2
        came = comm.all_to_all(numpy.full([comm.size], comm.rank, numpy.int32))
        assert (came == numpy.arange(comm.size)).all()
        with comm.exchange(experts=67, hidden=64, top_k=4, max_tokens=3) as moe:
            for count in (comm.rank % 4, 3):
                dispatch_and_combine(moe, comm, 67, count, 4)
        comm.barrier()


def sixteen_groups():
    """All 16 are alive at once; half of them are parts of others."""
    rank, size, job = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "PEERBUS_JOB"))
    whole = [peerbus.Communicator(int(rank), int(size), job=f"{job}-{i}") for i in range(8)]
    parts = [comm.subgroup([r for r in range(comm.size) if (r + i) % 2 == (comm.rank + i) % 2])
             for i, comm in enumerate(whole)]
    exchanges = [comm.exchange(experts=5 + i, hidden=64, top_k=2, max_tokens=4, layout="compact")
                 for i, comm in enumerate(whole + parts)]
    for _ in range(3):
        for i, (comm, moe) in enumerate(zip(whole + parts, exchanges)):
            dispatch_and_combine(moe, comm, 5 + i, (comm.rank + i) % 5, 2)
    for comm in whole:
        comm.barrier()


def far_offsets():
    """A sparse window of 5 GiB: a few pages of it take memory."""
    comm = peerbus.Communicator()
    window = comm.window((5 << 30) + 4096, signals=1)
    places = (0, (1 << 31) - 32, (1 << 31) + 64, (1 << 32) - 32, (1 << 32) + 4096, (5 << 30) + 4032)
    peer = (comm.rank + 1) % comm.size
    for place in places:
        window.put(peer, place, numpy.full(8, place + comm.rank, numpy.uint64))
    assert window.fetch_add(peer, (1 << 32) + 8192, 3) == 0
    window.signal(peer, 0, 1)
    window.wait(0, 1)
    before = (comm.rank - 1) % comm.size
    own = window.part(comm.rank)
    for place in places:
        assert (own[place:place + 64].view(numpy.uint64) == place + before).all()
        assert (window.get(peer, place, 64).view(numpy.uint64) == place + comm.rank).all()
    assert own[(1 << 32) + 8192] == 3
    comm.barrier()


class Tests(unittest.TestCase):
    def test_64_ranks(self):
        run(64, sixty_four)

    def test_16_groups(self):
        run(4, sixteen_groups)

    def test_far_offsets(self):
        run(2, far_offsets)


if __name__ == "__main__":
    main(globals())
