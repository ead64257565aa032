# SPDX-License-Identifier: MIT
"""Messages between two ranks, singly and in batches."""

import ctypes

from . import _library as c
from ._operands import given_input, given_output, require_rank
from ._pending import Pending


class Channels(c.Object):
    """The memory through which the ranks of a communicator send each other arrays. Collective, with
    equal arguments on all ranks. `scratch_bytes` is the memory at each rank (0: 1 MiB).

    Only the two ranks at the ends of a message take part in it. Messages from one rank to another are
    matched in the order in which both ends name them, and both give the same type and number of
    elements; otherwise both raise `Error`, no `out` is written, and the next message works. Arrays and
    types are those of `Collectives`. A message is sent only once its peer has come to it, so two ranks
    that both send to each other before they receive wait until the time limit. A batch of both does
    not.

    If the arguments are bad, the call raises `TypeError` or `InvalidArgument` on this rank alone, has
    no effect, and the peers wait.
    """

    def __init__(self, comm, scratch_bytes=0, timeout=None):
        self.rank, self.size = comm.rank, comm.size
        options = c.ChannelOptions(scratch_bytes=scratch_bytes)
        super().__init__("channels", c.make("channels", c.lib.peerbus_channels_create, comm,
                                            ctypes.byref(options), c.nanoseconds(timeout)))

    def resume(self, timeout=None):
        """Goes on in the present view of the communicator, when `continue_without_the_dead` has returned.
        Collective among the ranks of the view, which keep their numbers. Messages with ranks that are gone are
        refused, and those that were under way are given up. Raises `PeerDead` as `Team.resume`."""
        c.check(c.lib.peerbus_channels_resume(self, c.nanoseconds(timeout)))

    def send(self, x, peer, timeout=None):
        """Sends `x` to rank `peer`. An `x` with gaps is copied first."""
        self._send(self, x, peer, timeout)

    def recv(self, out, peer, timeout=None):
        """Fills `out`, which has no gaps, with what rank `peer` sends, and returns it."""
        self._recv(self, out, peer, timeout)
        return out

    def batch_send_recv(self, sends=(), recvs=(), timeout=None):
        """Sends each `x` of `sends`, pairs (x, peer), and fills each `out` of `recvs`, pairs (out,
        peer), all at once, so that their order cannot make ranks wait for each other in a ring. The
        other end of a message may be a call of its own. Messages to the own rank are matched within
        the batch. An `out` overlaps no other array of the batch."""
        self._batch(self, sends, recvs, timeout)

    def start_send(self, x, peer, timeout=None):
        """Does the first half of `send`, and waits for no rank. Returns a `Pending`, whose `finish()`
        does the rest. Bad arguments raise here."""
        pending = Pending("channels", self)
        return pending._keep(self._send(pending, x, peer, timeout), None)

    def start_recv(self, out, peer, timeout=None):
        """Does the first half of `recv`, as `start_send`. `finish()` returns `out`."""
        pending = Pending("channels", self)
        return pending._keep(self._recv(pending, out, peer, timeout), out)

    def start_batch_send_recv(self, sends=(), recvs=(), timeout=None):
        """Does the first half of `batch_send_recv`, as `start_send`."""
        pending = Pending("channels", self)
        return pending._keep(self._batch(pending, sends, recvs, timeout), None)

    # Each calls the library with a handle of the channels, and returns the arrays of the call.

    def _send(self, handle, x, peer, timeout):
        view = given_input(x)
        c.check(c.lib.peerbus_send(handle, view.address, view.count, view.dtype,
                                   require_rank(peer, self.size, "peer"), c.nanoseconds(timeout)))
        return view

    def _recv(self, handle, out, peer, timeout):
        view = given_output(out, "out")
        c.check(c.lib.peerbus_recv(handle, view.address, view.count, view.dtype,
                                   require_rank(peer, self.size, "peer"), c.nanoseconds(timeout)))
        return view

    def _batch(self, handle, sends, recvs, timeout):
        sends, recvs = list(sends), list(recvs)
        views = [given_input(x) for x, _ in sends] + [given_output(out, "out") for out, _ in recvs]
        peers = [require_rank(peer, self.size, "peer") for _, peer in (*sends, *recvs)]
        messages = (c.Transfer * len(views))()
        for i, (message, view, peer) in enumerate(zip(messages, views, peers)):
            message.sends, message.dtype, message.peer = i < len(sends), view.dtype, peer
            message.count = view.count
            # The library looks at one of these two.
            message.input = message.output = view.address
        c.check(c.lib.peerbus_batch_send_recv(handle, messages, len(views),
                                              c.nanoseconds(timeout)))
        return views
