# SPDX-License-Identifier: MIT
"""Runs tests of engines unchanged on peerbus, by pytest:

    python3 engine_originals.py FILE...

FILE is one of these, from a checkout or alone; neither the engine nor torch is needed:

- FlashInfer's tests/moe_ep/test_fault_tolerance_reconcile.py, on `PeerbusFleet.reconcile_active_mask`;
- TensorRT-LLM's tests/unittest/_torch/modules/test_ep_group_health.py, on `peerbus.elastic`.

FlashInfer's agreement is a function of a store. Here each store and epoch has a group, whose ranks are
threads. A rank whose key is in the store takes part by a thread of its own. A rank that has not come when
the time limit of another one passes is ended, as an engine would end its process: the library itself never
leaves out a rank that lives.
"""

import itertools
import os
import sys
import threading
import time
import types

import peerbus
from engine_model import put_module
from peerbus import elastic
from peerbus.engines import flashinfer

ACTIVE, MASKED = 1, 0
LIMIT = 30  # Seconds for what does not depend on a late rank.
_numbers = itertools.count()


def _fleet(rank, size, job):
    def named(name):
        return types.SimpleNamespace(name=name)

    comm = peerbus.Communicator(rank, size, job=job, timeout=LIMIT)
    return flashinfer.PeerbusFleet(
        types.SimpleNamespace(rank=rank, world_size=size, process_group=comm),
        types.SimpleNamespace(num_experts=size, max_tokens_per_rank=1, token_hidden_size=128,
                              algorithm=named("LOW_LATENCY"), layout=named("EXPERT_MAJOR")))


def _in_threads(function, ranks):
    """Calls a function for each rank at once. Returns {rank: what it returned}."""
    made = {}
    threads = [threading.Thread(target=lambda r=r: made.update({r: function(r)})) for r in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


class Group:
    """The ranks of one agreement."""

    def __init__(self, size):
        job = f"originals-{os.getpid()}-{next(_numbers)}"
        self._fleets = _in_threads(lambda rank: _fleet(rank, size, job), range(size))
        self._size, self._changed = size, threading.Condition()
        self._came, self._outcomes = set(), {}

    def end(self, ranks):
        """Ends those of `ranks` that have not come."""
        with self._changed:
            late = set(ranks) - self._came
            self._came |= late
            for rank in late:
                fleet = self._fleets[rank]
                comm = fleet.dispatcher.comm
                fleet.destroy()
                comm.destroy()
                self._outcomes[rank] = flashinfer.MoEEpRankEvictedError(
                    12, f"rank {rank} was masked out: it was ended before it came")
            self._changed.notify_all()

    def _take_part(self, rank, mask):
        fleet = self._fleets[rank]
        try:
            fleet.set_active_mask(mask)
        except ValueError:
            pass  # Of another world: it masks none.
        try:
            outcome = fleet.reconcile_active_mask(LIMIT).tolist()
        except flashinfer.MoEEpRankEvictedError as problem:
            outcome = flashinfer.MoEEpRankEvictedError(
                problem.code, str(problem).replace("was masked", "was masked out", 1))
        with self._changed:
            self._outcomes[rank] = outcome
            self._changed.notify_all()

    def come(self, rank, mask):
        """Lets a rank take part with its mask, unless it has come or was ended before."""
        with self._changed:
            if rank in self._came:
                return
            self._came.add(rank)
            self._changed.notify_all()
        threading.Thread(target=self._take_part, args=(rank, mask), daemon=True).start()

    def outcome(self, rank, awaited, limit):
        """Returns or raises the outcome of a rank. Ends those of `awaited` that do not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._came.issuperset(awaited), limit)
        self.end(awaited)
        with self._changed:
            if not self._changed.wait_for(lambda: rank in self._outcomes, 2 * LIMIT):
                raise TimeoutError(f"rank {rank} has no outcome")
            outcome = self._outcomes[rank]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class HashStore:
    """What the tests use of torch's store of this name."""

    def __init__(self):
        self._lock, self._keys, self._groups = threading.Lock(), {}, {}

    def set(self, key, value):
        """Keeps a value."""
        self._keys[key] = value

    def group(self, epoch, size):
        """Returns the group of an epoch, to which those ranks have come whose keys are there."""
        with self._lock:
            if epoch not in self._groups:
                self._groups[epoch] = made = Group(size)
                start = f"ft/gen{epoch}/"
                decided = self._keys.get(start + "decision", [])
                made.end([rank for rank, is_active in enumerate(decided) if not is_active])
                for rank, is_active in enumerate(decided):
                    if is_active:
                        made.come(rank, [ACTIVE if r == rank else decided[r] for r in range(size)])
                for rank in range(size):
                    if f"{start}local/{rank}" in self._keys:
                        made.come(rank, list(self._keys[f"{start}local/{rank}"]))
            return self._groups[epoch]


def reconcile_masks_via_store(store, *, rank, world_size, local_mask, epoch, timeout_s, takeover_s,
                              clock=time.monotonic):
    """FlashInfer's function. Nobody coordinates here, so that nobody takes over."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected 1 or more")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is out of range: world_size is {world_size}")
    if len(local_mask) != world_size:
        raise ValueError(f"local_mask has {len(local_mask)} values, expected {world_size}")
    view = list(local_mask)
    view[rank] = ACTIVE  # Else the fleet refuses it.
    group = store.group(epoch, world_size)
    group.come(rank, view)
    return group.outcome(rank, [r for r in range(world_size) if view[r] == ACTIVE], timeout_s)


def put_modules():
    """Puts the modules that the tests import where they look for them."""
    put_module("torch", from_numpy=lambda array: array)
    for name in ("flashinfer", "flashinfer.moe_ep", "flashinfer.moe_ep.core",
                 "flashinfer.moe_ep.core.comm", "tensorrt_llm", "tensorrt_llm._torch",
                 "tensorrt_llm._torch.modules", "tensorrt_llm._torch.modules.fused_moe"):
        put_module(name)
    put_module("torch.distributed", HashStore=HashStore)
    sys.modules["torch"].distributed = sys.modules["torch.distributed"]
    put_module("flashinfer.moe_ep.errors", MoEEpRankEvictedError=flashinfer.MoEEpRankEvictedError)
    put_module("flashinfer.moe_ep.core.comm.fault_tolerance", ACTIVE=ACTIVE, MASKED=MASKED,
               reconcile_masks_via_store=reconcile_masks_via_store)
    sys.modules["tensorrt_llm._torch.modules.fused_moe.ep_group_health"] = elastic


def main():
    try:
        import pytest
    except ImportError:
        sys.exit(f"{sys.executable} has no pytest (Debian: python3-pytest)")
    put_modules()
    # Without the settings and plug-ins of the checkout.
    sys.exit(pytest.main(["--noconftest", "-c", os.devnull, "--rootdir", os.getcwd(), "-p",
                          "no:cacheprovider", "-p", "no:hypothesispytest", "-v", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
