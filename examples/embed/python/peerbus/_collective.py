# SPDX-License-Identifier: MIT
"""Collective operations over arrays of all ranks. docs/collectives.md has their algorithms."""

import ctypes
import math
import operator

import numpy

from . import _library as c
from ._tensors import Given, contiguous, empty_like, has_gaps, is_torch

REDUCTIONS = ("sum", "prod", "min", "max")


class _Operand(Given):
    """A view of an operand. Its elements are only moved or reduced, so more types are possible than
    in other calls, and uint8 is the integer."""

    codes = dict(Given.codes, uint8=(1, 8), int16=(0, 16), uint32=(1, 32), uint64=(1, 64),
                 float16=(2, 16), float64=(2, 64), complex64=(5, 64), complex128=(5, 128))
    kinds = {numpy.dtype(name): kind for name, kind in codes.items()
             if name not in ("bfloat16", "float8_e4m3fn")}

    def __init__(self, value, name):
        super().__init__(value, name)
        tensor = self.tensor
        if tensor.device_type != 1:
            raise TypeError(f"{name} is on DLPack's device type {tensor.device_type}, expected 1, "
                            "the CPU")
        if tensor.dtype_lanes != 1:
            raise TypeError(f"{name} has {tensor.dtype_lanes} lanes, expected 1")
        self.shape = tuple(tensor.shape[:tensor.ndim])
        self.count = math.prod(self.shape)
        self.dtype = tensor.dtype_code * 256 + tensor.dtype_bits
        self.address = (tensor.data or 0) + tensor.byte_offset

    def empty(self, shape):
        """Returns an array of the same kind and type with other sizes."""
        if is_torch(self.value) or isinstance(self.value, numpy.ndarray):
            return empty_like(self.value, shape)
        kind = (self.tensor.dtype_code, self.tensor.dtype_bits)
        names = [dtype for dtype, known in self.kinds.items() if known == kind]
        return numpy.empty(shape, names[0] if names else f"V{kind[1] // 8}")


def _input(value):
    return contiguous(value, "x", _Operand)


def _in_place(value, name, is_written=True):
    """Returns a view of an array that an operation may write."""
    view = _Operand(value, name)
    if has_gaps(view.tensor):
        raise c.InvalidArgument(1, f"{name} has gaps between its elements, expected a contiguous "
                                   "array")
    if is_written and isinstance(view.value, numpy.ndarray) and not view.value.flags.writeable:
        raise c.InvalidArgument(1, f"{name} is read-only")
    return view


def _output(out, given, shape):
    """Returns a view of `out`, or of a new array of `shape` like `given`."""
    if out is None:
        return _Operand(given.empty(shape), "out")
    view = _in_place(out, "out")
    count = math.prod(shape)
    if view.dtype != given.dtype or view.count != count:
        raise c.InvalidArgument(1, f"out has {view.count} elements of {_name(view)}, expected "
                                   f"{count} of {_name(given)}")
    return view


def _name(view):
    return str(getattr(view.value, "dtype", f"type {view.dtype}"))


def _rows(given, size):
    """Requires an operand with a row for each rank. Returns the shape of a row."""
    if not given.shape or given.shape[0] != size:
        raise c.InvalidArgument(1, f"x has shape {list(given.shape)}, expected a row for each of "
                                   f"{size} ranks")
    return given.shape[1:]


def _reduction(op):
    if op not in REDUCTIONS:
        raise c.InvalidArgument(1, f"op is {op!r}, expected one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS.index(op)


def _root(root, size):
    if not 0 <= operator.index(root) < size:
        raise c.InvalidArgument(1, f"root {root}, expected a rank below {size}")
    return root


def _parts(counts, name, size, row):
    """Returns counts of rows, and the elements of each part."""
    rows = [operator.index(count) for count in counts]
    if len(rows) != size or min(rows) < 0:
        raise c.InvalidArgument(1, f"{name} are {rows}, expected a number of rows for each of "
                                   f"{size} ranks")
    return rows, (ctypes.c_uint64 * size)(*[count * row for count in rows])


def _require_rows(given, count):
    if not given.shape or given.shape[0] != count:
        raise c.InvalidArgument(1, f"x has shape {list(given.shape)}, expected {count} rows")


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
            function(team, *[0] * (len(function.argtypes) - 1))
            raise
        c.check(function(team, *given, limit))
        del views
        return result

    def broadcast(self, x, root=0, timeout=None):
        """Copies `x` of rank `root` to `x` of every other rank, and returns it."""
        def arguments():
            view = _in_place(x, "x", is_written=self.rank != root)
            return (view.address, view.count, view.dtype, _root(root, self.size)), view, x
        return self._run("broadcast", arguments, timeout)

    def gather(self, x, root=0, out=None, timeout=None):
        """Returns `x` of all ranks, [size, ...], at rank `root`, and None at others."""
        def arguments():
            given, made = _input(x), None
            if self.rank == _root(root, self.size):
                made = _output(out, given, (self.size,) + given.shape)
            return ((given.address, made and made.address, given.count, given.dtype, root),
                    (given, made), made and made.value)
        return self._run("gather", arguments, timeout)

    def scatter(self, x=None, root=0, out=None, timeout=None):
        """Returns row `rank` of `x` of rank `root`, [size, ...]. Other ranks need no `x`, and give
        an `out`."""
        def arguments():
            if self.rank == _root(root, self.size):
                given = _input(x)
                made = _output(out, given, _rows(given, self.size))
            else:
                if out is None:
                    raise c.InvalidArgument(1, "out is None, expected an array at ranks other than "
                                               f"the root {root}")
                given, made = None, _in_place(out, "out")
            return ((given and given.address, made.address, made.count, made.dtype, root),
                    (given, made), made.value)
        return self._run("scatter", arguments, timeout)

    def all_gather(self, x, out=None, timeout=None):
        """Returns `x` of all ranks, [size, ...]."""
        def arguments():
            given = _input(x)
            made = _output(out, given, (self.size,) + given.shape)
            return ((given.address, made.address, given.count, given.dtype), (given, made),
                    made.value)
        return self._run("all_gather", arguments, timeout)

    def all_gather_v(self, x, counts, out=None, timeout=None):
        """Returns the rows of `x` of all ranks, one rank's after another's: [sum(counts), ...].
        `counts` are the rows of each rank, equal on all ranks."""
        def arguments():
            given = _input(x)
            row = given.shape[1:]
            rows, parts = _parts(counts, "counts", self.size, math.prod(row))
            _require_rows(given, rows[self.rank])
            made = _output(out, given, (sum(rows),) + row)
            return ((given.address, made.address, parts, None, given.dtype), (given, made),
                    made.value)
        return self._run("all_gather_v", arguments, timeout)

    def all_to_all(self, x, out=None, timeout=None):
        """Sends row r of `x`, [size, ...], to rank r, and returns the rows that came, by rank."""
        def arguments():
            given = _input(x)
            row = _rows(given, self.size)
            made = _output(out, given, given.shape)
            return ((given.address, made.address, math.prod(row), given.dtype), (given, made),
                    made.value)
        return self._run("all_to_all", arguments, timeout)

    def all_to_all_v(self, x, sent, received, out=None, timeout=None):
        """Sends the first `sent[0]` rows of `x` to rank 0, the next `sent[1]` to rank 1 and so on,
        and returns the rows that came, by rank: [sum(received), ...]. `received[r]` is the number
        that rank r sends to this one."""
        def arguments():
            given = _input(x)
            row = given.shape[1:]
            rows, parts = _parts(sent, "sent", self.size, math.prod(row))
            _require_rows(given, sum(rows))
            come, come_parts = _parts(received, "received", self.size, math.prod(row))
            made = _output(out, given, (sum(come),) + row)
            return ((given.address, parts, None, made.address, come_parts, None, given.dtype),
                    (given, made), made.value)
        return self._run("all_to_all_v", arguments, timeout)

    def reduce(self, x, op="sum", root=0, out=None, timeout=None):
        """Reduces `x` of all ranks, element by element. Returns the result at rank `root`, and None
        at others. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given, made = _input(x), None
            if self.rank == _root(root, self.size):
                made = _output(out, given, given.shape)
            return ((given.address, made and made.address, given.count, given.dtype,
                     _reduction(op), root), (given, made), made and made.value)
        return self._run("reduce", arguments, timeout)

    def all_reduce(self, x, op="sum", out=None, timeout=None):
        """Reduces `x` of all ranks, element by element, and returns the result, which has equal bits
        on all ranks. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given = _input(x)
            made = _output(out, given, given.shape)
            return ((given.address, made.address, given.count, given.dtype, _reduction(op)),
                    (given, made), made.value)
        return self._run("all_reduce", arguments, timeout)

    def reduce_scatter(self, x, op="sum", out=None, timeout=None):
        """Reduces `x` of all ranks, [size, ...], element by element, and returns row `rank` of the
        result. `op` is one of `peerbus.REDUCTIONS`."""
        def arguments():
            given = _input(x)
            row = _rows(given, self.size)
            made = _output(out, given, row)
            return ((given.address, made.address, math.prod(row), given.dtype, _reduction(op)),
                    (given, made), made.value)
        return self._run("reduce_scatter", arguments, timeout)


class Team(c.Object, Collectives):
    """The ranks of a communicator with memory for collective operations. Collective, with equal
    arguments on all ranks.

    `scratch_bytes` is the memory at each rank (0: 1 MiB). An `all_reduce` of more than
    `one_shot_bytes` (0: 32 KiB) is done in parts, one by each rank.
    """

    def __init__(self, comm, scratch_bytes=0, one_shot_bytes=0, timeout=None):
        self.rank, self.size = comm.rank, comm.size
        options = c.TeamOptions(scratch_bytes=scratch_bytes, one_shot_bytes=one_shot_bytes)
        super().__init__("team", c.make("team", c.lib.peerbus_team_create, comm,
                                        ctypes.byref(options), c.nanoseconds(timeout)))

    def _team(self):
        return self
