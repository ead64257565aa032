# SPDX-License-Identifier: MIT
"""Collective operations over arrays of all ranks. docs/collectives.md has their algorithms."""

import ctypes
import functools
import math
import os

from . import _library as c
from ._operands import (Operand, given_input, given_output, made_output, parts_of, reduction,
                        require_like, require_rank, require_rows, required_output, row_of_each,
                        type_name)
from ._pending import Pending

# The types of rows and scales that codecs make, by numpy's names; None where tokens stay as they are.
_CODED = {"bf16": None, "int8_per_token": ("int8", "float32"), "fp8_f32": ("uint8", "float32"),
          "fp8_rounded": ("uint8", "float32"), "fp8_ue8m0": ("uint8", "uint8"), "fp8_as_given": None}
# The algorithms of operations that have several, and these operations, by their numbers in C.
ALGORITHMS = ("automatic", "one_shot", "two_shots", "doubling", "ring", "two_levels")
_CHOSEN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_BFLOAT16, _UINT8, _E4M3 = (code * 256 + bits for code, bits in ((4, 16), (1, 8), (10, 8)))


def _scale_columns(codec, hidden):
    """Returns the scales of a token, padding included."""
    groups = -(-hidden // 128)
    return {"int8_per_token": 1, "fp8_ue8m0": -(-groups // 4) * 4}.get(codec, groups)


def _tokens(x, codec):
    """Returns a view of the tokens that a codec takes, with their number and their channels."""
    if codec not in _CODED:
        raise c.InvalidArgument(1, f"codec is {codec!r}, expected one of {', '.join(_CODED)}")
    given = given_input(x)
    if given.dtype not in ((_UINT8, _E4M3) if codec == "fp8_as_given" else (_BFLOAT16,)):
        raise c.InvalidArgument(1, f"x has {type_name(given)}, expected " + (
            "uint8 or float8_e4m3fn" if codec == "fp8_as_given" else "uint16 or bfloat16"))
    if not given.shape:
        raise c.InvalidArgument(1, "x has shape [], expected [tokens, hidden]")
    return given, math.prod(given.shape[:-1]), given.shape[-1]


class Collectives:
    """Collective operations. All ranks call the same ones in the same order with equal arguments.

    `x` and `out` are numpy arrays, torch tensors on the CPU, or anything with the buffer protocol or
    `__dlpack__`. An `x` with gaps is copied first; `out` has none. Without `out` the result is a new
    array, of torch if `x` is. An `out` has the same type and number of elements as that, and may be
    `x` where both have the same size. All types can be moved; float32, float64, bfloat16 (or uint16
    with its bits), int32, int64 and uint8 can be reduced. bfloat16 is reduced in float32 and rounded
    once.

    If the arguments are bad on a rank, it raises `TypeError` or `InvalidArgument` and all others
    raise `Refused`. If the calls of ranks differ, all raise `Error`. No array is changed then, and
    the next operation works. The first operation of a communicator makes its `Team`, within the
    communicator's time limit.
    """

    def in_window(self, window):
        """Returns a `Team` with the same memory whose operations take `x` in this rank's part of
        `window`, a `Window` of the same communicator: peers read `x` where it lies, so that each byte
        moves once.

        All ranks call an operation of such a team, or none does; otherwise all raise `Error`. All
        give the same window, which is not checked. An `x` that lies elsewhere or has gaps is
        refused, on all ranks. `out` may lie anywhere; an `all_reduce` moves each byte once if `out`
        is `x`. `all_reduce_add` and `all_gather_coded` take operands anywhere. Not collective, except
        that the first use of a communicator makes its `Team`. One operation at a time runs on a team,
        its teams of windows included.
        """
        return Team._of_window(self._team(), window)

    def _run(self, name, arguments, timeout):
        """Calls a function of the library with what `arguments()` returns: its arguments, the views
        that keep them valid, and the result."""
        function = getattr(c.lib, "peerbus_" + name)
        team = self._team()
        try:
            given, views, result = arguments()
            limit = c.nanoseconds(timeout)
        except Exception:
            # The element type 0 makes all ranks fail, so that none waits for this one.
            c.check_refusal(function(team, *[0] * (len(function.argtypes) - 1)))
            raise
        c.check(function(team, *given, limit))
        return self._done(views, result)

    def _done(self, views, result):
        """Returns what a call returns that the library has carried out."""
        del views
        return result

    def algorithm_of(self, operation, nbytes, may_reorder=False):
        """Returns the name of the algorithm, one of `peerbus.ALGORITHMS`, that `operation` takes for
        an `x` of `nbytes` bytes at each rank that does not lie in a window, or, of reduce_scatter, for
        an `out` of so many. `operation` is "all_reduce", "all_gather", "reduce_scatter" or
        "broadcast". `may_reorder` is true for reductions that do not depend on the order of ranks,
        as of integers."""
        if operation not in _CHOSEN:
            raise c.InvalidArgument(1, f"operation is {operation!r}, expected one of "
                                       f"{', '.join(_CHOSEN)}")
        chosen = ctypes.c_int32()
        c.check(c.lib.peerbus_team_algorithm(self._team(), _CHOSEN.index(operation),
                                             c.number(nbytes, "nbytes"),
                                             bool(may_reorder), ctypes.byref(chosen)))
        return ALGORITHMS[chosen.value]

    def broadcast(self, x, root=0, timeout=None):
        """Copies `x` of rank `root` to `x` of every other rank, and returns it."""
        def arguments():
            view = given_output(x, "x", is_written=self.rank != root)
            return (view.address, view.count, view.dtype, require_rank(root, self.size)), view, x
        return self._run("broadcast", arguments, timeout)

    def gather(self, x, root=0, out=None, timeout=None):
        """Returns `x` of all ranks, [size, ...], at rank `root`, and None at others."""
        def arguments():
            given, made = given_input(x), None
            if self.rank == require_rank(root, self.size):
                made = made_output(out, given, (self.size,) + given.shape)
            return ((given.address, made and made.address, given.count, given.dtype, root),
                    (given, made), made and made.value)
        return self._run("gather", arguments, timeout)

    def scatter(self, x=None, root=0, out=None, timeout=None):
        """Returns row `rank` of `x` of rank `root`, [size, ...]. Other ranks need no `x`, and give
        an `out`."""
        def arguments():
            if self.rank == require_rank(root, self.size):
                given = given_input(x)
                made = made_output(out, given, row_of_each(given, self.size))
            else:
                given, made = None, required_output(out, root)
            return ((given and given.address, made.address, made.count, made.dtype, root),
                    (given, made), made.value)
        return self._run("scatter", arguments, timeout)

    def gather_v(self, x, counts=None, root=0, out=None, timeout=None):
        """Returns the rows of `x` of all ranks, one rank's after another's, [sum(counts), ...], at
        rank `root`, and None at others. `counts` are the rows of each rank. Only the root needs
        them."""
        def arguments():
            given, made, parts = given_input(x), None, None
            if self.rank == require_rank(root, self.size):
                row = given.shape[1:]
                rows, parts = parts_of(counts, "counts", self.size, math.prod(row))
                require_rows(given, rows[self.rank])
                made = made_output(out, given, (sum(rows),) + row)
            return ((given.address, given.count, made and made.address, parts, None, given.dtype,
                     root), (given, made), made and made.value)
        return self._run("gather_v", arguments, timeout)

    def scatter_v(self, x=None, counts=None, root=0, out=None, timeout=None):
        """Sends the first `counts[0]` rows of `x` of rank `root` to rank 0, the next `counts[1]` to
        rank 1 and so on, and returns those that came: [counts[rank], ...]. Other ranks need neither
        `x` nor `counts`, and give an `out`."""
        def arguments():
            given, parts = None, None
            if self.rank == require_rank(root, self.size):
                given = given_input(x)
                row = given.shape[1:]
                rows, parts = parts_of(counts, "counts", self.size, math.prod(row))
                require_rows(given, sum(rows))
                made = made_output(out, given, (rows[self.rank],) + row)
            else:
                made = required_output(out, root)
            return ((given and given.address, parts, None, made.address, made.count, made.dtype,
                     root), (given, made), made.value)
        return self._run("scatter_v", arguments, timeout)

    def all_gather(self, x, out=None, timeout=None):
        """Returns `x` of all ranks, [size, ...]."""
        def arguments():
            given = given_input(x)
            made = made_output(out, given, (self.size,) + given.shape)
            return ((given.address, made.address, given.count, given.dtype), (given, made),
                    made.value)
        return self._run("all_gather", arguments, timeout)

    def all_gather_v(self, x, counts, out=None, timeout=None):
        """Returns the rows of `x` of all ranks, one rank's after another's: [sum(counts), ...].
        `counts` are the rows of each rank, equal on all ranks."""
        def arguments():
            given = given_input(x)
            row = given.shape[1:]
            rows, parts = parts_of(counts, "counts", self.size, math.prod(row))
            require_rows(given, rows[self.rank])
            made = made_output(out, given, (sum(rows),) + row)
            return ((given.address, made.address, parts, None, given.dtype), (given, made),
                    made.value)
        return self._run("all_gather_v", arguments, timeout)

    def all_to_all(self, x, out=None, timeout=None):
        """Sends row r of `x`, [size, ...], to rank r, and returns the rows that came, by rank."""
        def arguments():
            given = given_input(x)
            row = row_of_each(given, self.size)
            made = made_output(out, given, given.shape)
            return ((given.address, made.address, math.prod(row), given.dtype), (given, made),
                    made.value)
        return self._run("all_to_all", arguments, timeout)

    def all_to_all_v(self, x, sent, received, out=None, timeout=None):
        """Sends the first `sent[0]` rows of `x` to rank 0, the next `sent[1]` to rank 1 and so on,
        and returns the rows that came, by rank: [sum(received), ...]. `received[r]` is the number
        that rank r sends to this one."""
        def arguments():
            given = given_input(x)
            row = given.shape[1:]
            rows, parts = parts_of(sent, "sent", self.size, math.prod(row))
            require_rows(given, sum(rows))
            come, come_parts = parts_of(received, "received", self.size, math.prod(row))
            made = made_output(out, given, (sum(come),) + row)
            return ((given.address, parts, None, made.address, come_parts, None, given.dtype),
                    (given, made), made.value)
        return self._run("all_to_all_v", arguments, timeout)

    def reduce(self, x, op="sum", root=0, out=None, timeout=None):
        """Reduces `x` of all ranks, element by element. Returns the result at rank `root`, and None
        at others. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given, made = given_input(x), None
            if self.rank == require_rank(root, self.size):
                made = made_output(out, given, given.shape)
            return ((given.address, made and made.address, given.count, given.dtype,
                     reduction(op), root), (given, made), made and made.value)
        return self._run("reduce", arguments, timeout)

    def all_reduce(self, x, op="sum", out=None, timeout=None):
        """Reduces `x` of all ranks, element by element, and returns the result, which has equal bits
        on all ranks. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given = given_input(x)
            made = made_output(out, given, given.shape)
            return ((given.address, made.address, given.count, given.dtype, reduction(op)),
                    (given, made), made.value)
        return self._run("all_reduce", arguments, timeout)

    def all_reduce_add(self, x, residual, out=None, timeout=None):
        """Adds `x` of all ranks and `residual`, element by element, and returns the sum, which has
        equal bits on all ranks. `residual` has the type and number of elements of `x`, and is the
        same on all ranks, which is not checked. `out` may be `x` or `residual`."""
        def arguments():
            given, added = given_input(x), given_input(residual, "residual")
            require_like(added, "residual", given, given.count)
            made = made_output(out, given, given.shape)
            return ((given.address, added.address, made.address, given.count, given.dtype),
                    (given, added, made), made.value)
        return self._run("all_reduce_add", arguments, timeout)

    def all_gather_coded(self, x, codec, out=None, encoded=False, timeout=None):
        """Returns `x` of all ranks, [size, ...], as `all_gather` does with tokens that travel in the
        form of `codec`. `x` is [..., hidden] of bfloat16 (or uint16 with its bits; uint8 with codes
        of float8_e4m3fn for "fp8_as_given"). `codec` is one of `peerbus.CODECS` except "nothing".

        The result has the type of `x`. An `out` may also have float32 or bfloat16, to which tokens
        are decoded. With `encoded` there is no `out`, and the result is a pair: rows as they are
        encoded, [size, ..., hidden] of int8 or uint8, and their scales, [size, ..., n] of float32, or
        of uint8 for "fp8_ue8m0". n is 1 for "int8_per_token" and otherwise hidden / 128, which is
        rounded up to a multiple of 4 for "fp8_ue8m0". Where `x` stays as it is, rows are that and
        scales are None.
        """
        def arguments():
            given, count, hidden = _tokens(x, codec)
            shape = (self.size,) + given.shape
            scales = None
            if encoded and out is not None:
                raise c.InvalidArgument(1, "out is given, expected None where rows stay encoded")
            if encoded and _CODED[codec]:
                types = _CODED[codec]
                made = Operand(given.empty(shape, types[0]), "rows")
                columns = _scale_columns(codec, hidden)
                scales = Operand(given.empty(shape[:-1] + (columns,), types[1]), "scales")
            elif out is None:
                made = Operand(given.empty(shape), "out")
            else:
                made = given_output(out, "out")
                if made.count != math.prod(shape):
                    raise c.InvalidArgument(1, f"out has {made.count} elements, expected "
                                               f"{math.prod(shape)}")
            # numpy's uint8 stands for codes of E4M3.
            dtype = _E4M3 if made.dtype == _UINT8 and codec.startswith("fp8") else made.dtype
            result = (made.value, scales and scales.value) if encoded else made.value
            return ((c.CODECS.index(codec), given.address, count, hidden, made.address,
                     scales and scales.address, dtype), (given, made, scales), result)
        return self._run("all_gather_coded", arguments, timeout)

    def reduce_scatter(self, x, op="sum", out=None, timeout=None):
        """Reduces `x` of all ranks, [size, ...], element by element, and returns row `rank` of the
        result. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given = given_input(x)
            row = row_of_each(given, self.size)
            made = made_output(out, given, row)
            return ((given.address, made.address, math.prod(row), given.dtype, reduction(op)),
                    (given, made), made.value)
        return self._run("reduce_scatter", arguments, timeout)

    def reduce_scatter_v(self, x, counts, op="sum", out=None, timeout=None):
        """Reduces `x` of all ranks, [sum(counts), ...], element by element, and returns part `rank`
        of the result: the first `counts[0]` rows are that of rank 0, the next `counts[1]` that of
        rank 1 and so on. `counts` are equal on all ranks. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given = given_input(x)
            row = given.shape[1:]
            rows, parts = parts_of(counts, "counts", self.size, math.prod(row))
            require_rows(given, sum(rows))
            made = made_output(out, given, (rows[self.rank],) + row)
            return ((given.address, parts, None, made.address, given.dtype, reduction(op)),
                    (given, made), made.value)
        return self._run("reduce_scatter_v", arguments, timeout)


class _FirstHalves(Collectives):
    """The operations of a team, of which each call does the first half and returns a `Pending`."""

    def __init__(self, collectives):
        self.rank, self.size = collectives.rank, collectives.size
        self._pending = Pending("team", collectives._team())

    def _team(self):
        return self._pending

    def _done(self, views, result):
        return self._pending._keep(views, result)


def _first_half_of(name):
    @functools.wraps(getattr(Collectives, name))  # So that help() shows the arguments.
    def start(self, *arguments, **options):
        return getattr(_FirstHalves(self), name)(*arguments, **options)
    start.__name__ = "start_" + name
    start.__qualname__ = "Collectives." + start.__name__
    start.__doc__ = (f"Does the first half of `{name}`, with the same arguments, and waits for no "
                     "rank, unless an argument is refused. Returns a `Pending`, whose `finish()` does "
                     "the rest.")
    return start


for _name in ("broadcast", "gather", "scatter", "gather_v", "scatter_v", "all_gather",
              "all_gather_v", "all_to_all", "all_to_all_v", "reduce", "all_reduce",
              "all_reduce_add", "all_gather_coded", "reduce_scatter", "reduce_scatter_v"):
    setattr(Collectives, "start_" + _name, _first_half_of(_name))


class Team(c.Object, Collectives):
    """The ranks of a communicator with memory for collective operations. Collective, with equal
    arguments on all ranks.

    `scratch_bytes` is the memory at each rank (0: 1 MiB). An `all_reduce` of more than
    `one_shot_bytes` (0: the library decides) is done in parts, one by each rank. `window_bytes` are
    the least that a rank contributes to another one for which peers read `x` in its window
    (`in_window`; 0: 1 KiB, or 32 KiB if ranks share cores; 1: always).

    `algorithm`, one of `peerbus.ALGORITHMS`, is taken by operations that have several, wherever it is
    possible. Elsewhere costs decide. `costs` is the path of a file with measured costs, as
    `coll_bench --costs-to` writes it; ranks may have the file in different places, with equal text.
    `may_reorder` lets costs choose "ring" and "two_levels" for all reductions. Ranks of one
    host load each other's pages, so that for them only "one_shot" is possible, and "two_shots" for
    `all_reduce`.
    """

    def __init__(self, comm, scratch_bytes=0, one_shot_bytes=0, window_bytes=0, timeout=None,
                 algorithm="automatic", costs=None, may_reorder=False):
        self._seat = [comm.rank, comm.size]  # That of all handles.
        # A name that there is not is refused by the library, on all ranks.
        number = ALGORITHMS.index(algorithm) if algorithm in ALGORITHMS else len(ALGORITHMS)
        options = c.TeamOptions(scratch_bytes=c.number(scratch_bytes, "scratch_bytes"),
                                one_shot_bytes=c.number(one_shot_bytes, "one_shot_bytes"),
                                window_bytes=c.number(window_bytes, "window_bytes"),
                                algorithm=number,
                                costs_file=None if costs is None else os.fsencode(costs),
                                may_reorder=bool(may_reorder))
        super().__init__("team", c.make("team", c.lib.peerbus_team_create, comm,
                                        ctypes.byref(options), c.nanoseconds(timeout)))

    @classmethod
    def _of_window(cls, team, window):
        made = cls.__new__(cls)
        made._seat = team._seat
        c.Object.__init__(made, "team", c.make("team", c.lib.peerbus_team_in_window, team, window))
        return made

    @property
    def rank(self):
        """The number of this process among the ranks of the team."""
        return self._seat[0]

    @property
    def size(self):
        """The number of ranks."""
        return self._seat[1]

    def resume(self, timeout=None):
        """Goes on in the present view of the communicator, with all handles of the team, when
        `continue_without_the_dead` has returned. Collective among the ranks of the view, which number
        themselves anew in their order: `rank`, `size`, roots and rows of results are then theirs. Operations
        that were under way are given up. Raises `PeerDead` on all that live if another rank has ended: they
        do both again."""
        c.check(c.lib.peerbus_team_resume(self, c.nanoseconds(timeout)))
        self._seat[:] = c.lib.peerbus_team_rank(self), c.lib.peerbus_team_size(self)

    def _team(self):
        return self
