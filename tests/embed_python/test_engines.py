# SPDX-License-Identifier: MIT
"""The calls of DeepEP as its README's examples, Megatron-LM, vLLM and SGLang make them, in their order
and with their arguments. Rank 1 has no tokens. Values are small integers, so that sums are exact. On
numpy arrays, and on torch tensors where torch is installed: TENSORS=torch."""

import os
import unittest

import numpy

import peerbus.deep_ep as deep_ep
from ranks import bf16, main, needs_torch, run, widened
from test_deep_ep import Kind, codes, decoded, gathered

HIDDEN, TOP_K, MOST, LAYERS = 128, 2, 4, 4


class Model:
    """The tokens of this rank, and experts that multiply: expert e by 1 + e % 2."""

    def __init__(self):
        self.kind = Kind()
        self.group = self._group()
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.tokens = 0 if self.rank == 1 else MOST
        self.experts, self.local = 2 * self.size, 2
        self.x = numpy.repeat(1 + numpy.arange(self.tokens)[:, None] % 2, HIDDEN, 1)
        draw = numpy.random.default_rng(self.rank)
        self.ids = [numpy.array([draw.permutation(self.experts)[:TOP_K] for _ in range(self.tokens)],
                                numpy.int64).reshape(self.tokens, TOP_K) for _ in range(LAYERS)]

    def _group(self):
        """Returns a process group of torch, or None."""
        if self.kind.torch is None:
            return None
        dist = self.kind.torch.distributed
        dist.init_process_group("gloo", init_method=f"file://{os.environ['TEST_FOLDER']}/meeting",
                                rank=int(os.environ["RANK"]),
                                world_size=int(os.environ["WORLD_SIZE"]))
        return dist.group.WORLD

    def rows(self, values):
        """Returns values as bfloat16."""
        return self.kind.given(bf16(values), True)

    def values(self, rows):
        return widened(self.kind.got(rows))

    def ones(self):
        return self.kind.given(numpy.ones([self.tokens, TOP_K], numpy.float32))

    def share(self, ids):
        """Returns what the experts of each token multiply it by, together."""
        return (1 + ids % 2).sum(1, keepdims=True)

    def local_factors(self, recv_idx):
        """Returns the factors of the local experts of each received slot; 0 where there is none."""
        idx = self.kind.got(recv_idx)
        return numpy.where(idx >= 0, 1 + (self.rank * self.local + idx) % 2, 0)


def sizes_for(config, hidden_bytes, ranks):
    return (config.get_nvl_buffer_size_hint(hidden_bytes, ranks),
            config.get_rdma_buffer_size_hint(hidden_bytes, ranks))


class Cache:
    """One buffer for all layers. Another is made if it is for another group, or too small."""

    def __init__(self):
        self.buffer, self.made = None, 0

    def normal(self, group, hidden_bytes, ranks):
        Buffer = deep_ep.Buffer
        nvl, rdma = map(max, zip(*(sizes_for(config, hidden_bytes, ranks) for config in (
            Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)))))
        known = self.buffer
        if known is None or known.group != group or known.num_nvl_bytes < nvl or \
                known.num_rdma_bytes < rdma:
            self.buffer, self.made = Buffer(group, nvl, rdma), self.made + 1
        return self.buffer

    def low_latency(self, group, hidden, ranks, experts):
        Buffer = deep_ep.Buffer
        rdma = Buffer.get_low_latency_rdma_size_hint(MOST, hidden, ranks, experts)
        known = self.buffer
        if known is None or known.group != group or not known.low_latency_mode or \
                known.num_rdma_bytes < rdma:
            self.buffer, self.made = Buffer(group, 0, rdma, low_latency_mode=True,
                                            num_qps_per_rank=experts // ranks), self.made + 1
        return self.buffer


class Steps:
    """The four steps of a layer: dispatch and combine, forward and backward. `asynchronous`: with
    events on both sides, as training frameworks call them."""

    def __init__(self, model, asynchronous):
        self.model, self.asynchronous, self.cache = model, asynchronous, Cache()

    def buffer(self, x):
        bytes_of = x.shape[1] * max(x.element_size() if hasattr(x, "element_size") else x.itemsize, 2)
        return self.cache.normal(self.model.group, bytes_of, self.model.size)

    def options(self):
        previous = deep_ep.EventOverlap(deep_ep.EventHandle()) if self.asynchronous else None
        return dict(previous_event=previous, async_finish=self.asynchronous,
                    allocate_on_comm_stream=self.asynchronous)

    def wait(self, event):
        if self.asynchronous:
            event.current_stream_wait()

    def dispatch(self, x, ids, weights):
        buffer, options = self.buffer(x), self.options()
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            ids, self.model.experts, **options)
        recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert, **dict(options, previous_event=event))
        self.wait(event)
        assert len(counts) == self.model.local
        return recv_x, recv_idx, recv_weights, handle

    def dispatch_backward(self, grad_x, grad_weights, handle):
        grad_x, grad_weights, event = self.buffer(grad_x).combine(
            grad_x, handle, topk_weights=grad_weights, **self.options())
        self.wait(event)
        return grad_x, grad_weights

    def combine(self, y, handle):
        combined, _, event = self.buffer(y).combine(y, handle=handle, **self.options())
        self.wait(event)
        return combined

    def combine_backward(self, grad, handle):
        grad_y, none, _, _, _, event = self.buffer(grad).dispatch(grad, handle=handle,
                                                                  **self.options())
        self.wait(event)
        assert none is None
        return grad_y


def check_gradients(model, outputs, grad_x, grads_of_weights):
    """Requires the output, its gradient by x, and those by the weights of each layer, if the gradient
    of the output is 1 everywhere."""
    before = [model.x]
    for ids in model.ids:
        before.append(before[-1] * model.share(ids))
    assert (outputs == before[-1]).all()
    grad = numpy.ones_like(model.x)
    for layer in reversed(range(LAYERS)):
        ids = model.ids[layer]
        expected = (1 + ids % 2) * (grad * before[layer]).sum(1, keepdims=True)
        assert (model.kind.got(grads_of_weights[layer]) == expected).all()
        grad = grad * model.share(ids)
    assert (grad_x == grad).all()


def training():
    """Layers forward, then backward: the backward pass of combine is a dispatch with its handle, and
    that of dispatch a combine."""
    model = Model()
    for asynchronous in (False, True):
        steps, kept = Steps(model, asynchronous), []
        x = model.rows(model.x)
        for ids in model.ids:
            recv_x, recv_idx, recv_weights, handle = steps.dispatch(
                x, model.kind.given(ids), model.ones())
            factors, seen = model.local_factors(recv_idx), model.values(recv_x)
            weighted = (factors * model.kind.got(recv_weights)).sum(1, keepdims=True)
            x = steps.combine(model.rows(seen * weighted), handle)
            kept.append((factors, weighted, seen, handle))
        grad, grads_of_weights = model.rows(numpy.ones_like(model.x)), []
        for factors, weighted, seen, handle in reversed(kept):
            grad_y = model.values(steps.combine_backward(grad, handle))
            of_weights = (factors * (grad_y * seen).sum(1, keepdims=True)).astype(numpy.float32)
            grad, of_weights = steps.dispatch_backward(model.rows(grad_y * weighted),
                                                       model.kind.given(of_weights), handle)
            grads_of_weights.insert(0, of_weights)
        check_gradients(model, model.values(x), model.values(grad), grads_of_weights)
        assert steps.cache.made == 1


def autograd():
    """The same by torch's autograd, which keeps the handles between the passes."""
    model = Model()
    torch = model.kind.torch
    steps = None

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, ids, weights):
            recv_x, recv_idx, recv_weights, ctx.handle = steps.dispatch(x, ids, weights)
            return recv_x, recv_idx, recv_weights, ctx.handle

        @staticmethod
        def backward(ctx, grad_x, _, grad_weights, __):
            grad_x, grad_weights = steps.dispatch_backward(grad_x.contiguous(), grad_weights.float(),
                                                           ctx.handle)
            return grad_x, None, grad_weights

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, handle):
            ctx.handle = handle
            return steps.combine(y, handle)

        @staticmethod
        def backward(ctx, grad):
            return steps.combine_backward(grad.contiguous(), ctx.handle), None

    for asynchronous in (False, True):
        steps = Steps(model, asynchronous)
        given, weights = model.rows(model.x).requires_grad_(), []
        x = given
        for ids in model.ids:
            weights.append(model.ones().requires_grad_())
            recv_x, recv_idx, recv_weights, handle = Dispatch.apply(x, model.kind.given(ids),
                                                                    weights[-1])
            factors = torch.from_numpy(model.local_factors(recv_idx))
            y = (recv_x.float() * (recv_weights * factors).sum(1, keepdim=True)).bfloat16()
            x = Combine.apply(y, handle)
        x.backward(torch.ones_like(x))
        check_gradients(model, model.values(x.detach()), model.values(given.grad),
                        [each.grad for each in weights])


def readme():
    """A buffer is made once and found again; another mode or a larger shape makes another one."""
    model, cache = Model(), Cache()
    for _ in range(2):
        cache.normal(model.group, 2 * HIDDEN, model.size)
        assert cache.made == 1
    cache.normal(model.group, 4 * HIDDEN, model.size)
    for _ in range(2):
        buffer = cache.low_latency(model.group, HIDDEN, model.size, model.experts)
        assert cache.made == 3
    ids, weights = model.kind.given(model.ids[0]), model.ones()
    for _ in range(3):
        recv, count, handle, event, hook = buffer.low_latency_dispatch(
            model.rows(model.x), ids, MOST, model.experts, async_finish=False, return_recv_hook=True)
        hook()
        combined, event, hook = buffer.low_latency_combine(
            model.rows(experts(model, recv, count)), ids, weights, handle, async_finish=False,
            return_recv_hook=True)
        hook()
        assert (model.values(combined) == model.x * model.share(model.ids[0])).all()


def experts(model, recv, count):
    """Returns what the experts make of the rows of a low-latency dispatch; 0 behind them."""
    rows = decoded(*map(model.kind.got, recv)) if isinstance(recv, tuple) else model.values(recv)
    outputs = numpy.zeros(rows.shape, numpy.float32)
    for e, number in enumerate(model.kind.got(count)):
        outputs[e, :number] = rows[e, :number] * (1 + (model.rank * model.local + e) % 2)
    return outputs


def sglang():
    """One buffer for prefill in normal mode and decoding in low-latency mode, which alternate; before
    the first decoding after a prefill the buffer is cleaned if it has the low-latency mode."""
    model = Model()
    Buffer = deep_ep.Buffer
    nvl, rdma = map(max, zip(*(sizes_for(config, 2 * HIDDEN, model.size) for config in (
        deep_ep.Config(num_sms=24, num_max_nvl_chunked_send_tokens=16,
                       num_max_nvl_chunked_recv_tokens=512, num_max_rdma_chunked_send_tokens=16,
                       num_max_rdma_chunked_recv_tokens=512),
        Buffer.get_combine_config(model.size)))))
    rdma = max(rdma, Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, model.size, model.experts))
    buffer = Buffer(model.group, nvl, rdma, low_latency_mode=True, num_qps_per_rank=24,
                    allow_mnnvl=True)
    fp8 = numpy.tile(numpy.uint8(0x38), [model.tokens, HIDDEN])  # 1.0
    scales = model.x[:, :1].astype(numpy.float32).T.copy().T  # Column by column.
    scales = scales if model.kind.torch is None else model.kind.torch.from_numpy(scales)
    for asynchronous, with_fp8, ids in zip((False, True, True), (False, True, False), model.ids):
        given_ids, weights = model.kind.given(ids), model.ones()
        previous = Buffer.capture() if asynchronous else None
        per_rank, per_node, per_expert, in_rank, previous = buffer.get_dispatch_layout(
            given_ids, model.experts, previous_event=previous, async_finish=asynchronous,
            allocate_on_comm_stream=previous is not None)
        recv, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
            (model.kind.given(fp8), scales) if with_fp8 else model.rows(model.x), topk_idx=given_ids,
            topk_weights=weights, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, previous_event=previous,
            async_finish=asynchronous, allocate_on_comm_stream=asynchronous, expert_alignment=128,
            config=None)
        if asynchronous:
            event.current_stream_wait()
        assert all(count % 128 == 0 for count in counts)
        seen = codes()[model.kind.got(recv[0])] * model.kind.got(recv[1]) if with_fp8 else \
            model.values(recv)
        output = seen * model.local_factors(recv_idx).sum(1, keepdims=True)
        previous = Buffer.capture() if asynchronous else None
        combined, _, event = buffer.combine(
            model.rows(output), handle, async_finish=asynchronous, previous_event=previous,
            allocate_on_comm_stream=previous is not None, config=None)
        if asynchronous:
            event.current_stream_wait()
        assert (model.values(combined) == model.x * model.share(ids)).all()
        if buffer.low_latency_mode:
            buffer.clean_low_latency_buffer(MOST, HIDDEN, model.experts)
        for hooks in (False, True):
            recv, count, handle, event, hook = buffer.low_latency_dispatch(
                model.rows(model.x), given_ids, MOST, model.experts, use_fp8=with_fp8,
                async_finish=not hooks, return_recv_hook=hooks,
                **(dict(round_scale=False, use_ue8m0=False) if with_fp8 else {}))
            hook() if hooks else event.current_stream_wait()
            combined, event, hook = buffer.low_latency_combine(
                x=model.rows(experts(model, recv, count)), topk_idx=given_ids, topk_weights=weights,
                handle=handle, async_finish=not hooks, return_recv_hook=hooks)
            hook() if hooks else event.current_stream_wait()
            assert (model.values(combined) == model.x * model.share(ids)).all()


def vllm_buffer(model, **options):
    deep_ep.Buffer.set_num_sms(20)
    return deep_ep.Buffer(group=model.group, allow_nvlink_for_low_latency_mode=True,
                          allow_mnnvl=False, explicitly_destroy=True, **options)


def vllm_high_throughput():
    """Two micro-batches: both are dispatched before either is combined."""
    model = Model()
    buffer = vllm_buffer(model, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False,
                         num_qps_per_rank=1)
    fp8 = model.kind.given(numpy.tile(numpy.uint8(0x38), [model.tokens, HIDDEN]))
    per_token = model.kind.given(model.x[:, :1].astype(numpy.float32))
    for asynchronous in (False, True):
        batches = []
        for x, ids in (((fp8, per_token), model.ids[0]), (model.rows(model.x), model.ids[1])):
            previous = buffer.capture() if asynchronous else None
            per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
                topk_idx=model.kind.given(ids), num_experts=model.experts, previous_event=previous,
                async_finish=False, allocate_on_comm_stream=False)
            recv, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
                x=x, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
                is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                topk_idx=model.kind.given(ids), topk_weights=model.ones(), expert_alignment=1,
                config=deep_ep.Buffer.get_dispatch_config(model.size), previous_event=previous,
                async_finish=asynchronous, allocate_on_comm_stream=False)
            if event.event is not None:
                event.current_stream_wait()
            batches.append((recv, recv_idx, counts, handle, ids))
        for recv, recv_idx, counts, handle, ids in batches:
            seen = codes()[model.kind.got(recv[0])] * model.kind.got(recv[1]) \
                if isinstance(recv, tuple) else model.values(recv)
            idx = model.kind.got(recv_idx)
            assert [(idx == e).sum() for e in range(model.local)] == counts
            output = seen * model.local_factors(recv_idx).sum(1, keepdims=True)
            combined, _, event = buffer.combine(
                x=model.rows(output), handle=handle, topk_weights=None,
                config=deep_ep.Buffer.get_combine_config(model.size), previous_event=None,
                async_finish=asynchronous, allocate_on_comm_stream=False)
            if event.event is not None:
                event.current_stream_wait()
            assert (model.values(combined) == model.x * model.share(ids)).all()
    buffer.destroy()


def vllm_low_latency():
    """Two micro-batches of which the second is sent before the first is received."""
    model = Model()
    buffer = vllm_buffer(
        model, num_nvl_bytes=1 << 30, low_latency_mode=True, num_qps_per_rank=model.local,
        num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank=MOST, hidden=HIDDEN, num_ranks=model.size,
            num_experts=model.experts))
    weights = model.ones()
    for use_fp8 in (False, True):
        sent = [(buffer.low_latency_dispatch(
            model.rows(model.x), model.kind.given(ids), MOST, model.experts, use_fp8=use_fp8,
            round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=True), ids)
            for ids in model.ids[:2]]
        combined = []
        for (recv, count, handle, _, hook), ids in sent:
            hook()
            output = model.rows(numpy.zeros([model.tokens, HIDDEN]))
            _, _, receive = buffer.low_latency_combine(
                model.rows(experts(model, recv, count)), model.kind.given(ids), weights, handle,
                async_finish=False, zero_copy=False, return_recv_hook=True, out=output)
            combined.append((output, receive, ids))
        for output, receive, ids in combined:
            receive()
            assert (model.values(output) == model.x * model.share(ids)).all()
    all_counts = gathered(buffer.comm, numpy.array(model.kind.got(count), numpy.int64))
    assert all_counts.sum() == TOP_K * MOST * (model.size - 1 if model.size > 1 else 1)
    buffer.destroy()


SEQUENCES = (readme, training, sglang, vllm_high_throughput, vllm_low_latency)


class Tests(unittest.TestCase):
    def test_sequences(self):
        for ranks in (1, 4):
            for sequence in SEQUENCES:
                with self.subTest(sequence=sequence.__name__, ranks=ranks):
                    run(ranks, sequence)

    @needs_torch
    def test_torch(self):
        for sequence in (*SEQUENCES, autograd):
            with self.subTest(sequence=sequence.__name__):
                run(3, sequence, TENSORS="torch")


if __name__ == "__main__":
    main(globals())
