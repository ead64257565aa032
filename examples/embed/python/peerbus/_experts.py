# SPDX-License-Identifier: MIT
"""The experts of an exchange: which place of which rank holds which, and the choice among replicas.

Tables are arrays of numpy, tensors of torch, or lists, of integers of any type.
"""

import typing

import numpy

from . import _library as c
from ._library import InvalidArgument
from ._tensors import array_of

REPLICA_POLICIES = ("nearest", "round_robin", "weighted", "fixed")
VACANT = 2**32 - 1
"""The expert of a place without one in `Received.expert_ids`. In arguments -1 says the same."""


class ReplicaChoice(typing.NamedTuple):
    """The choice of a rank among the places of an expert. Ranks may differ in it. Where a call takes a
    choice, it also takes a policy alone."""

    policy: str = "nearest"
    """One of `REPLICA_POLICIES`."""
    quotas: typing.Any = None
    """For "weighted": the quota of each place, such as rows, [physical experts]."""
    chosen: typing.Any = None
    """For "fixed": the place for the rows of each expert, [experts]."""
    distances: typing.Any = None
    """[ranks] of each rank from this one. None: 0 for this rank, 1 for ranks whose memory it stores to, 2 for
    the others."""


def choice_of(replicas):
    """Returns the `ReplicaChoice` that an argument stands for, which may be a policy."""
    if replicas is None or isinstance(replicas, str):
        replicas = ReplicaChoice(replicas or "nearest")
    if not isinstance(replicas, ReplicaChoice):
        raise TypeError(f"replicas is {type(replicas).__name__}, expected a ReplicaChoice or a policy")
    return replicas


def map_of(physical_to_logical):
    """Returns the expert of each place as the library reads it."""
    table = array_of(physical_to_logical, numpy.int64, "physical_to_logical", 1)
    return _unsigned(numpy.where(table == -1, VACANT, table), "physical_to_logical",
                     ", or -1 for a vacant place")


def table_of(values, name, count, what):
    """Returns a table that has `count` entries, one for each of `what`, as the library reads it; None for
    None."""
    if values is None:
        return None
    table = array_of(values, numpy.int64, name, 1)
    if len(table) != count:
        raise InvalidArgument(1, f"{name} has {len(table)} entries, expected {what}, {count}")
    return _unsigned(table, name, "")


def structure_of(choice, places, experts, ranks):
    """Returns the structure of the library for a `ReplicaChoice`. It keeps the tables alive."""
    tables = [table_of(choice.quotas, "replicas.quotas", places, "physical experts"),
              table_of(choice.chosen, "replicas.chosen", experts, "experts"),
              table_of(choice.distances, "replicas.distances", ranks, "ranks")]
    made = c.ReplicaChoice(policy=c.place("replicas.policy", choice.policy, REPLICA_POLICIES),
                           **dict(zip(("quotas", "chosen", "distances"), map(address_of, tables))))
    made.tables = tables
    return made


def address_of(table):
    """Returns what a structure of the library takes for a table, or for None."""
    return None if table is None else table.ctypes.data


def _unsigned(table, name, otherwise):
    wrong = numpy.flatnonzero((table < 0) | (table > VACANT))
    if len(wrong):
        raise InvalidArgument(1, f"{name}[{wrong[0]}] is {table[wrong[0]]}, expected 0 to "
                                 f"{VACANT}{otherwise}")
    return table.astype(numpy.uint32)
