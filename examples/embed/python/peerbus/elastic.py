# SPDX-License-Identifier: MIT
"""Which ranks of an expert-parallel group take part, for the threads of an engine.

`EPGroupHealth` has the methods of TensorRT-LLM's class of that name, and `follow` for a group of this
package.
"""

import threading
import typing


EP_MASK_NUM_WORDS = 2
"""How many words `EPGroupHealth.get_mask_words` returns by default."""


class EPGroupHealthSnapshot(typing.NamedTuple):
    """What an `EPGroupHealth` says at one instant."""

    mask: int
    active_count: int
    failed_ranks: frozenset
    generation: int


class EPGroupHealth:
    """Which of the ranks 0 to `ep_size` - 1 are active: at first all. Not collective: each rank has its
    own. Threads may call all methods at once. Raises `ValueError` if `ep_size` is below 1."""

    def __init__(self, ep_size):
        if ep_size < 1:
            raise ValueError(f"ep_size is {ep_size}, expected 1 or more")
        self.ep_size = ep_size
        self._changing = threading.Lock()
        # Replaced as a whole, so that readers need no lock.
        self._now = EPGroupHealthSnapshot((1 << ep_size) - 1, ep_size, frozenset(), 0)

    def _change(self, failed=frozenset(), active=frozenset()):
        """Marks ranks. Returns whether that changed anything."""
        with self._changing:
            before = self._now
            ranks = (before.failed_ranks | failed) - active
            if ranks == before.failed_ranks:
                return False
            mask = (1 << self.ep_size) - 1 - sum(1 << rank for rank in ranks)
            self._now = EPGroupHealthSnapshot(mask, self.ep_size - len(ranks), ranks, before.generation + 1)
            return True

    def _just(self, rank):
        if not 0 <= rank < self.ep_size:
            raise ValueError(f"rank is {rank}, expected 0 to {self.ep_size - 1}: ep_size is {self.ep_size}")
        return frozenset([rank])

    def mark_failed(self, rank):
        """Makes a rank one that failed. Returns whether it was active. Raises `ValueError` if there is no
        such rank."""
        return self._change(failed=self._just(rank))

    def mark_active(self, rank):
        """Makes a rank active. Returns whether it had failed. Raises `ValueError` if there is no such
        rank."""
        return self._change(active=self._just(rank))

    def follow(self, comm):
        """Marks the ranks that are not in the present view of `comm` as failed, in one change. `comm` is a
        `peerbus.Communicator` of `ep_size` ranks, otherwise raises `ValueError`. Returns whether that
        changed anything. A rank that has died takes part until `continue_without_the_dead`."""
        if comm.size != self.ep_size:
            raise ValueError(f"comm has {comm.size} ranks, expected ep_size, {self.ep_size}")
        return self._change(failed=frozenset(range(self.ep_size)).difference(comm.view.members))

    def is_active(self, rank):
        """Returns whether a rank is active. Raises `ValueError` if there is no such rank."""
        return self._just(rank).isdisjoint(self._now.failed_ranks)

    def all_active(self):
        """Returns whether all ranks are active."""
        return not self._now.failed_ranks

    def get_active_count(self):
        """Returns the number of active ranks."""
        return self._now.active_count

    def get_failed_ranks(self):
        """Returns the ranks that are not active, as a frozenset."""
        return self._now.failed_ranks

    def get_mask(self):
        """Returns an int whose bit r is 1 if rank r is active."""
        return self._now.mask

    def get_mask_words(self, num_words=EP_MASK_NUM_WORDS):
        """Returns the mask as a tuple of words of 64 bits, that of ranks 0 to 63 first. Raises
        `ValueError` if they have fewer bits than there are ranks."""
        needed = (self.ep_size + 63) // 64
        if num_words < needed:
            raise ValueError(f"num_words is {num_words}, expected {needed} or more for {self.ep_size} ranks")
        mask = self._now.mask
        return tuple(mask >> 64 * word & (1 << 64) - 1 for word in range(num_words))

    @property
    def generation(self):
        """How many changes there were."""
        return self._now.generation

    def snapshot(self):
        """Returns the `EPGroupHealthSnapshot` of now. Values that several calls return may be of different
        instants."""
        return self._now

    def __len__(self):
        return self.ep_size

    def __repr__(self):
        now = self._now
        return (f"EPGroupHealth(ep_size={self.ep_size}, active_count={now.active_count}, "
                f"failed_ranks={sorted(now.failed_ranks)}, generation={now.generation})")
