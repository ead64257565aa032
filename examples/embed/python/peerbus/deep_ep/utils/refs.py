# SPDX-License-Identifier: MIT
"""A dispatch and a combine by torch alone, which DeepEP's tests compare a buffer with bit by bit."""

import math

from .envs import get_global_seed


def _exchanged(rows, received, sent):
    """Returns the rows that all ranks send here, as bytes for gloo. `received` and `sent` are rows by
    rank."""
    import torch
    import torch.distributed as dist
    width = rows.shape[1] if rows.dim() == 2 else 1
    data = rows.contiguous().view(rows.shape[0], width).view(torch.uint8) if rows.numel() else \
        torch.empty(0, width * rows.element_size(), dtype=torch.uint8)
    result = torch.empty(sum(received), data.shape[1], dtype=torch.uint8)
    dist.all_to_all_single(result, data, received, sent)
    return result.view(rows.dtype).view(sum(received), *rows.shape[1:])


def dispatch(x, topk_idx, topk_weights, num_max_tokens_per_rank, num_experts):
    """Collective: returns (recv_x or (recv_x, scales), recv_topk_idx, recv_topk_weights,
    recv_src_token_idx, num_recv_tokens_per_rank). The rows of a rank are the tokens that choose one
    of its experts, by source rank and token; ids are its local ones, -1 for experts elsewhere; the
    source is rank * `num_max_tokens_per_rank` + token. `topk_weights` may be None."""
    import torch
    import torch.distributed as dist
    rank, ranks = dist.get_rank(), dist.get_world_size()
    local = num_experts // ranks
    tokens, scales = x if isinstance(x, tuple) else (x, None)
    owner = torch.where(topk_idx < 0, -1, topk_idx // local)
    chosen = [(owner == other).any(1).nonzero()[:, 0] for other in range(ranks)]
    sent = [len(rows) for rows in chosen]
    counts = torch.tensor(sent, dtype=torch.int32)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    received, rows = arriving.tolist(), torch.cat(chosen)

    def moved(tensor):
        return None if tensor is None else _exchanged(tensor[rows], received, sent)

    ids = moved(topk_idx) - rank * local
    ids = ids.masked_fill((ids < 0) | (ids >= local), -1)
    sources = _exchanged((rank * num_max_tokens_per_rank + rows).to(torch.int32), received, sent)
    recv_x = moved(tokens)
    return (recv_x if scales is None else (recv_x, moved(scales)), ids, moved(topk_weights), sources,
            arriving)


def generate_pre_combine_data(src_token_global_idx, num_max_tokens_per_rank, num_topk, hidden):
    """Returns made-up outputs of experts, bfloat16 [T, K, H], that anyone can compute from the numbers
    of the source tokens: sines of angles that differ by token, slot, column and global seed."""
    import torch
    import torch.distributed as dist
    values = dist.get_world_size() * num_max_tokens_per_rank * num_topk
    slots = src_token_global_idx.long().unsqueeze(1) * num_topk + torch.arange(num_topk)
    angles = ((slots * 131071 % values).float() + 1) / values
    columns = torch.arange(1, hidden + 1, dtype=torch.float32)
    return torch.sin(angles.unsqueeze(2) * columns + math.sin(get_global_seed())).bfloat16()


def ordered_accumulate(data, initial_value=None):
    """Returns the sums [T, H] over the slots of `data` [T, K, H], which are added in order as float32
    to `initial_value` or 0, and then rounded to the type of `data`."""
    import torch
    total = torch.zeros(data.shape[0], data.shape[2], dtype=torch.float32) \
        if initial_value is None else initial_value.float().clone()
    for slot in range(data.shape[1]):
        total += data[:, slot].float()
    return total.to(data.dtype)


def _reduced(y, group):
    """Returns `y` [T, K, H] with the slots of each group [T, K] added, in order and as float32, into
    the last of them, rounded to the type of `y`, and 0 in the others."""
    import torch
    result = torch.zeros_like(y)
    for last in range(y.shape[1]):
        same = group == group[:, last:last + 1]
        total = torch.zeros(y.shape[0], y.shape[2], dtype=torch.float32)
        for slot in range(last + 1):
            total += torch.where(same[:, slot:slot + 1], y[:, slot].float(), 0.0)
        is_last = ~same[:, last + 1:].any(1)
        result[is_last, last] = total[is_last].to(y.dtype)
    return result


def combine(y, topk_idx, num_scaleout_ranks, num_scaleup_ranks, num_experts, bias, reduce_in_local,
            reduce_in_scaleup):
    """Returns the combined tokens [T, H] of the experts' outputs `y` [T, K, H]. With
    `reduce_in_local` the outputs of a rank are added and rounded first, with `reduce_in_scaleup` then
    those of a scale-up domain. `bias` is None, [T, H] or a tuple of two."""
    if reduce_in_scaleup and not reduce_in_local:
        raise ValueError("reduce_in_scaleup is true, expected reduce_in_local with it")
    local = num_experts // (num_scaleout_ranks * num_scaleup_ranks)

    def owner(experts):
        return (topk_idx.double() / experts).floor()

    if reduce_in_local:
        y = _reduced(y, owner(local))
    if reduce_in_scaleup:
        y = _reduced(y, owner(local * num_scaleup_ranks))
    if isinstance(bias, tuple):
        bias = bias[0].float() + bias[1].float()
    return ordered_accumulate(y, bias)
