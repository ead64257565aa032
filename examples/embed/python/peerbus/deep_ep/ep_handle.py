# SPDX-License-Identifier: MIT
"""EPHandle of versions 2.1 and 2.5: the plan that a dispatch makes."""

import numpy

from .. import _library as c
from .._tensors import as_numpy, is_torch, like
from .results import copy


class EPHandle:
    """The routing and the counts of a dispatch, with DeepEP's names. Combines and further dispatches
    take it as often as they like. `topk_idx` must not change as long as the handle is used, unless
    `do_handle_copy` copied it. Rows of `recv_src_metadata` are, for each received token: source rank *
    num_max_tokens_per_rank + token; source rank * K + its first slot here; and the expanded row of
    each slot, or -1. `num_recv_tokens` and `num_expanded_tokens` are the rows of the tensors of a
    dispatch, which without `do_cpu_sync` are the greatest possible ones."""

    # Of DeepEP's way between nodes, and of its sort.
    token_metadata_at_forward = channel_linked_list = cached_recv_src_metadata_before_sort = None

    def __init__(self, topk_idx, is_copy, ranks, **members):
        self._topk_idx, self._ranks, self._slots = topk_idx, ranks, None
        self._seen = None if is_copy else _mark(topk_idx)
        self.__dict__.update(members)

    @property
    def topk_idx(self):
        """The ids of the dispatch. Raises if they were changed."""
        self._check("EPHandle")
        return self._topk_idx

    @property
    def dst_buffer_slot_idx(self):
        """int32 [T, K]: the place of the token among those that this rank sends to the slot's rank, at
        the first slot of that rank; -1 elsewhere."""
        if self._slots is None:
            ids = as_numpy(self._topk_idx)
            least, larger = divmod(self.num_experts, self._ranks)
            slots, begin = numpy.full(ids.shape, -1, numpy.int32), 0
            for rank in range(self._ranks if ids.size else 0):
                end = begin + least + (rank < larger)
                here = (begin <= ids) & (ids < end)
                tokens, begin = numpy.flatnonzero(here.any(axis=1)), end
                slots[tokens, here[tokens].argmax(axis=1)] = numpy.arange(len(tokens))
            self._slots = like(self._topk_idx, slots)
        return self._slots

    def deterministic_sort(self, *_, **__):
        """Does nothing: rows are in the order of their sources."""

    def _check(self, call):
        if self._seen is None:
            return
        same = self._topk_idx._version == self._seen if isinstance(self._seen, int) \
            else bool((self._topk_idx == self._seen).all())
        if not same:
            raise c.InvalidArgument(1, f"{call}: handle.topk_idx was changed after its dispatch; "
                                       "dispatch anew, or keep a copy")


def _mark(topk_idx):
    """Returns a value that tells later whether the ids have changed: the version that torch counts,
    or a copy of ids that have none, which are numpy arrays and tensors of the inference mode."""
    if is_torch(topk_idx) and not topk_idx.is_inference():
        return topk_idx._version
    return copy(topk_idx)
