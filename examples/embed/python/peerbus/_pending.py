# SPDX-License-Identifier: MIT
"""Second halves of operations."""

from . import _library as c


class Pending(c.Object):
    """The second half of an operation of which `start_all_reduce`, `start_all_gather`, `start_send`
    and so on did the first. The rank may compute between the halves, and peers may call the whole
    operation.

    Until `finish` has returned, arrays that are sent or reduced must not change, `out` must not be
    accessed, and the next operation of the same team, or of the same channels, raises
    `InvalidArgument` on this rank alone. Arrays are kept alive. A `Pending` that is destroyed before,
    or no longer referred to, gives the operation up, which poisons the communicator. Made by the
    methods `start_...` only.
    """

    def __init__(self, kind, whole):
        self._views, self._result = None, None
        super().__init__(kind, c.make(kind, getattr(c.lib, f"peerbus_{kind}_in_halves"), whole))
        self._finish = getattr(c.lib, f"peerbus_{kind}_finish")

    def _keep(self, views, result):
        """Keeps the arrays of a first half that has been done, and what `finish` returns."""
        self._views, self._result = views, result
        return self

    def finish(self, timeout=None):
        """Does the rest of the operation, and returns or raises what the whole operation would.
        `timeout` None stands for the deadline of the first half, which began when that was called."""
        limit = c.nanoseconds(timeout)  # A wrong one gives nothing up.
        if not self._as_parameter_:
            raise c.InvalidArgument(1, "finish was called before, or the operation was given up; "
                                       "expected it once")
        try:
            c.check(self._finish(self, limit))
            return self._result
        finally:
            self._views, self._result = None, None
            self.destroy()
