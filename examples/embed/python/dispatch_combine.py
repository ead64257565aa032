# SPDX-License-Identifier: MIT
# DeepEP's low-latency calls on CPUs: python -m peerbus.deep_ep.run -n 4 dispatch_combine.py, or
# check for run, to be told what other platforms would refuse.
import numpy
import peerbus.deep_ep as deep_ep

# the ranks that a launcher started; the arguments are those that a GPU needs
buffer = deep_ep.Buffer(num_rdma_bytes=1 << 20, low_latency_mode=True)
tokens, hidden, top_k, experts = 8, 2048, 2, 8
x = numpy.full([tokens, hidden], 0x3F80, numpy.uint16)  # bfloat16 1.0; or tensors of torch
topk_idx = numpy.arange(tokens * top_k).reshape(tokens, top_k) % experts
topk_weights = numpy.full([tokens, top_k], 0.5, numpy.float32)

recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
    x, topk_idx, tokens, experts, use_fp8=False, return_recv_hook=True)
hook()  # recv_x: [experts of this rank, ranks * tokens, hidden]
outputs = recv_x  # experts that do nothing
combined, event, hook = buffer.low_latency_combine(outputs, topk_idx, topk_weights, handle)
assert (combined == x).all()
