# SPDX-License-Identifier: MIT
"""Entries that all ranks store and that each rank fetches by their numbers: DeepEP's Engram."""

import numpy

from .. import _library as c
from .._tensors import as_numpy, empty_like, is_torch
from .allocator import aligned
from .buffer_base import BufferBase
from .raw import Bytes, item_bytes
from .words import Words


class Engram:
    """Tables of entries in a window. Entry i of a table lies at rank i // entries of a rank. A fetch
    reads peers' memory by itself; no other rank takes part, except that data from another host comes
    during calls of that rank."""

    def __init__(self, comm, storage_bytes):
        """Does not communicate. The first `write` makes the window."""
        self._comm, self._storage_bytes, self._near = comm, storage_bytes, set(comm.near_ranks)
        self._words, self._window, self._tables = None, None, []

    def write(self, call, storages, sfs, shapes=None):
        """Collective: replaces the tables by those of all ranks' `storages`, [entries, hidden] each, of
        equal sizes on all ranks, and of `shapes` if that is given. `sfs` are the scales of all ranks'
        entries, kept by reference."""
        if self._words is None:
            self._words = Words(self._comm)
        memory, begins = self._words.agree(call, "the sizes or types of tables",
                                           lambda: self._arguments(call, storages, sfs, shapes))
        if self._window is None:
            self._window = self._comm.window(max(1, self._storage_bytes))
        self._comm.barrier()  # No rank reads the tables before.
        own = self._window.part(self._comm.rank)
        for table, begin in zip(memory, begins):
            own[begin:begin + table.nbytes] = table.flat
        self._tables = [(begin, table.shape[0], table.rows.shape[1], empty_like(storage, [0]),
                         storage.shape[1], None if sfs is None else sfs[i])
                        for i, (begin, table, storage) in enumerate(zip(begins, memory, storages))]
        self._comm.barrier()

    def _arguments(self, call, storages, sfs, shapes):
        given = [list(storage.shape) for storage in storages]
        if shapes is not None and given != shapes:
            raise c.InvalidArgument(1, f"{call}: storages are {given}, expected those of set_config, "
                                       f"{shapes}")
        memory = [Bytes(storage, "storage") for storage in storages]
        begins, used = [], 0
        for table in memory:
            if len(table.shape) != 2 or 0 in table.shape:
                raise c.InvalidArgument(1, f"{call}: storage is {list(table.shape)}, expected "
                                           "[entries, hidden]")
            begins.append(used)
            used += table.nbytes
        if used > self._storage_bytes:
            raise c.InvalidArgument(1, f"{call}: the storage has {used} bytes, expected at most the "
                                       f"buffer's {self._storage_bytes}")
        if sfs is not None and len(sfs) != len(memory):
            raise c.InvalidArgument(1, f"{call}: {len(sfs)} scales for {len(memory)} tables")
        for table, sf in zip(memory, sfs or ()):
            shape, total = list(sf.shape), self._comm.size * table.shape[0]
            if len(shape) != 2 or shape[0] != total or item_bytes(sf.dtype) != 4:
                raise c.InvalidArgument(1, f"{call}: sf is {sf.dtype} {shape}, expected 4 bytes each "
                                           f"[{total}, any]: those of all ranks' entries")
        text = str([(table.shape, table.nbytes) for table in memory] + [sfs is None])
        return text, (memory, begins)

    def fetch(self, call, indices, table, most_bytes, is_by_column):
        """Returns (rows, scales): [tokens, entries of a token * hidden] of the entries in `indices`,
        int32 [tokens, entries of a token], and their scales alike, or None. Bad ones raise on this
        rank alone, and no other rank waits."""
        if not self._tables:
            raise c.InvalidArgument(1, f"{call}: no entries have been written, expected a write first")
        begin, entries, entry_bytes, like, hidden, sf = self._tables[table]
        ids = as_numpy(indices)
        if ids.dtype != numpy.int32 or ids.ndim != 2:
            raise c.InvalidArgument(1, f"{call}: indices are {ids.dtype} {list(ids.shape)}, expected "
                                       "int32 [tokens, entries of a token]")
        total = self._comm.size * entries
        if ids.size and not 0 <= ids.min() <= ids.max() < total:
            bad = ids[(ids < 0) | (ids >= total)][0]
            raise c.InvalidArgument(1, f"{call}: indices has {bad}, expected 0 to {total - 1}")
        if ids.size * entry_bytes > most_bytes:
            raise c.InvalidArgument(1, f"{call}: {ids.size} entries have {ids.size * entry_bytes} "
                                       f"bytes, expected at most the buffer's {most_bytes}")
        rows = empty_like(like, [ids.shape[0], ids.shape[1] * hidden])
        target = Bytes(rows, "rows").flat.reshape(ids.size, entry_bytes)
        owners, places = numpy.divmod(ids.reshape(-1), entries)
        for rank in map(int, numpy.unique(owners)):
            here = owners == rank
            if rank in self._near:
                part = self._window.part(rank)[begin:begin + entries * entry_bytes]
                target[here] = part.reshape(entries, entry_bytes)[places[here]]
                continue
            for i in numpy.flatnonzero(here):
                target[i] = self._window.get(rank, begin + int(places[i]) * entry_bytes, entry_bytes)
        return rows, None if sf is None else _scales(sf, indices, is_by_column)


def _scales(sf, indices, is_by_column):
    tokens, of_token = indices.shape
    ids = indices.reshape(-1)
    flat = sf[ids.long() if is_torch(ids) else ids].reshape(tokens, of_token * sf.shape[1])
    if not is_by_column:
        return flat
    # Columns of whole 16 bytes, as TMA reads them.
    view = empty_like(flat, [flat.shape[1], -(-tokens // 4) * 4]).T[:tokens]
    view[:] = flat
    return view


class EngramBuffer(BufferBase):
    """DeepEP's EngramBuffer of version 2.5: tables of entries, one for each layer.

    `group` as in `Buffer`. `num_rdma_storage_bytes` is the memory of this rank's entries, and
    `num_gpu_bytes` the most that a fetch brings. The kind of memory, queue pairs and service levels
    are accepted and have no meaning here.
    """

    def __init__(self, group, num_gpu_bytes, num_rdma_storage_bytes, use_cpu_rdma_storage,
                 num_allocated_qps, qp_depth, restrict_rd_atomic=False, allow_hybrid_mode=True,
                 sl_idx=None, num_gpu_timeout_secs=100, explicitly_destroy=False):
        super().__init__(explicitly_destroy)
        self._join(group, num_gpu_timeout_secs)
        self.num_gpu_bytes, self.num_rdma_storage_bytes = num_gpu_bytes, num_rdma_storage_bytes
        self.num_bytes = num_gpu_bytes + num_rdma_storage_bytes
        self.use_cpu_rdma_storage, self.allow_hybrid_mode = use_cpu_rdma_storage, allow_hybrid_mode
        self.num_allocated_qps = num_allocated_qps
        self._engram = Engram(self.comm, num_rdma_storage_bytes)
        self._config = None

    def destroy(self):
        """Ends the use of the buffer. Results stay valid."""
        super().destroy()
        self._engram = None

    @staticmethod
    def get_storage_size_hint(group, num_entries_per_layer, hidden, num_max_tokens,
                              num_entries_per_token, dtype="bfloat16", num_sf_packs=0):
        """Returns the bytes for `num_gpu_bytes` and `num_rdma_storage_bytes`."""
        entry, entries = hidden * _item(dtype), sum(num_entries_per_layer)
        fetched = aligned(len(num_entries_per_layer) * num_max_tokens * num_entries_per_token * entry)
        return fetched + aligned(entries * num_sf_packs * 4), aligned(entries * entry)

    @staticmethod
    def get_theoretical_config(group, num_layers, num_max_tokens, num_entries_per_token,
                               num_max_read_requests_per_qp=16):
        """Returns (1, 1024, False): there are no queue pairs, and nothing to choose."""
        return 1, 1024, False

    def set_config(self, num_entries_per_layer, hidden, num_max_tokens, num_entries_per_token,
                   dtype="bfloat16", num_sf_packs=0):
        """Collective: states the sizes of the tables that `write` takes and `fetch` reads."""
        self._alive()
        self.comm.barrier()
        sizes = [*num_entries_per_layer, hidden, num_max_tokens, num_entries_per_token]
        nbytes = sum(num_entries_per_layer) * hidden * _item(dtype)
        if min(sizes) <= 0 or nbytes > self.num_rdma_storage_bytes:
            raise c.InvalidArgument(1, f"EngramBuffer.set_config: sizes are {sizes} with {nbytes} bytes"
                                       ", expected positive ones of at most the buffer's "
                                       f"{self.num_rdma_storage_bytes}")
        self._config = (list(num_entries_per_layer), hidden, num_max_tokens, num_entries_per_token,
                        num_sf_packs)

    def write(self, storages, sfs=None):
        """Collective: stores this rank's entries, `storages[layer]` [entries, hidden]. `sfs[layer]` are
        the scales of all ranks' entries, [ranks * entries, num_sf_packs] of 4 bytes, kept by
        reference. Includes a barrier before and behind."""
        self._alive()
        call = "EngramBuffer.write"
        shapes = [] if self._config is None else [
            [entries, self._config[1]] for entries in self._config[0]]
        self._engram.write(call, storages, sfs, shapes)

    def fetch(self, indices, num_qps=0, use_tma_aligned_col_major_sf=True):
        """Fetches the entries `indices`, int32 [layers, tokens, entries of a token], and returns for
        each layer a function that returns [tokens, entries of a token * hidden], or with scales a
        pair. The memory is the results' own. Not collective: no other rank waits, and bad
        indices raise on this rank alone. Entries of another host come during calls of its ranks."""
        self._alive()
        call = "EngramBuffer.fetch"
        layers = 0 if self._config is None else len(self._config[0])
        if len(indices.shape) != 3 or indices.shape[0] != layers:
            raise c.InvalidArgument(1, f"{call}: indices are {list(indices.shape)}, expected "
                                       f"[{layers}, tokens, entries of a token]")
        if indices.shape[1] > self._config[2]:
            raise c.InvalidArgument(1, f"{call}: {indices.shape[1]} tokens, expected at most "
                                       f"{self._config[2]} of set_config")
        made = [self._engram.fetch(call, indices[layer], layer, self.num_gpu_bytes // layers,
                                   use_tma_aligned_col_major_sf) for layer in range(layers)]
        return [lambda rows=rows, scales=scales: rows if scales is None else (rows, scales)
                for rows, scales in made]


def _item(dtype):
    return 2 if dtype == "bfloat16" else item_bytes(dtype)
