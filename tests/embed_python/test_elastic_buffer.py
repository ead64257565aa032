# SPDX-License-Identifier: MIT
"""What the checks of DeepEP 2.1's tests/elastic need of ElasticBuffer, and version 2.5's EngramBuffer
and PPBuffer, written anew from their inputs and oracles; and the calls of vLLM's and SGLang's
dispatchers for ElasticBuffer, with a rank that has no tokens."""

import unittest

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from ranks import bf16, main, needs_torch, raises, run, widened
from test_deep_ep import gathered, rounded
from test_ep_buffer import HIDDEN, MOST, TOP_K, inputs, outputs

bad = peerbus.InvalidArgument


def entries_of(rank, count, hidden, seed=0):
    return numpy.random.default_rng([rank, seed]).integers(0, 1 << 16, [count, hidden], "u2")


def engrams():
    """Entries that all ranks store, fetched by their numbers, with scales and without."""
    entries, hidden = 37, 24
    gpu, cpu = deep_ep.ElasticBuffer.get_engram_storage_size_hint(entries, hidden, 5 * 3, "uint16")
    buffer = deep_ep.ElasticBuffer(None, gpu + cpu, cpu)
    rank, size = buffer.rank_idx, buffer.num_ranks
    draw = numpy.random.default_rng(rank)
    raises(bad, "a write first", buffer.engram_fetch, numpy.zeros([1, 1], numpy.int32))
    earlier = None
    for seed in range(3):
        everything = numpy.concatenate([entries_of(r, entries, hidden, seed) for r in range(size)])
        buffer.engram_write(entries_of(rank, entries, hidden, seed))
        for tokens in (0 if rank == 1 else 5, 1):
            indices = draw.integers(0, size * entries, [tokens, 3], "i4")
            rows, scales = buffer.engram_fetch(indices)()
            assert scales is None and rows.shape == (tokens, 3 * hidden)
            assert (rows == everything[indices.reshape(-1)].reshape(tokens, 3 * hidden)).all()
        if earlier is not None:  # A fetch brings what was there when it was called.
            assert (earlier[0]()[0] == earlier[1]).all()
        indices = draw.integers(0, size * entries, [4, 2], "i4")
        earlier = buffer.engram_fetch(indices), everything[indices.reshape(-1)].reshape(4, -1)
    codes = everything.view(numpy.uint8)[:, :hidden].copy()
    factors = numpy.random.default_rng(5).random([size * entries, 2], numpy.float32)
    buffer.engram_write(codes[rank * entries:(rank + 1) * entries].copy(), sf=factors)
    indices = draw.integers(0, size * entries, [5, 3], "i4")
    for is_by_column in (False, True):
        rows, scales = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=is_by_column)()
        assert (rows == codes[indices.reshape(-1)].reshape(5, -1)).all()
        assert (scales == factors[indices.reshape(-1)].reshape(5, -1)).all()
        assert scales.strides == ((4, 32) if is_by_column else (24, 4))
    for wrong, text in (
            (indices.astype(numpy.int64), "expected int32"), (indices[0], "expected int32"),
            (indices * 0 - 1, "indices has -1"), (indices * 0 + size * entries, f"has {size * entries}"),
            (numpy.zeros([gpu, 1], "i4"), "at most the buffer's")):
        raises(bad, text, buffer.engram_fetch, wrong)
    # What one rank may not write, or writes unlike the others, none does.
    own = entries_of(rank, entries, hidden)
    large = numpy.zeros([cpu, 1], numpy.uint16)
    for given, text in ((large, "expected at most the buffer's"), (own[0], "expected [entries, hidden]"),
                        (own[:, ::2], "has gaps")):
        raises(bad if rank == size - 1 else peerbus.Refused,
               text if rank == size - 1 else f"rank {size - 1} refused",
               buffer.engram_write, given if rank == size - 1 else own)
    if size > 1:
        raises(peerbus.Error, "rank 1 differ", buffer.engram_write, own[:5] if rank == 1 else own)
    rows, _ = buffer.engram_fetch(indices)()
    assert (rows == codes[indices.reshape(-1)].reshape(5, -1)).all()
    buffer.barrier()  # Entries of another host come during calls of its ranks.
    layers()


def layers():
    """EngramBuffer: a table for each layer, whose results are asked for in any order."""
    sizes, hidden, tokens, of_token = [11, 30], 16, 6, 2
    sizes_of = deep_ep.EngramBuffer.get_storage_size_hint(None, sizes, hidden, tokens, of_token, "u2")
    buffer = deep_ep.EngramBuffer(None, *sizes_of, True, 1, 1024)
    rank, size = buffer.rank_idx, buffer.num_ranks
    raises(bad, "storages are", buffer.write, [entries_of(rank, 3, hidden)])
    buffer.set_config(sizes, hidden, tokens, of_token, "u2")
    tables = [[entries_of(r, count, hidden, layer) for layer, count in enumerate(sizes)]
              for r in range(size)]
    buffer.write(tables[rank])
    draw = numpy.random.default_rng(rank)
    indices = numpy.stack([draw.integers(0, size * count, [tokens, of_token], "i4")
                           for count in sizes])
    hooks = buffer.fetch(indices)
    for layer in (1, 0):
        whole = numpy.concatenate([each[layer] for each in tables])
        assert (hooks[layer]() == whole[indices[layer].reshape(-1)].reshape(tokens, -1)).all()
    raises(bad, "7 tokens, expected at most 6", buffer.fetch, numpy.zeros([2, 7, 2], "i4"))
    raises(bad, "expected [2, tokens", buffer.fetch, indices[0])
    raises(bad if rank == 0 else peerbus.Refused, "storages are" if rank == 0 else "rank 0 refused",
           buffer.write, tables[rank][:1] if rank == 0 else tables[rank])
    buffer.destroy()
    raises(bad, "EngramBuffer was destroyed", buffer.fetch, indices)


def neighbours():
    """Tensors sent around the ring in both directions, more than may be on their way at a time."""
    most, places = 1000, 3
    buffer = deep_ep.ElasticBuffer(
        None, deep_ep.ElasticBuffer.get_pp_buffer_size_hint(most, places))
    rank, size = buffer.rank_idx, buffer.num_ranks
    raises(bad, "pp_set_config first", buffer.pp_send, numpy.zeros(1), 0)
    buffer.pp_set_config(most, places)
    other = deep_ep.PPBuffer(None, most, places)
    for send, recv in ((buffer.pp_send, buffer.pp_recv), (other.send, other.recv)):
        for turn in range(9):
            for step in (1, -1):
                for i in range(places if size > 2 else 1):
                    send(numpy.full([2, 5], 100 * rank + 10 * step + i + turn, "f4"),
                         (rank + step) % size)
            for step in (1, -1):
                for i in range(places if size > 2 else 1):
                    came = numpy.empty([2, 5], "f4")
                    recv(came, (rank - step) % size)
                    assert (came == 100 * ((rank - step) % size) + 10 * step + i + turn).all()
    # A send waits for room: the first rank is places + 2 tensors ahead of the second.
    if size > 1 and rank == 0:
        for i in range(places + 2):
            buffer.pp_send(numpy.full(i, i, numpy.int64), 1)  # The first one is empty.
    elif rank == 1:
        for i in range(places + 2):
            if i == places:
                raises(peerbus.Error, f"sent {8 * i} bytes, the tensor has 8", buffer.pp_recv,
                       numpy.zeros(1), 0)
            came = numpy.zeros(i, numpy.int64)
            buffer.pp_recv(came, 0)
            assert (came == i).all()
    most_of = "expected at most the 1000 of pp_set_config"
    raises(bad, most_of, buffer.pp_recv, numpy.zeros(1001, "u1"), (rank + 1) % size)
    raises(bad, "has gaps", buffer.pp_recv, numpy.zeros([4, 4])[:, :2], (rank + 1) % size)
    # What may not be sent is refused on both ranks.
    raises(bad, most_of, buffer.pp_send, numpy.zeros(1001, "u1"), (rank + 1) % size)
    raises(bad, "has gaps", buffer.pp_send, numpy.zeros([4, 4])[:, :2], (rank + 1) % size)
    for text in (most_of, "at null"):
        raises(peerbus.Refused, text, buffer.pp_recv, numpy.zeros(4), (rank - 1) % size)
    raises(bad, "the previous or the next", buffer.pp_send, numpy.zeros(1), size)
    if size > 3:
        raises(bad, "the previous or the next", buffer.pp_send, numpy.zeros(1), (rank + 2) % size)
    raises(bad if rank == 0 else peerbus.Refused if size > 1 else bad,
           "expected at most the buffer's" if rank == 0 else "rank 0 could not",
           buffer.pp_set_config, 1 << 30 if rank == 0 else most, places)
    if size > 1:
        raises(peerbus.Error, "3 tensors of 1001 bytes", buffer.pp_set_config, most + (rank == 1), places)
    buffer.pp_set_config(most, places)  # Nothing of before is left.
    buffer.pp_send(numpy.full(3, rank), (rank + 1) % size)
    came = numpy.zeros(3, int)
    buffer.pp_recv(came, (rank - 1) % size)
    assert (came == (rank - 1) % size).all()
    buffer.barrier()  # A rank that leaves waits a moment only for peers of other hosts to take what it sent.
    other.destroy()
    raises(bad, "PPBuffer was destroyed", other.send, came, (rank + 1) % size)


def sessions():
    """Gathers in sessions: in place or not, singly or in batches, waited for in any order."""
    shape, calls = (3, 7), 4
    kind = numpy.dtype("u2")
    elastic = deep_ep.ElasticBuffer
    size_of_session = elastic.get_agrs_num_max_session_bytes(
        peerbus.Communicator(), [shape] * calls, kind)
    buffer = elastic(None, elastic.get_agrs_buffer_size_hint(None, size_of_session))
    rank, size = buffer.rank_idx, buffer.num_ranks
    assert size_of_session == calls * -(-size * 42 // 32) * 32
    raises(bad, "agrs_set_config first", buffer.create_agrs_session)
    buffer.agrs_set_config(size_of_session, calls)
    raises(bad, "no session is open", buffer.all_gather, numpy.zeros(shape, kind))
    draw = numpy.random.default_rng(3)  # The same on all ranks.
    for session in range(12):
        with buffer.agrs_new_session():
            everything = draw.integers(0, 1 << 16, [calls, size, *shape], kind)
            waiting, call = [], 0
            while call < calls:
                number = int(draw.integers(1, calls - call + 1))
                own = [everything[i, rank] for i in range(call, call + number)]
                if draw.random() < 0.5:
                    places = buffer.agrs_get_inplace_tensor([shape] * number, kind)
                    for place, tensor in zip(places, own):
                        place[:] = tensor
                    own = places
                if number == 1 and draw.random() < 0.5:
                    made, wait = buffer.all_gather(own[0])
                    made = [made]
                else:
                    *made, wait = buffer.all_gather(own)
                waiting.append((wait, made, everything[call:call + number]))
                call += number
            for each in draw.permutation(len(waiting)):
                wait, made, expected = waiting[each]
                wait()
                for got, wanted in zip(made, expected):
                    assert got.shape == (size, *shape) and (got == wanted).all()
            if len(waiting) < calls:
                raises(bad, "those of agrs_set_config", buffer.all_gather, numpy.zeros(shape, kind))
            raises(bad, "a session is open", buffer.create_agrs_session)
    raises(bad, "no session is open", wait)
    with buffer.agrs_new_session(enabled=False):
        raises(bad, "no session is open", buffer.destroy_agrs_session)
    with buffer.agrs_new_session():
        raises(bad, "in session 13", wait)
        place = buffer.agrs_get_inplace_tensor(shape, kind)
        buffer.all_gather(numpy.zeros([1, 7], kind))[1]()
        raises(bad, "agrs_get_inplace_tensor places it", buffer.all_gather, place)
        if size > 1:  # Other sizes on one rank are seen by all.
            *_, wait = buffer.all_gather(numpy.zeros(5 if rank == 1 else 4, numpy.uint8))
            raises(peerbus.Error, "rank 0 gathers other" if rank == 1 else "rank 1 gathers other", wait)
    raises(bad if rank == 0 else peerbus.Refused, "at most the buffer's" if rank == 0 else
           "rank 0 refused", buffer.agrs_set_config, 1 << 40 if rank == 0 else 64, 1)
    buffer.destroy()
    raises(bad, "ElasticBuffer was destroyed", buffer.create_agrs_session)


def layer_inputs(rank, experts, layer):
    """Returns the inputs of a layer. Rank 1 has no tokens."""
    draw = numpy.random.default_rng([rank, layer])
    count = 0 if rank == 1 else MOST - rank
    ids = numpy.stack([draw.permutation(experts)[:TOP_K] for _ in range(MOST)])[:count]
    ids[draw.random(ids.shape) < 0.2] = -1
    return rounded(draw.standard_normal([count, HIDDEN])), ids, draw.random(ids.shape, "f4")


def plans():
    """A handle is a plan: it is combined and dispatched with again, forward and backward through
    layers, with a rank that has no tokens."""
    for do_expand, is_folded in ((False, True), (True, True), (True, False)):
        buffer = deep_ep.ElasticBuffer(None, num_max_tokens_per_rank=MOST, hidden=HIDDEN,
                                       num_topk=TOP_K, allow_multiple_reduction=is_folded)
        assert buffer.num_bytes > 0 and buffer.num_scaleup_ranks == buffer.num_ranks
        rank, size = buffer.rank_idx, buffer.num_ranks
        experts, local = 4 * size, 4
        handles = []
        for layer in range(5):
            x, ids, weights = layer_inputs(rank, experts, layer)
            kept = ids.copy()
            recv, idx, recv_weights, handle, event = buffer.dispatch(
                x, kept, weights, num_experts=experts, do_expand=do_expand, expert_alignment=4,
                do_zero_padding=do_expand, previous_event=buffer.capture(),
                previous_event_before_epilogue=buffer.capture(), allocate_on_comm_stream=True,
                async_with_compute_stream=True)
            event.current_stream_wait()
            kept[:] = 0  # The handle has a copy.
            combined, combined_weights, _ = buffer.combine(
                recv, handle, recv_weights, previous_event_before_epilogue=buffer.capture())
            check_copies(combined, x, ids, local, do_expand, is_folded)
            assert (combined_weights == numpy.where(ids >= 0, weights, 0)).all()
            handles.append((handle, x, ids, weights, recv, recv_weights))
        for handle, x, ids, _, recv, _ in handles:  # Though others were dispatched in between.
            check_copies(buffer.combine(recv, handle)[0], x, ids, local, do_expand, is_folded)
        for handle, x, ids, weights, _, recv_weights in reversed(handles):
            gradient, cached_idx, _, same, _ = buffer.dispatch(x, handle=handle)
            assert same is handle and (handle.topk_idx == ids).all()
            assert (cached_idx is None) == do_expand
            for _ in range(3):  # Again and again, with the same bits.
                combined, combined_weights, _ = buffer.combine(gradient, handle, recv_weights)
                check_copies(combined, x, ids, local, do_expand, is_folded)
                assert (combined_weights == numpy.where(ids >= 0, weights, 0)).all()
    everything = gathered(buffer.comm, numpy.array([len(layer_inputs(r, experts, 0)[0])
                                                    for r in range(size)]))
    assert (everything[:, 1:2] == 0).all()


def check_copies(combined, x, ids, local, do_expand, is_folded):
    """Checks sums of a token's own row, one from each expert or rank that it was sent to. If they are
    folded, a rank adds up its rows and rounds them first."""
    assert combined.shape == x.shape
    for t, row in enumerate(ids):
        owners = [e // local for e in row if e >= 0]
        total = numpy.zeros(HIDDEN, numpy.float32)
        for owner in set(owners):
            rows = owners.count(owner) if do_expand else 1
            total += widened(rounded(rows * widened(x[t]))) if is_folded else rows * widened(x[t])
        assert (widened(combined[t]) == widened(rounded(total))).all()


def engine_inputs(torch, rank, experts):
    """Returns (x, ids, weights) of a rank; rank 1 has no tokens."""
    x, ids, weights = layer_inputs(rank, experts, 7)
    bits = torch.from_numpy(x.view(numpy.int16)).view(torch.bfloat16)
    return bits, torch.from_numpy(ids), torch.from_numpy(weights)


def factor(torch, expert):
    return 1 + expert.to(torch.float32) / 4


def check_outputs(torch, combined, x, ids, weights):
    """Checks the sum of what the experts of each token, which multiply by `factor`, make of it."""
    gates = torch.where(ids >= 0, weights * factor(torch, ids), torch.zeros_like(weights)).sum(dim=1)
    wanted = x.float() * gates[:, None]
    assert combined.shape == x.shape and combined.dtype == torch.bfloat16
    assert torch.allclose(combined.float(), wanted, rtol=0.02, atol=0.02)


def weighted_rows(torch, rows, local_ids, weights, first):
    """Returns what a rank sends home of rows with several local experts each."""
    held = local_ids >= 0
    gates = torch.where(held, weights * factor(torch, local_ids + first), torch.zeros_like(weights))
    return (rows.float() * gates.sum(dim=1)[:, None]).to(torch.bfloat16)


def vllm_v2():
    """vLLM's deepep_v2: prefill with rows by expert, decode with rows by rank and no exact counts."""
    import torch
    from peerbus.deep_ep.utils import per_token_cast_back, per_token_cast_to_fp8
    buffer = deep_ep.ElasticBuffer(None, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOP_K)
    rank, size = buffer.rank_idx, buffer.num_ranks
    experts, local = 4 * size, 4
    for is_decode in (False, True, False):
        x, ids, weights = engine_inputs(torch, rank, experts)
        data, scales = x, None
        if is_decode:  # Quantised before the dispatch.
            data, scales = per_token_cast_to_fp8(x)
            x = per_token_cast_back(data, scales)
        recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
            x=data if scales is None else (data, scales), topk_idx=ids, topk_weights=weights,
            num_experts=experts, num_max_tokens_per_rank=MOST if is_decode else None,
            do_expand=not is_decode, do_cpu_sync=not is_decode, async_with_compute_stream=False)
        if event.event is not None:
            event.current_stream_wait()
        listed = handle.num_recv_tokens_per_expert_list
        if recv_idx is None:
            assert recv_weights.ndim == 1 and sum(listed) == len(recv_x)
            each = torch.repeat_interleave(torch.arange(local) + rank * local, torch.tensor(listed))
            gates = recv_weights * factor(torch, each)
            output = (recv_x.float() * gates[:, None]).to(torch.bfloat16)
        else:
            assert listed == [] and len(recv_x[0]) == len(recv_x[1]) == size * MOST
            came = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
            recv_idx[came:] = -1
            assert (recv_idx < local).all()
            rows = torch.zeros([size * MOST, HIDDEN], dtype=torch.bfloat16)
            rows[:came] = per_token_cast_back(recv_x[0][:came], recv_x[1][:came])
            output = weighted_rows(torch, rows, recv_idx, recv_weights, rank * local)
        combined, _, event = buffer.combine(x=output, handle=handle, topk_weights=None,
                                            async_with_compute_stream=True,
                                            allocate_on_comm_stream=True)
        if event.event is not None:
            event.current_stream_wait()
        check_outputs(torch, combined, x, ids, weights)


def sglang_v2():
    """SGLang's deepep_v2: rows by rank, with a token in place of none, and rows by expert for masked
    GEMMs, whose counts stay in tensors."""
    import torch
    buffer = deep_ep.ElasticBuffer(
        peerbus.Communicator(), num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOP_K,
        use_fp8_dispatch=False, allow_hybrid_mode=False, sl_idx=0, prefer_overlap_with_compute=False)
    rank, size = buffer.rank_idx, buffer.num_ranks
    experts, local, alignment = 4 * size, 4, 16
    sms = buffer.get_theoretical_num_sms(experts, TOP_K)
    qps = buffer.get_theoretical_num_qps(sms)
    for is_masked in (False, True, False, True):
        x, ids, weights = engine_inputs(torch, rank, experts)
        is_padded = not is_masked and len(x) == 0
        if is_padded:
            x, ids = x.new_zeros([1, HIDDEN]), torch.arange(TOP_K)[None]
            weights = weights.new_zeros([1, TOP_K])
        recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_experts=experts,
            num_max_tokens_per_rank=MOST, expert_alignment=alignment, num_sms=sms, num_qps=qps,
            use_tma_aligned_col_major_sf=False, do_cpu_sync=not is_masked, do_expand=is_masked)
        if event.event is not None:
            event.current_stream_wait()
        if is_masked:
            ends = handle.psum_num_recv_tokens_per_expert.tolist()
            output, begin = torch.zeros_like(recv_x), 0
            for e, end in enumerate(ends):
                gates = recv_weights[begin:end] * factor(torch, torch.tensor(rank * local + e))
                output[begin:end] = (recv_x[begin:end].float() * gates[:, None]).to(torch.bfloat16)
                begin = -(-end // alignment) * alignment
            given = None
        else:
            came = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1].item())
            assert came == len(recv_x) and all(
                count % alignment == 0 for count in handle.num_recv_tokens_per_expert_list)
            recv_idx, given = recv_idx[:came], recv_weights[:came]
            output = weighted_rows(torch, recv_x[:came], recv_idx, given, rank * local)
        combined, _, event = buffer.combine(output, handle=handle, topk_weights=given, num_sms=sms,
                                            num_qps=qps)
        if event.event is not None:
            event.current_stream_wait()
        if is_padded:
            assert len(combined[:0]) == 0 and not combined.any()
        check_outputs(torch, combined, x, ids, weights)


def torch_tensors():
    """Entries, neighbours and gathers of torch's tensors."""
    import torch
    elastic = deep_ep.ElasticBuffer
    gpu, cpu = elastic.get_engram_storage_size_hint(16, 64, 10, torch.bfloat16)
    buffer = elastic(None, gpu + cpu, cpu)
    rank, size = buffer.rank_idx, buffer.num_ranks
    torch.manual_seed(3)
    everything = torch.randn([size * 16, 64]).to(torch.bfloat16)
    factors = torch.randn([size * 16, 3])
    buffer.engram_write(everything[rank * 16:][:16].contiguous(), sf=factors)
    indices = torch.randint(0, size * 16, [5, 2], dtype=torch.int)
    rows, scales = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=True)()
    places = indices.reshape(-1).long()
    assert torch.equal(rows, everything[places].reshape(5, -1))
    assert torch.equal(scales, factors[places].reshape(5, -1)) and scales.stride() == (1, 8)
    buffer.pp_set_config(64 * 2, 2)
    own, came = everything[rank], torch.empty(64, dtype=torch.bfloat16)
    buffer.pp_send(own, (rank + 1) % size)
    buffer.pp_recv(came, (rank - 1) % size)
    assert torch.equal(came, everything[(rank - 1) % size])
    raises(peerbus.InvalidArgument, "has gaps", buffer.pp_send, everything[:4, 0], (rank + 1) % size)
    nbytes = elastic.get_agrs_num_max_session_bytes(buffer.comm, [(64,), (1, 64)], torch.bfloat16)
    buffer.agrs_set_config(nbytes, 2)
    with buffer.agrs_new_session():
        place = buffer.agrs_get_inplace_tensor((64,), torch.bfloat16)
        place.copy_(own)
        first, wait_first = buffer.all_gather(place)
        second, wait = buffer.all_gather((own[None],))
        wait_first()
        wait()
        assert torch.equal(first, everything[:size])
        assert second.shape == (size, 1, 64) and torch.equal(second[:, 0], first)


def names():
    """What programs ask of the module and of a buffer."""
    deep_ep.install()
    from deep_ep.buffers.elastic import ElasticBuffer
    from deep_ep.buffers.ep import EPBuffer
    import deep_ep as installed
    from deep_ep.buffers import legacy
    assert ElasticBuffer is installed.ElasticBuffer and EPBuffer is installed.EPBuffer
    assert legacy.Buffer is installed.Buffer
    comm = peerbus.Communicator()
    made = [ElasticBuffer(comm, 4096, explicitly_destroy=True), EPBuffer(comm, 4096),
            installed.PPBuffer(comm, 64, 1), installed.EngramBuffer(comm, 64, 64, True, 1, 1024),
            installed.BucketBuffer(comm, 64)]
    for buffer in made:
        assert isinstance(buffer, installed.BufferBase) and buffer.runtime is not None
        assert buffer.main_context is comm and buffer.nccl_comm_handle is None
        assert buffer.get_logical_domain_size() == (1, comm.size)
        buffer.print_memory_usage()
        buffer.barrier(with_cpu_sync=True)
        buffer.destroy()
        assert buffer.runtime is None and buffer.main_context is None
        raises(bad, "was destroyed", buffer.barrier)
    elastic, ep = made[:2]
    assert elastic.num_bytes == 4096 and elastic.explicitly_destroy and not ep.explicitly_destroy
    assert elastic.num_allocated_qps == 65
    assert EPBuffer(comm, allow_hybrid_mode=False).num_allocated_qps == 17
    assert EPBuffer(comm, num_allocated_qps=8).num_allocated_qps == 8
    assert (elastic.num_scaleup_ranks, elastic.scaleup_rank_idx) == (comm.size, comm.rank)
    assert (elastic.num_scaleout_ranks, elastic.scaleout_rank_idx) == (1, 0)
    assert (elastic.num_rdma_ranks, elastic.num_nvlink_ranks) == (1, comm.size)
    assert elastic.get_theoretical_num_sms(8, 2) == elastic.get_theoretical_num_qps(0) == 0
    assert ElasticBuffer._unpack_handle() == (None,) * 10
    assert ElasticBuffer._unpack_bias("b") == ("b", None)
    raises(bad, "a part of it", ElasticBuffer, comm, 64, 128)


class Tests(unittest.TestCase):
    def test_engrams(self):
        for ranks in (1, 4):
            run(ranks, engrams)
        run(3, engrams, hosts=2)

    def test_neighbours(self):
        for ranks in (1, 2, 5):
            run(ranks, neighbours)
        run(4, neighbours, hosts=2)

    def test_sessions(self):
        for ranks in (1, 4):
            run(ranks, sessions)
        run(3, sessions, hosts=2)

    @needs_torch
    def test_torch(self):
        run(3, torch_tensors)

    @needs_torch
    def test_vllm(self):
        for ranks in (2, 4):
            run(ranks, vllm_v2)

    @needs_torch
    def test_sglang(self):
        for ranks in (2, 4):
            run(ranks, sglang_v2)

    def test_names(self):
        run(2, names)

    def test_plans(self):
        for ranks in (2, 4):
            run(ranks, plans)


if __name__ == "__main__":
    main(globals())
