# SPDX-License-Identifier: MIT
"""Version 2.5's BufferAllocator: tensors that get their memory from a buffer that is made later."""

import sys

from .. import _library as c

ALIGNMENT = 64  # Bytes: a cache line, which two tensors never share.


def aligned(nbytes):
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def get_num_allocation_alignment():
    """Returns the alignment of tensors and sizes of buffers in bytes. Sizes need none here."""
    return ALIGNMENT


get_num_rdma_alignment = get_num_allocation_alignment


def get_num_tma_alignment():
    """Returns the alignment in bytes that TMA needs."""
    return 32


class BufferAllocator:
    """Tensors of torch that will lie in a `BucketBuffer`, which is made of this plan. Until then their
    memory is their own. numpy's arrays cannot change their memory: use `BucketSession.allocate` or
    views of `BucketBuffer.storage`."""

    def __init__(self):
        self.alignment, self.allocations, self.num_bytes = ALIGNMENT, [], 0
        self.materialized = False

    def allocate(self, shape, dtype):
        """Returns a tensor of torch, whose elements are unset until the buffer is made and then 0."""
        self._require_open()
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}, expected a type of torch: numpy arrays cannot be "
                            "given memory later")
        tensor = torch.empty(shape, dtype=dtype)
        offset = aligned(self.num_bytes)
        self.allocations.append((tensor, offset))
        self.num_bytes = aligned(offset + tensor.numel() * tensor.element_size())
        return tensor

    def materialize(self, storage):
        """Makes the tensors views of `storage`, uint8 [num_bytes]. `BucketBuffer` calls it."""
        self._require_open()
        for tensor, offset in self.allocations:
            nbytes = tensor.numel() * tensor.element_size()
            tensor.set_(storage[offset:offset + nbytes].view(tensor.dtype).view(tensor.shape))
        self.materialized = True

    def materialize_in(self, comm):
        """Collective: makes the tensors views of memory that the ranks share, with elements of 0."""
        self._require_open()
        window = comm.window(max(1, self.num_bytes))
        self.materialize(sys.modules["torch"].from_numpy(window.part(comm.rank)))

    def _require_open(self):
        if self.materialized:
            raise c.InvalidArgument(1, "BufferAllocator: the plan has been used for a buffer; expected "
                                       "a new one")
