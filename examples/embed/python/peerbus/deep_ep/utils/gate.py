# SPDX-License-Identifier: MIT
"""Scores of experts whose top-k is unbalanced: rank 0 gets `ratio` times the tokens of another rank.
All functions return tensors on the CPU, scores [T, E] as float32."""


def generate_rank_count(num_tokens, num_experts, num_ranks, num_topk, ratio):
    """Returns how many experts of each rank each token chooses, int32 [T, R], `num_topk` in a row. The
    ranks but the first occur in equally many rows, give or take one, and rank 0 in `ratio` times as
    many."""
    import torch
    if ratio < 1:
        raise ValueError(f"ratio is {ratio}, expected 1 or more")
    counts = torch.zeros(num_tokens, num_ranks, dtype=torch.int32)
    if num_ranks == 1:
        return counts.fill_(num_topk)
    others = num_ranks - 1
    # A token reaches as many ranks as a random choice does, but no more than the ratio allows.
    random = torch.rand(num_tokens, num_experts, dtype=torch.float32).topk(num_topk).indices
    reached = torch.zeros(num_tokens, num_ranks, dtype=torch.int64)
    reached.scatter_(1, random // (num_experts // num_ranks), 1)
    width = reached.sum(1).clamp(max=int(others / ratio) + 1)
    # Tokens that reach all ranks reach rank 0; the rest of its share is drawn.
    must = width == num_ranks
    share = max(round(ratio * width.sum().item() / (others + ratio)), int(must.sum()))
    order = (torch.rand(num_tokens, dtype=torch.float32) + must).argsort(descending=True)
    reaches_first = torch.zeros(num_tokens, dtype=torch.int64)
    reaches_first[order[:share]] = 1
    # The other ranks take turns through all tokens.
    turns = width - reaches_first
    begin = (turns.cumsum(0) - turns).unsqueeze(1)
    place = torch.arange(num_topk) % width.unsqueeze(1) - reaches_first.unsqueeze(1)
    ranks = torch.where(place < 0, 0, 1 + torch.randperm(others)[(begin + place) % others])
    return counts.scatter_add_(1, ranks, torch.ones_like(ranks, dtype=torch.int32))


def generate_topk_idx(rank_count, num_tokens, num_experts, num_ranks, num_topk):
    """Returns expert ids [T, K]: random ones, as many of each rank as `rank_count` [T, R] says."""
    import torch
    if tuple(rank_count.shape) != (num_tokens, num_ranks) or (rank_count.sum(1) != num_topk).any():
        raise ValueError(f"rank_count is {list(rank_count.shape)}, expected [{num_tokens}, "
                         f"{num_ranks}] with rows of the sum {num_topk}")
    drawn = torch.rand(num_tokens, num_ranks, num_experts // num_ranks, dtype=torch.float32)
    chosen = drawn.argsort(2).argsort(2) < rank_count.unsqueeze(2)
    return chosen.view(num_tokens, num_experts).nonzero()[:, 1].view(num_tokens, num_topk)


def get_precise_unbalanced_scores(num_tokens, num_experts, num_ranks, num_topk, ratio):
    """Returns scores whose top-k has the ratio exactly. No gate of a model gives such ones."""
    import torch
    counts = generate_rank_count(num_tokens, num_experts, num_ranks, num_topk, ratio)
    ids = generate_topk_idx(counts, num_tokens, num_experts, num_ranks, num_topk)
    scores = torch.empty(num_tokens, num_experts, dtype=torch.float32).uniform_(0, 0.9)
    return scores.scatter_(1, ids, torch.empty(ids.shape, dtype=torch.float32).uniform_(0.901, 1))


def get_scores_by_factor(num_tokens, num_experts, num_ranks, factor):
    """Returns random scores, up to `factor` for the experts of rank 0 and up to 1 for others."""
    import torch
    scores = torch.rand(num_tokens, num_experts, dtype=torch.float32)
    scores[:, :num_experts // num_ranks] *= factor
    return scores


def map_unbalanced_ratio_to_factor(num_tokens, num_experts, num_ranks, num_topk, ratio):
    """Returns the factor for `get_scores_by_factor` that gives the ratio, by trial: between 1 and
    100."""
    import torch
    low, high = 1.0, 100.0
    for _ in range(20):
        factor = (low + high) / 2
        scores = get_scores_by_factor(num_tokens, num_experts, num_ranks, factor)
        ranks = scores.topk(num_topk).indices // (num_experts // num_ranks)
        reached = torch.zeros(num_tokens, num_ranks, dtype=torch.float32).scatter_(1, ranks, 1)
        tokens = reached.sum(0)
        if tokens[0] > ratio * tokens[1:].mean():
            high = factor
        else:
            low = factor
    return low


def get_random_unbalanced_scores(num_tokens, num_experts, num_ranks, num_topk, ratio):
    """Returns random scores whose top-k has the ratio about."""
    factor = 1.0 if ratio == 1.0 else map_unbalanced_ratio_to_factor(
        num_tokens, num_experts, num_ranks, num_topk, ratio)
    return get_scores_by_factor(num_tokens, num_experts, num_ranks, factor)


def get_unbalanced_scores(num_tokens, num_experts, num_ranks, num_topk, ratio, precise):
    """Returns scores [T, E] of the ratio: exactly if `precise`, otherwise about."""
    make = get_precise_unbalanced_scores if precise else get_random_unbalanced_scores
    return make(num_tokens, num_experts, num_ranks, num_topk, ratio)
