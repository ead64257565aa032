# SPDX-License-Identifier: MIT
"""How ranks that something else connects, such as a process group of torch, meet by it."""

import ctypes
import datetime
import ipaddress
import os
import socket
import sys

from . import _library as c


def all_gather_of(group):
    """Returns (rank, size, a function that gives an object of each rank to all) of a process group of
    torch.distributed."""
    torch = sys.modules.get("torch")  # A process group exists only if its program has imported it.
    kind = getattr(getattr(torch, "distributed", None), "ProcessGroup", None)
    if kind is None or not isinstance(group, kind):
        raise TypeError(f"group is {type(group).__name__}, expected a process group of "
                        "torch.distributed")
    dist = torch.distributed
    size = dist.get_world_size(group)

    def all_gather(value):
        told = [None] * size
        with torch.inference_mode(False):  # In which gloo of torch 1.13 cannot gather.
            dist.all_gather_object(told, value, group=group)
        return told

    return dist.get_rank(group), size, all_gather


def await_group(group, seconds):
    """Returns when all ranks of a process group have come. Raises `TimedOut` on all that came if some have
    not within `seconds`: the group's own time limit is 30 minutes. Of groups by gloo only."""
    dist = sys.modules["torch"].distributed
    if dist.get_backend(group) != "gloo":
        return
    limit = datetime.timedelta(seconds=30 if seconds is None else seconds)
    try:
        dist.monitored_barrier(group, limit, wait_all_ranks=True)
    except RuntimeError as problem:
        raise c.TimedOut(5, f"the ranks of the process group did not meet within "
                            f"{limit.total_seconds():g} s: {problem}") from None


def own_address():
    """Returns the address of this host towards that of the launcher's MASTER_ADDR, by which other hosts
    reach it as they reach that one. None without it."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return None
    try:
        kind, _, _, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # Sends nothing: the system chooses the way.
            own = probe.getsockname()[0]
    except (OSError, UnicodeError):
        return None
    # Debian gives a host's own name a loopback address, which other hosts resolve to another.
    return master if ipaddress.ip_address(own.split("%")[0]).is_loopback else own


class Meeting:
    """What `peerbus_comm_over` needs of Python: `all_gather(bytes)` returns those of all ranks."""

    def __init__(self, rank, size, all_gather, address=None, host=None):
        self._problem = None
        self._all_gather, self._size = all_gather, size
        self.raw = c.Meeting(rank=rank, size=size,
                             all_gather=c.all_gather_function(self._gather),
                             address=c.text(address), host=c.text(host))

    def _gather(self, _context, own, everything, nbytes):
        try:
            told = list(self._all_gather(ctypes.string_at(own, nbytes)))
            if [len(part) for part in told] != [nbytes] * self._size:
                raise c.InvalidArgument(1, f"all_gather returned {len(told)} objects of "
                                           f"{sorted({len(part) for part in told})} bytes, expected "
                                           f"{self._size} of {nbytes}")
            ctypes.memmove(everything, b"".join(told), nbytes * self._size)
            return 0
        except BaseException as problem:  # ctypes would print it and go on.
            self._problem = problem
            return 1

    def communicator(self, options):
        """Collective: returns the handle of a communicator. Raises what `all_gather` raised."""
        try:
            return c.make("comm", c.lib.peerbus_comm_over, ctypes.byref(self.raw),
                          ctypes.byref(options))
        except c.Error:
            if self._problem is not None:
                raise self._problem
            raise
