# SPDX-License-Identifier: MIT
"""The token dispatcher of an engine that serves a mixture of experts: DeepEP's normal mode for
prompts and its low-latency mode for the tokens that follow. generate_text.py uses it."""

import torch
import torch.distributed as dist

import peerbus.deep_ep as deep_ep  # For GPUs: import deep_ep. No other line differs.


class TokenDispatcher:
    """Takes rows of this rank to the ranks of their experts and brings the weighted sums back.

    Rank r has the experts from r * L on, L = experts / ranks. Both calls are collective. They take
    x [T, H] bf16, topk_idx [T, K] int64 and topk_weights [T, K] f32, and return [T, H] bf16. T may
    differ on each rank, and may be 0. `expert(i, rows)` returns the bf16 outputs of this rank's
    i-th expert.
    """

    def __init__(self, group, hidden, num_experts, max_decode_tokens):
        ranks, buffer = dist.get_world_size(group), deep_ep.Buffer
        self.num_experts, self.num_local = num_experts, num_experts // ranks
        self.max_decode_tokens = max_decode_tokens  # The most rows of `decode`, equal on all ranks.
        self.configs = buffer.get_dispatch_config(ranks), buffer.get_combine_config(ranks)
        self.buffer = deep_ep.Buffer(
            group,
            max(config.get_nvl_buffer_size_hint(2 * hidden, ranks) for config in self.configs),
            buffer.get_low_latency_rdma_size_hint(max_decode_tokens, hidden, ranks, num_experts),
            low_latency_mode=True, num_qps_per_rank=self.num_local, explicitly_destroy=True)
        self.hidden, self.is_low_latency = hidden, False

    def prefill(self, x, topk_idx, topk_weights, expert):
        """Many tokens: a row goes once to each rank that has experts of it."""
        self.is_low_latency = False
        to_rank, to_rdma_rank, to_expert, is_in_rank, event = self.buffer.get_dispatch_layout(
            topk_idx, self.num_experts, previous_event=self.buffer.capture(), async_finish=True,
            allocate_on_comm_stream=True)
        recv_x, recv_idx, recv_weights, recv_per_expert, handle, event = self.buffer.dispatch(
            x, num_tokens_per_rank=to_rank, num_tokens_per_rdma_rank=to_rdma_rank,
            is_token_in_rank=is_in_rank, num_tokens_per_expert=to_expert, topk_idx=topk_idx,
            topk_weights=topk_weights, config=self.configs[0], previous_event=event,
            async_finish=True, allocate_on_comm_stream=True)
        event.current_stream_wait()
        # The combine adds without weights: each rank weights and adds its own experts first. Each
        # term is rounded to bf16, as it is when the two experts of a row are on two ranks.
        sums = torch.zeros(recv_x.shape, dtype=torch.float32, device=x.device)
        for i, count in enumerate(recv_per_expert):
            if count > 0:
                row, slot = (recv_idx == i).nonzero(as_tuple=True)
                terms = recv_weights[row, slot, None] * expert(i, recv_x[row])
                sums[row] += terms.bfloat16()
        combined, _, event = self.buffer.combine(
            sums.bfloat16(), handle, config=self.configs[1], previous_event=self.buffer.capture(),
            async_finish=True, allocate_on_comm_stream=True)
        event.current_stream_wait()
        return combined

    def decode(self, x, topk_idx, topk_weights, expert):
        """Few tokens: a row goes to each of its experts, and its home weights the outputs."""
        if not self.is_low_latency:  # The modes share memory, which on GPUs must then be cleaned.
            self.buffer.clean_low_latency_buffer(self.max_decode_tokens, self.hidden,
                                                 self.num_experts)
            self.is_low_latency = True
        recv_x, recv_count, handle, _, hook = self.buffer.low_latency_dispatch(
            x, topk_idx, self.max_decode_tokens, self.num_experts, use_fp8=False,
            return_recv_hook=True)
        hook()  # An engine computes something else first, such as another batch's attention.
        outputs = torch.empty_like(recv_x)  # [L, ranks * max_decode_tokens, H]
        for i, count in enumerate(recv_count.tolist()):
            outputs[i, :count] = expert(i, recv_x[i, :count])
        combined, _, hook = self.buffer.low_latency_combine(
            outputs, topk_idx, topk_weights, handle, return_recv_hook=True)
        hook()
        return combined

    def destroy(self):
        """Releases the buffer."""
        self.buffer.destroy()
