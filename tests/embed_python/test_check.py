# SPDX-License-Identifier: MIT
"""Tests of `python -m peerbus.deep_ep.check` and `.run`."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

import peerbus.deep_ep as deep_ep
from peerbus.deep_ep import calls
from ranks import main, needs_torch, raises

PROGRAM = '''
import sys
import numpy
import deep_ep

buffer = deep_ep.Buffer(
    num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(16, 2048, 2, 4),
    low_latency_mode=True, num_max_tokens_per_rank=16)


def step(tokens):
    x = numpy.ones([tokens, 2048], numpy.uint16)
    ids = numpy.arange(2 * tokens).reshape(tokens, 2) % 4
    weights = numpy.ones([tokens, 2], numpy.float32)
    recv, count, handle, event, hook = buffer.low_latency_dispatch(
        x, ids, 16, 4, use_fp8=False, return_recv_hook=True)
    hook()
    buffer.low_latency_combine(recv, ids, weights, handle)


for tokens in (1, 5, 5):
    step(tokens)
if "fail" in sys.argv:
    sys.exit(7)
'''

WRONG_BUFFER = '''
import numpy
import peerbus
import deep_ep

group = peerbus.Communicator()


def low_latency(made, ids, gap):
    x = numpy.ones([2, 2048], numpy.uint16)
    recv, count, handle, event, hook = made.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
    y = numpy.zeros([*recv.shape[:2], 2048 + gap], numpy.uint16)[:, :, :2048]
    made.low_latency_combine(y, ids, numpy.ones([2, 1], numpy.float32), handle)


ids = numpy.zeros([2, 1], numpy.int64)
small = deep_ep.Buffer.get_low_latency_rdma_size_hint(4, 2048, 2, 4) - 128 * 2
low_latency(deep_ep.Buffer(group), ids.astype(numpy.int32), 1)
low_latency(deep_ep.Buffer(group, num_rdma_bytes=small, low_latency_mode=True), ids, 0)
wide = deep_ep.Buffer(group, num_nvl_bytes=129)
counts, _, per_expert, in_rank, _ = wide.get_dispatch_layout(ids.astype(numpy.int32), 4)
recv, _, _, _, handle, _ = wide.dispatch(
    numpy.ones([2, 2048], numpy.uint16), num_tokens_per_rank=counts, is_token_in_rank=in_rank,
    num_tokens_per_expert=per_expert, topk_idx=ids.astype(numpy.int32),
    topk_weights=numpy.ones([2, 1], numpy.float32))
wide.combine(numpy.zeros([len(recv), 4096], numpy.uint16)[:, :2048], handle)
by_rank = deep_ep.Buffer(group)
by_rank.dispatch(numpy.ones([2, 2048], numpy.uint16), num_tokens_per_rank=counts,
                 is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)
'''

RAISING = '''
import numpy
import deep_ep

buffer = deep_ep.Buffer(num_rdma_bytes=1 << 30, low_latency_mode=True)
x, ids = numpy.ones([2, 2048], numpy.uint16), numpy.zeros([2, 1], numpy.int64)
weights = numpy.ones([2, 1], numpy.float32)
for call in (lambda: buffer.low_latency_dispatch(x.astype(float), ids, 4, 4),
             lambda: buffer.dispatch(x, topk_idx=ids, topk_weights=weights)):
    try:
        call()
    except Exception as problem:
        print(problem)
buffer.low_latency_dispatch(x, ids, 4, 4)
'''

FORKING = '''
import multiprocessing
import os
import numpy
import deep_ep


def rank(number):
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    buffer = deep_ep.Buffer()
    for _ in range(3):
        buffer.low_latency_dispatch(numpy.ones([2, 128], numpy.uint16),
                                    numpy.zeros([2, 1], numpy.int64), numpy.int64(4),
                                    numpy.int32(2), use_fp8=False)


context = multiprocessing.get_context("fork")
ranks = [context.Process(target=rank, args=[number]) for number in range(2)]
for each in ranks:
    each.start()
for each in ranks:
    each.join()
    assert each.exitcode == 0
'''

BUCKETS = '''
import numpy
import peerbus
import deep_ep

comm = peerbus.Communicator()
buffer = deep_ep.BucketBuffer(comm, 1 << 16)
x = buffer.storage[:256].view(numpy.float32)
buffer.all_reduce([x, buffer.storage[1024:1280].view(numpy.float32)]).wait()
buffer.all_gather(x[comm.rank * 3:][:3], dsts=buffer.storage[512:512 + 12 * comm.size]).wait()
for size in (64, 48):
    buffer.reduce_scatter(x[:size // 4]).wait()
weights = numpy.ones([2, 8], numpy.float32)
mapping = numpy.full([comm.size, 2], -1, numpy.int32)
deep_ep.EPBuffer(comm).lb_prefetch_weights(weights, weights, mapping)
strict = deep_ep.BucketBuffer(comm, 1 << 16, target="deepep_v2_5" if comm.rank == 0 else None)
try:
    strict.reduce_scatter(strict.storage[:48].view(numpy.float32))
except peerbus.InvalidArgument as problem:
    assert comm.rank == 0 and "deepep_v2_5 refuses BucketBuffer.reduce_scatter" in str(problem)
except peerbus.Refused as problem:
    assert comm.rank == 1 and "rank 0" in str(problem)
else:
    raise AssertionError("nothing was raised")
'''

SPAWNING = '''
import threading
import torch
import torch.distributed as dist
import deep_ep
from deep_ep.utils import bench_kineto, calc_diff, hash_tensor, init_dist, per_token_cast_back
from deep_ep.utils.math import per_token_cast_to_fp8


def rank_loop(local_rank, ranks):
    rank, size, group = init_dist(local_rank, ranks)
    torch.manual_seed(rank)
    buffer = deep_ep.Buffer(group, num_rdma_bytes=1 << 20, low_latency_mode=True,
                            num_qps_per_rank=2, explicitly_destroy=True)
    x = torch.randn((4, 256), dtype=torch.bfloat16, device="cuda")
    ids = torch.arange(4, device="cuda", dtype=deep_ep.topk_idx_t)[:, None]
    weights = torch.ones((4, 1), dtype=torch.float, device="cuda")
    (recv, scales), count, handle, event, hook = buffer.low_latency_dispatch(x, ids, 4, 4)
    rows = per_token_cast_back(recv.view(-1, 256), scales.reshape(-1, 2)).view(recv.shape)
    combined, event, hook = buffer.low_latency_combine(rows, ids, weights, handle)
    assert calc_diff(combined, x) < 9e-4
    cast = per_token_cast_back(*per_token_cast_to_fp8(x))
    assert calc_diff(cast, combined) < 1e-5
    totals = torch.empty((size,), dtype=torch.int, device="cuda")
    work = dist.all_gather_into_tensor(
        output_tensor=totals, input_tensor=torch.tensor([rank], dtype=torch.int).cuda(), group=group,
        async_op=True)
    assert work.wait() and totals.tolist() == list(range(size))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream(device="cuda", priority=-1)
    stream.wait_stream(torch.cuda.current_stream(device="cuda"))
    assert stream.query() and stream.record_event().query()
    devices = []
    thread = threading.Thread(target=lambda: devices.append(torch.ones(1, device="cuda").device))
    thread.start()
    thread.join()
    assert devices == [torch.device("cpu")]
    assert torch.equal(x.to("cuda"), x) and hash_tensor(x) == hash_tensor(x.clone())
    dispatch_t, combine_t = bench_kineto(lambda: group.barrier(), ("dispatch", "combine"))
    assert dispatch_t > 0
    buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(rank_loop, args=(torch.cuda.device_count(),),
                                nprocs=torch.cuda.device_count())
'''


STARTING = '''
import inspect
import os
import sys
import torch
import torch.distributed as dist
import deep_ep


def init_dist(local_rank, ranks):
    """As in the tests of DeepEP 1.2.1 and 2.1.0: the device, NCCL, defaults and a group of all."""
    options = {"backend": "nccl", "init_method": f"tcp://127.0.0.1:{os.environ['TEST_PORT']}",
               "world_size": ranks, "rank": local_rank}
    if "device_id" in inspect.signature(dist.init_process_group).parameters:
        options["device_id"] = torch.device(f"cuda:{local_rank}")
    dist.init_process_group(**options)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    torch.cuda.set_device(local_rank)
    return dist.get_rank(), dist.get_world_size(), dist.new_group(list(range(ranks)))


def rank_loop(local_rank, ranks):
    rank, size, group = init_dist(local_rank, ranks)
    buffer = deep_ep.Buffer(group, num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(
        4, 256, size, 4), low_latency_mode=True, num_qps_per_rank=4 // size,
        allow_nvlink_for_low_latency_mode=True, explicitly_destroy=True)
    x = torch.ones((4, 256), dtype=torch.bfloat16, device="cuda") * (rank + 1)
    scores = torch.randn((4, 4), dtype=torch.float32, device="cuda").abs() + 1
    ids = torch.topk(scores, 2, dim=-1, largest=True, sorted=True)[1].to(deep_ep.topk_idx_t)
    weights = torch.randn((4, 2), dtype=torch.float32, device="cuda").abs()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    recv, count, handle, event, hook = buffer.low_latency_dispatch(
        x, ids, 4, 4, use_fp8=False, async_finish=True, return_recv_hook=False)
    event.current_stream_wait()
    combined, event, hook = buffer.low_latency_combine(recv, ids, weights, handle)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0 and torch.cuda.current_device() == local_rank
    assert x.is_cuda and combined.shape == x.shape
    torch.testing.assert_close(combined.float(), x.float() * weights.sum(1, keepdim=True), rtol=0.01,
                               atol=0.01)
    buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    torch.multiprocessing.spawn(rank_loop, args=(int(sys.argv[2]),), nprocs=int(sys.argv[2]))
'''


DEVICES = '''
import threading
import deep_ep
import torch


@torch.compile(dynamic=True)
def doubled(x):
    return 2 * x


@torch.compile
def tripled(x):
    return 3 * x


cpu, number = torch.device("cpu"), 1
torch.cuda.set_device(number)
assert torch.cuda.current_device() == number
for device in (torch.cuda.current_device(), number, "cuda", "cuda:1", torch.device("cuda", 1)):
    assert torch.empty(4, device=device).device == cpu
    assert torch.ones(4).to(device).device == cpu and torch.ones(4).to(device=device).device == cpu
    assert torch.nn.Linear(2, 2).to(device).weight.device == cpu
    assert isinstance(torch.Generator(device=device), torch.Generator)
    assert torch.rand(2, generator=torch.Generator(device), device=device).shape == (2,)
    with torch.cuda.device(device):
        pass
assert torch.ones(2).to(torch.float64).dtype == torch.float64
assert isinstance(torch.cuda.device, type) and isinstance(torch.default_generator, torch.Generator)
free, total = torch.cuda.mem_get_info()
assert 0 < free < total and torch.ones(2).pin_memory().shape == (2,)
assert torch.empty(2, pin_memory=True).shape == (2,)
assert doubled(torch.ones(1)).item() == 2 and tripled(torch.ones(1)).item() == 3
if hasattr(torch, "_dynamo"):  # It looks at every name of torch.
    import torch._dynamo.trace_rules as rules
    getattr(rules, "get_torch_obj_rule_map", int)()
many = torch.zeros((1 << 20, 1 << 16), dtype=torch.int32, device="cuda")  # 256 GiB, of no memory.
assert many.shape == (1 << 20, 1 << 16) and many.dtype == torch.int32 and many[9, 9] == 0
assert torch.zeros(1 << 25).dtype == torch.get_default_dtype()
torch.manual_seed(1)
for kind in (torch.bfloat16, torch.float16):
    drawn = torch.randn((128, 128), dtype=kind, device="cuda")
    for each in (drawn, torch.randn_like(drawn), torch.empty_like(drawn).normal_(0, 2)):
        assert each.dtype == kind and (each != 0).all()  # Nor does a GPU draw 0.
    assert torch.randn(2, dtype=kind, requires_grad=True).is_leaf
stream = torch.cuda.Stream(device=0)
with torch.cuda.stream(stream):
    assert torch.cuda.current_stream() is stream
assert torch.cuda.current_stream() is torch.cuda.default_stream()
torch.cuda.nvtx.range_push("a part")
torch.cuda.nvtx.range_pop()
if hasattr(torch, "float8_e4m3fn"):
    rows = torch.randn(4, 8).to(torch.float8_e4m3fn)
    some = rows[torch.tensor([1, 0, 3])]
    assert torch.equal(some[1:], rows[[0, 3]]) and (some[0] == rows[1]).all()
    rows[torch.tensor([2])] = rows[1].clone()
    assert not (rows[2] != rows[1]).any() and rows.dtype == torch.float8_e4m3fn
print("devices are done")
'''

MEASURING = '''
from deep_ep.utils.math import align, ceil_div, safe_div
from deep_ep.utils.semantic import value_or, weak_lru
from deep_ep.utils.testing import bench, bench_kineto, empty_suppress
import gc
import weakref
import deep_ep
import deep_ep.utils.refs
from deep_ep_cpp import Config, EventHandle

assert Config is deep_ep.Config and EventHandle is deep_ep.EventHandle
assert deep_ep.__version__


def refuse():
    raise AssertionError("called")


assert bench(refuse) == (1.0, 1.0, 1.0) and bench_kineto(refuse, "kernel") == 1.0
assert bench_kineto(refuse, ("a", "b"), num_kernels_per_period=2) == ([0.5, 0.5], [0.5, 0.5])
assert (align(5, 4), ceil_div(8, 4), ceil_div(9, 4), safe_div(0, 0), safe_div(1, 4)) == (8, 2, 3, 0, 0.25)
try:
    safe_div(1, 0)
except ZeroDivisionError:
    pass
else:
    raise AssertionError
assert value_or(None, 1) == 1 and value_or(0, 1) == 0


class Counting:
    calls = 0

    @weak_lru(maxsize=None)
    def square(self, x):
        self.calls += 1
        return x * x


one, other = Counting(), Counting()
assert one.square(3) == one.square(3) == 9 and one.calls == 1 and other.calls == 0
alive = weakref.ref(one)
del one
gc.collect()
assert alive() is None
with empty_suppress():
    print("nothing was called")
'''

UTILITIES = '''
import math
import os
import sys
import torch
import torch.distributed as dist
import deep_ep
import deep_ep_cpp
from deep_ep._C import Config, EventHandle, topk_idx_t
from deep_ep.utils import envs, gate, refs
from deep_ep.utils.event import EventOverlap
from deep_ep.utils.math import (count_bytes, create_grouped_scores, hash_tensor, hash_tensors,
                                inplace_unique)
from deep_ep.utils.testing import bench, bench_kineto, suppress_stdout_stderr

TOKENS, TOP_K, EXPERTS, HIDDEN = 5, 3, 8, 128


def tensors():
    x = torch.tensor([[3, 1, 3, -1], [0, 0, -5, 2], [-1, -1, -1, -1]])
    inplace_unique(x, 4)
    assert x.tolist() == [[3, 1, -1, -1], [2, 0, -1, -1], [-1, -1, -1, -1]]
    scores = create_grouped_scores(torch.ones(2, 6), torch.tensor([[0, 1], [2, 2]]), 3)
    assert scores.tolist() == [[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    ones = torch.ones(4, dtype=torch.int32)
    assert hash_tensor(ones) == 4 and hash_tensors(ones, (None, [ones[:3]])) == 4 ^ 3
    assert count_bytes(ones, None, [(torch.ones(3, dtype=torch.bfloat16),)]) == 22
    assert count_bytes(None) == 0
    powers = torch.full((1, 3), 0x82818080, dtype=torch.int64).to(torch.int32).t()  # [3, 1], strides 1, 3
    cast = deep_ep.utils.per_token_cast_back(deep_ep.utils.per_token_cast_to_fp8(
        torch.ones(3, 512))[0], powers)[2, ::128]
    assert (cast / cast[0]).tolist() == [1, 1, 2, 4]


def gates():
    for ranks, local, top_k, ratio in ((2, 1, 1, 1.0), (8, 8, 8, 4.0), (16, 4, 9, 2.0), (72, 1, 8, 2.0)):
        counts = gate.generate_rank_count(2048, ranks * local, ranks, top_k, ratio)
        assert (counts.sum(1) == top_k).all() and counts.max() <= local and counts.min() >= 0
        scores = gate.get_unbalanced_scores(2048, ranks * local, ranks, top_k, ratio, True)
        assert scores.dtype == torch.float32 and scores.shape == (2048, ranks * local)
        ids = scores.topk(top_k).indices
        reached = torch.zeros(2048, ranks).scatter_(1, ids // local, 1).sum(0)
        assert abs(reached[0] / reached[1:].min() / ratio - 1) < 0.05, (ranks, local, top_k, ratio)
        assert reached[1:].max() - reached[1:].min() <= 1
    assert gate.get_unbalanced_scores(16, 8, 4, 2, 1.0, False).max() < 1
    factor = gate.map_unbalanced_ratio_to_factor(2048, 32, 4, 4, 1.5)
    assert 1 < factor < 4
    one = gate.get_precise_unbalanced_scores(1, 8, 8, 1, 2.0)
    assert one.shape == (1, 8)


def rank_loop(local_rank, ranks):
    rank, size, group = envs.init_dist(local_rank, ranks, seed=7)
    torch.set_default_dtype(torch.float32)
    assert (envs.get_global_seed(), envs.get_local_seed()) == (7, 7 + rank)
    assert envs.get_physical_domain_size(group) == deep_ep.get_logical_domain_size(group) == (1, size)
    tensors()
    gates()
    ids = gate.get_unbalanced_scores(TOKENS, EXPERTS, size, TOP_K, 1.0, True).topk(TOP_K).indices
    ids[0, 1] = -1
    if rank == 1:
        ids[2] = -1
    weights = torch.rand(TOKENS, TOP_K)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)
    recv, idx, recv_weights, sources, per_rank = refs.dispatch(x, ids, weights, TOKENS, EXPERTS)
    # By the definition, of what all ranks give.
    everything = [None] * size
    dist.all_gather_object(everything, (x, ids, weights))
    local, row = EXPERTS // size, 0
    for source, (their_x, their_ids, their_weights) in enumerate(everything):
        here = 0
        for token in range(TOKENS):
            wanted = [i - rank * local if i // local == rank else -1 for i in their_ids[token].tolist()]
            if max(wanted) < 0:
                continue
            assert idx[row].tolist() == wanted and torch.equal(recv[row], their_x[token])
            assert torch.equal(recv_weights[row], their_weights[token])
            assert sources[row] == source * TOKENS + token
            row, here = row + 1, here + 1
        assert per_rank[source] == here
    assert row == len(recv)
    (scaled, scales), *_ = refs.dispatch((x, torch.ones(TOKENS, 1)), ids, None, TOKENS, EXPERTS)
    assert torch.equal(scaled, recv) and scales.shape == (row, 1)
    buffer = deep_ep.EPBuffer(group, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN)
    *_, handle, _ = buffer.dispatch(x, topk_idx=ids, topk_weights=weights, num_experts=EXPERTS)
    assert torch.equal(handle.recv_src_metadata[:, 0], sources)
    y = refs.generate_pre_combine_data(sources, TOKENS, TOP_K, HIDDEN)
    slot = int(sources[0]) * TOP_K + 1
    angle = (slot * 131071 % (size * TOKENS * TOP_K) + 1) / (size * TOKENS * TOP_K) * 5
    assert abs(y[0, 1, 4].item() - math.sin(angle + math.sin(7))) < 0.01
    y[idx == -1] = 0
    combined = buffer.combine(refs.ordered_accumulate(y), handle)[0]
    made = refs.generate_pre_combine_data(rank * TOKENS + torch.arange(TOKENS), TOKENS, TOP_K, HIDDEN)
    made[ids == -1] = 0
    assert torch.equal(combined, refs.combine(made, ids, 1, size, EXPERTS, None, True, False))
    bias = tuple(torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16) for _ in range(2))
    combined = buffer.combine(refs.ordered_accumulate(y), handle, bias=bias)[0]
    assert torch.equal(combined, refs.combine(made, ids, 1, size, EXPERTS, bias, True, False))
    slots = torch.ones(1, 3, 1, dtype=torch.bfloat16) / 256 + torch.tensor([[[0], [1], [0]]])
    for_rank = refs.combine(slots, torch.tensor([[0, EXPERTS - 1, 1]]), 1, 2, EXPERTS, None, True, False)
    assert for_rank.item() == 1 + 2**-7  # 2/256 of one rank, and 1.0 of the other, whose 1/256 is lost.
    for_rank = refs.combine(slots, torch.tensor([[0, EXPERTS - 1, 1]]), 1, 2, EXPERTS, None, False, False)
    assert for_rank.item() == 1 + 2**-7
    envs.dist_print(f"rank {rank} is done")
    envs.dist_print("once for all", once_in_node=True)
    with suppress_stdout_stderr():
        print("hidden")
        os.write(1, b"hidden")
    assert bench(lambda: None)[0] >= 0 and len(bench_kineto(int, ("a", "b"), num_kernels_per_period=2)[1]) == 2
    buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert deep_ep_cpp.Config is deep_ep.Config is Config and topk_idx_t == torch.int64
    torch.multiprocessing.spawn(rank_loop, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
'''


def free_port():
    """Returns a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Tests(unittest.TestCase):
    def module(self, name, text, *arguments, expected=0, **variables):
        """Runs a module of deep_ep on a program. Returns what it printed, and its folder."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "program.py"), "w") as file:
                file.write(text)
            ended = subprocess.run([sys.executable, "-m", f"peerbus.deep_ep.{name}", *arguments],
                                   cwd=folder, capture_output=True, text=True, timeout=100,
                                   env=dict(os.environ, **variables))
            self.assertEqual(ended.returncode, expected, ended.stdout + ended.stderr)
            report = os.path.join(folder, "report.json")
            if os.path.exists(report):
                with open(report) as file:
                    return ended.stdout + ended.stderr, json.load(file)
            return ended.stdout + ended.stderr, None

    def test_report(self):
        text, data = self.module("check", PROGRAM, "-n", "2", "--no-cuda", "--json", "report.json",
                                 "program.py")
        self.assertIn("program.py:15 low_latency_dispatch", text)
        self.assertIn("6 calls by 2 processes: 2 ranks, 1 to 5 tokens of at most 16", text)
        self.assertIn("fix: leave it out: the call always receives", text)
        self.assertEqual([(site["line"], site["operation"], site["calls"]) for site in data["sites"]],
                         [(15, "low_latency_dispatch", 6), (18, "low_latency_combine", 6)])
        site = data["sites"][0]
        self.assertEqual(site["function"], "step")
        self.assertEqual(site["source"], "recv, count, handle, event, hook = "
                                         "buffer.low_latency_dispatch(\n"
                                         "    x, ids, 16, 4, use_fp8=False, return_recv_hook=True)")
        self.assertEqual({name: verdict["fits"] for name, verdict in site["platforms"].items()},
                         {"unrestricted": True, "deepep_v1": True, "ascend_a2": False,
                          "ascend_a3": False, "deepep_v2_5": False, "ascend_950": False})
        found = site["platforms"]["ascend_a3"]["findings"][0]
        self.assertEqual((found["kind"], found["what"], found["given"], found["expected"]),
                         ("no_effect", "return_recv_hook", "true", "false"))
        self.assertEqual(data["environment"]["ascend_a3"]["set"], {})
        self.assertEqual(data["environment"]["ascend_a2"]["set"], {"HCCL_BUFFSIZE": "200"})

    def test_wrong_buffer(self):
        """The arguments of the buffer, and tensors that DeepEP does not take, are findings."""
        text, data = self.module("check", WRONG_BUFFER, "-n", "2", "--no-cuda", "--target",
                                 "deepep_v1", "--json", "report.json", "program.py", expected=1)
        by_rank = data["sites"].pop()
        self.assertEqual((by_rank["operation"], by_rank["platforms"]["deepep_v1"]["findings"]),
                         ("dispatch", []))
        found = {site["operation"]: {each["what"]: (each["given"], each["shapes"]) for each in
                                     site["platforms"]["deepep_v1"]["findings"]}
                 for site in data["sites"]}
        buffers = {"low_latency_mode": ("false", 1), "topk_idx's type": ("another type", 1)}
        both = {name: each for name, each in found["low_latency_dispatch"].items()
                if name != "num_rdma_bytes"}
        self.assertEqual(both, buffers)
        self.assertEqual(found["low_latency_dispatch"]["num_rdma_bytes"][1], 2)
        self.assertEqual(found["low_latency_combine"]["x"], ("a tensor with gaps", 1))
        self.assertEqual(set(found["dispatch"]), {"topk_idx's type", "num_nvl_bytes"})
        self.assertEqual(set(found["combine"]), {"x", "num_nvl_bytes"})
        self.assertIn("low_latency_mode is false; expected true", text)

    def test_raising_calls(self):
        """A call that raises before the library knows its sizes is reported with its error."""
        text, data = self.module("check", RAISING, "-n", "1", "--no-cuda", "--json", "report.json",
                                 "program.py")
        self.assertEqual([(site["line"], site["shapes"], len(site["errors"]))
                          for site in data["sites"]], [(8, 0, 1), (9, 0, 1), (14, 1, 0)])
        self.assertIn("raised TypeError: x has float64, expected bfloat16", text)
        self.assertIn("num_tokens_per_rank is none, expected int32 [1]", text)
        self.assertIn("raised InvalidArgument: ", text)
        self.assertNotIn("num_experts is 0", text)
        self.assertIn("not checked: ", text)

    def test_status(self):
        self.module("check", PROGRAM, "-n", "1", "--no-cuda", "--target", "ascend_a3",
                    "program.py", expected=1)
        text, _ = self.module("check", PROGRAM, "-n", "2", "--no-cuda", "program.py", "fail",
                              expected=3)
        self.assertIn("The program failed (status 7)", text)
        self.assertIn("[2] program.py:18 low_latency_combine", text)
        self.module("check", PROGRAM, "--target", "ascend", "program.py", expected=2)
        text, _ = self.module("check", PROGRAM, "-n", "1", "--no-cuda", "--platform", "ascend_a3",
                              "program.py", expected=1)  # The option's former name.
        self.assertNotIn("deepep_v1", text)
        self.module("check", PROGRAM, "--targ", "ascend_a3", "program.py", expected=2)
        for arguments, fragment in ((("-n", "two"), "'two', expected a number of at least 1"),
                                    (("--target-ranks", "0"), "'0', expected a number of at least 1"),
                                    (("--json", "missing/report.json"), "missing/report.json")):
            text, _ = self.module("check", "print('It ran.')", *arguments, "program.py", expected=2)
            self.assertIn(fragment, text)
            self.assertNotIn("It ran.", text)
        for module in ("run", "check"):
            text, _ = self.module(module, "", "missing.py", expected=2)
            self.assertIn("there is no program missing.py", text)

    def test_killed_launcher(self):
        """The ranks end with their launcher, however it ends."""
        text = "import os, time\nos.write(1, b'up\\n')\ntime.sleep(60)\n"
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "program.py"), "w") as file:
                file.write(text)
            launcher = subprocess.Popen([sys.executable, "-m", "peerbus.deep_ep.run", "-n", "2",
                                         "--no-cuda", "program.py"], cwd=folder,
                                        stdout=subprocess.PIPE, text=True)
            self.assertEqual([launcher.stdout.readline() for _ in range(2)], ["up\n"] * 2)
            launcher.kill()
            launcher.communicate(timeout=20)  # Returns once no rank has its end of the pipe.

    def test_target_ranks(self):
        text, _ = self.module("check", PROGRAM, "-n", "1", "--no-cuda", "--target-ranks", "8",
                              "--target", "deepep_v1", "program.py", expected=1)
        self.assertIn("checked as on 8 ranks", text)
        self.assertIn("num_experts is 4; expected a multiple of 8", text)

    def test_within_a_launcher(self):
        """Ranks start in the shell of another launcher, whose variables say that it has one rank."""
        shells = ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7",
                   "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"},
                  {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1",
                   "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, {"PMI_RANK": "0", "PMI_SIZE": "1"})
        text = ("import os\nimport deep_ep\nbuffer = deep_ep.Buffer()\n"
                "os.write(1, b'%d %d\\n' % (buffer.rank, buffer.group_size))\n")
        for shell in shells:
            said, _ = self.module("run", text, "-n", "2", "--no-cuda", "program.py", **shell)
            self.assertEqual(sorted(said.splitlines()), ["0 2", "1 2"])
        said, _ = self.module("check", PROGRAM, "-n", "2", "--no-cuda", "program.py", **shells[0])
        self.assertIn("6 calls by 2 processes", said)

    def test_buckets(self):
        """Calls of BucketBuffer and lb_prefetch_weights are checked."""
        text, data = self.module("check", BUCKETS, "-n", "2", "--no-cuda", "--json", "report.json",
                                 "program.py")
        sites = {site["operation"]: site for site in data["sites"] if site["line"] < 18}
        fits = {name: [platform for platform, verdict in site["platforms"].items() if verdict["fits"]]
                for name, site in sites.items()}
        both = ["unrestricted", "deepep_v2_5"]
        self.assertEqual(fits, {"BucketBuffer.all_reduce": both,
                                "BucketBuffer.all_gather": both + ["ascend_950"],
                                "BucketBuffer.reduce_scatter": ["unrestricted"],
                                "EPBuffer.lb_prefetch_weights": both})
        self.assertEqual(sites["BucketBuffer.all_reduce"]["shape"], "2 ranks, 2 tensors")
        self.assertIn("common divisor of the tensors' bytes is 48; expected a multiple of 64 (in 1 of 2 "
                      "shapes)", text)
        self.assertIn("BucketBuffer.reduce_scatter is called; expected BucketBuffer.all_gather", text)

    def test_example(self):
        """The quick start of the README runs, and is checked."""
        path = os.path.join(os.path.dirname(deep_ep.__file__), "..", "..", "dispatch_combine.py")
        with open(path) as file:
            text = file.read()
        with open(os.path.join(os.path.dirname(path), "..", "..", "..", "README.md")) as file:
            for block in re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL):
                self.assertIn(block, text)
        self.module("run", text, "-n", "4", "--no-cuda", "program.py")
        report, _ = self.module("check", text, "-n", "4", "--no-cuda", "program.py")
        self.assertIn("ascend_a3 (DeepEP-Ascend on Atlas A3): change [1]", report)
        self.assertIn("\n    unset HCCL_OP_EXPANSION_MODE  # operators fail with it on A2\n", report)
        self.assertIn("other API: the platform has no such class", report)

    def test_no_call(self):
        """A module that needs ranks has none, and torch is not installed."""
        text, _ = self.module("check", "import sys; sys.modules['torch'] = None; import deep_ep\n"
                                       "print(sys.argv[1]); deep_ep.Buffer()",
                              "-m", "program", "--argument", expected=3)
        self.assertIn("-m program: what each platform says", text)
        for words in ("--argument", "No call of deep_ep was made", "RANK", "give -n N"):
            self.assertIn(words, text)

    @needs_torch
    def test_spawning_program(self):
        """A program for GPUs that starts its own ranks runs, and is checked."""
        text, _ = self.module("check", SPAWNING, "--target", "unrestricted", "program.py",
                              PEERBUS_DEVICES="2")
        self.assertIn("2 calls by 2 processes: 2 ranks, 4 tokens", text)

    @needs_torch
    def test_start_up(self):
        """A program that starts as DeepEP's own tests do runs as it is."""
        text, _ = self.module("run", STARTING, "program.py", "--num-processes", "2",
                              TEST_PORT=free_port())
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 is done", text)

    @needs_torch
    def test_devices(self):
        """Devices as numbers, names of torch.cuda and types that torch has for GPUs only work."""
        text, _ = self.module("run", DEVICES, "program.py")
        self.assertIn("devices are done", text)

    @needs_torch
    def test_utilities(self):
        """The functions that DeepEP's tests import compute what they do there."""
        text, _ = self.module("run", UTILITIES, "program.py", "2", MASTER_PORT=free_port())
        self.assertIn("rank 1 is done", text)
        self.assertEqual(text.count("once for all"), 1)
        self.assertNotIn("hidden", text)

    def test_measurements(self):
        """Utilities without torch: no calls are measured, and small helpers."""
        text, _ = self.module("run", MEASURING, "--no-cuda", "program.py", PEERBUS_BENCH_CALLS="0")
        self.assertIn("nothing was called", text)

    def test_forking_program(self):
        """Processes that fork made write down their own calls, with numbers of numpy."""
        text, _ = self.module("check", FORKING, "--no-cuda", "program.py",
                              PEERBUS_JOB=f"{os.getpid()}-fork")
        self.assertIn("6 calls by 2 processes: 2 ranks, 2 tokens of at most 4", text)

    def test_names(self):
        """Python and the library number the operations and options of a call alike."""
        for number, name in enumerate(calls.OPERATIONS):
            call = {"operation": name, "ranks": 16, "tokens": 4, "max_tokens": 4, "hidden": 7168,
                    "top_k": 17, "experts": 256, "options": calls.OPTIONS}
            texts = [each["what"] for each in calls.findings("ascend_a3", call)]
            self.assertEqual("num_topk" in texts, number < 4)
        self.assertEqual(deep_ep.Config().get_nvl_buffer_size_hint(14336, 8), 335709824)
        raises(ValueError, "num_sms is 3", deep_ep.Config, 3)
        self.assertEqual(calls.TARGETS[-1], "ascend_950")


if __name__ == "__main__":
    main(globals())
