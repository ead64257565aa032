# SPDX-License-Identifier: MIT
"""What the tests of peerbus.engines share: tokens, experts and their exact outputs. 7 x 5 experts, so
that 2 and 3 ranks have different numbers of them. Values are small, so that sums are exact."""

import importlib.machinery
import inspect
import os
import sys
import types

import numpy

import peerbus
from peerbus.engines import dealt
from ranks import bf16, widened
from test_deep_ep import Kind, codes

EXPERTS, HIDDEN, TOP_K, MOST = 35, 128, 3, 6


def factor(expert):
    """Returns what an expert multiplies its rows by."""
    return 1 + expert % 3


class Model:
    """This rank, with its experts and with tokens."""

    relay = os.environ.get("RELAY", "automatic")

    def __init__(self):
        self.kind, self.comm = Kind(), peerbus.Communicator()
        self.rank, self.size = self.comm.rank, self.comm.size
        experts = dealt(EXPERTS, self.size)
        first = sum(experts[:self.rank])
        self.places = range(first, first + experts[self.rank])
        self.draw = numpy.random.default_rng(100 * self.size + self.rank)

    def tokens(self, count, top_k=TOP_K, is_constant=False):
        """Returns tokens with their weights and experts, as arrays of numpy."""
        x = numpy.arange(count)[:, None] + self.rank + (0 if is_constant else numpy.arange(HIDDEN))
        ids = numpy.array([self.draw.permutation(EXPERTS)[:top_k] for _ in range(count)],
                          numpy.int64).reshape(count, top_k)
        weights = self.draw.choice(numpy.float32([1, 0.5, 0.25]), [count, top_k])
        return numpy.broadcast_to(1 + x % 3, [count, HIDDEN]).astype(numpy.float32), weights, ids

    def given(self, x, weights, ids, alike=False):
        """Returns them as arguments. Unless `alike`, ids are int32 on odd ranks. Tokens have gaps on the last
        one."""
        if self.rank % 2 == 1 and not alike:
            ids = ids.astype(numpy.int32)
        x = self.kind.given(bf16(numpy.repeat(x, 2, 1) if self.rank == self.size - 1 else x), True)
        return x[:, ::2] if self.rank == self.size - 1 else x, self.kind.given(weights), \
            self.kind.given(ids)


def expected(x, weights, ids):
    """Returns the exact output of each token."""
    return x * (weights * numpy.where(ids >= 0, factor(ids), 0)).sum(1, keepdims=True)


def batches(rank):
    """Yields the batches: tokens, weights and experts."""
    usual = 1 + 2 * rank.rank % MOST
    yield rank.tokens(usual)
    yield rank.tokens(0 if rank.rank == 1 else usual)
    yield rank.tokens(MOST)
    x, weights, ids = rank.tokens(MOST)
    yield x, weights, numpy.where(numpy.arange(TOP_K) == 0, EXPERTS - 1, -1) + 0 * ids
    x, weights, ids = rank.tokens(usual)
    ids[numpy.arange(usual) % 2 == 0, rank.rank % TOP_K] = -1
    yield x, weights, ids
    yield x, weights, 0 * ids - 1


def by_expert(rank, rows, scales, counts):
    """Returns the outputs of rows [L, R * B, H]; not a number where none came."""
    coded = rank.kind.got(rows)
    values = widened(coded) if scales is None else \
        codes()[coded.view(numpy.uint8)] * numpy.repeat(rank.kind.got(scales), 128, -1)
    outputs = numpy.full(values.shape, numpy.nan, numpy.float32)
    counts = rank.kind.got(counts)
    assert counts.dtype == numpy.int32 and len(counts) == len(rank.places) == len(values)
    for e, number in enumerate(counts):
        outputs[e, :number] = values[e, :number] * factor(rank.places[e])
    return rank.kind.given(bf16(outputs.round(2)), True)


def summed(rank, values, ids, weights):
    """Returns the bits of the weighted sums over the local experts of each row, of which `ids` has the
    local numbers."""
    factors = numpy.where(ids >= 0, factor(ids + rank.places[0]), 0)
    return bf16(values * (weights * factors).sum(-1, keepdims=True))


def put_module(name, **members):
    """Puts a module with these members where an engine has it."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__path__, made.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(members)


def check_arguments(test, kind, called):
    """Requires that a class has methods with these positional arguments: {name: "first second"}."""
    for method, arguments in called.items():
        with test.subTest(method=f"{kind.__name__}.{method}"):
            signature = inspect.signature(getattr(kind, method)).parameters
            positional = [name for name, value in signature.items()
                          if value.kind is not value.KEYWORD_ONLY][1:]
            test.assertEqual(positional, arguments.split())
