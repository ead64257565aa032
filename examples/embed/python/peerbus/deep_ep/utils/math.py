# SPDX-License-Identifier: MIT
"""The comparisons and casts of DeepEP's tests, for torch tensors on the CPU.

E4M3 is float8_e4m3fn where torch has it (2.1 and later), otherwise uint8 with its bits.
"""

import functools
import operator


def ceil_div(x, y):
    """Returns x / y, rounded up."""
    return -(-x // y)


def align(x, y):
    """Returns `x` rounded up to a multiple of `y`."""
    return ceil_div(x, y) * y


def safe_div(a, b):
    """Returns a / b, and 0 for 0 / 0."""
    return 0 if a == 0 and b == 0 else a / b


def calc_diff(x, y):
    """Returns 1 - 2 sum(x' y') / sum(x'^2 + y'^2) for x' = x + 1 and y' = y + 1 in double: 0 for equal
    tensors."""
    x, y = x.double() + 1, y.double() + 1
    return (1 - 2 * (x * y).sum() / (x * x + y * y).sum()).item()


def hash_tensor(t):
    """Returns the sum of the tensor's words of 32 bits, whatever their order."""
    import torch
    return t.contiguous().view(torch.int32).sum(dtype=torch.int64).item()


def _tensors(values):
    """Returns the tensors of nested tuples and lists, without those that are None."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _tensors(value)
        elif value is not None:
            yield value


def hash_tensors(*tensors):
    """Returns the exclusive or of the tensors' `hash_tensor`. Tuples, lists and None may be among
    them."""
    return functools.reduce(operator.xor, map(hash_tensor, _tensors(tensors)), 0)


def count_bytes(*tensors):
    """Returns the bytes of all tensors. Tuples, lists and None may be among them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(tensors))


def inplace_unique(x, num_slots):
    """Makes each row of `x` [T, K] hold its different values from 0 to num_slots - 1, the greatest
    first, and then -1."""
    ordered = x.masked_fill((x < 0) | (x >= num_slots), -1).sort(dim=1, descending=True).values
    ordered[:, 1:].masked_fill_(ordered[:, 1:] == ordered[:, :-1].clone(), -1)
    x.copy_(ordered.sort(dim=1, descending=True).values)


def create_grouped_scores(scores, group_idx, num_groups):
    """Returns the scores [T, E] with 0 for the experts of groups that `group_idx` [T, any] does not
    name. A group has E / num_groups experts in turn."""
    import torch
    named = torch.zeros(scores.shape[0], num_groups, dtype=scores.dtype, device=scores.device)
    named.scatter_(1, group_idx, 1)
    return scores * named.repeat_interleave(scores.shape[1] // num_groups, dim=1)


def _float8():
    import torch
    return getattr(torch, "float8_e4m3fn", None)


def _table():
    """Returns the value of each of the 256 E4M3 codes."""
    import torch
    code = torch.arange(256)
    exponent, fraction = (code >> 3) & 15, (code & 7).float()
    size = torch.where(exponent == 0, fraction / 8 * 2.0**-6,
                       (1 + fraction / 8) * 2.0 ** (exponent.float() - 7))
    size[(code & 127) == 127] = float("nan")
    return torch.where(code >= 128, -size, size).float()


def _encode(values):
    """Returns the nearest E4M3 codes of values in -448 to 448, ties to even."""
    import torch
    sizes = _table()[:127]
    size = values.abs().clamp(max=448.0).contiguous()
    upper = torch.searchsorted(sizes, size).clamp(max=126)
    lower = (upper - 1).clamp(min=0)
    below, above = size - sizes[lower], sizes[upper] - size
    take_lower = (below < above) | ((below == above) & (lower % 2 == 0))
    code = torch.where(take_lower, lower, upper)
    return (code + 128 * (values < 0)).to(torch.uint8)


def per_token_cast_to_fp8(x, round_scale=False, use_ue8m0=False):
    """Returns ([T, H] E4M3, float32 [T, H / 128] scales) of a tensor [T, H], the last group filled up
    with zeros if it is smaller. A scale is the largest size of its group (at least 1e-4) / 448, with
    `round_scale` the next power of two. UE8M0 packing is left to the library's own calls."""
    import torch
    if use_ue8m0:
        raise NotImplementedError("use_ue8m0: low_latency_dispatch packs scales itself")
    tokens, hidden = x.shape
    groups = -(-hidden // 128)
    filled = torch.nn.functional.pad(x.float(), (0, -hidden % 128)).view(tokens, groups, 128)
    scales = filled.abs().amax(dim=2).clamp(min=1e-4) / 448.0
    if round_scale:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    scaled = (filled / scales.unsqueeze(2)).view(tokens, groups * 128)[:, :hidden]
    kind = _float8()
    return (_encode(scaled) if kind is None else scaled.to(kind)).contiguous(), scales


def per_token_cast_back(x_fp8, x_scales):
    """Returns the bfloat16 values of E4M3 rows. `x_scales` are float32 [T, H / 128], or int32 with
    four UE8M0 exponents in each."""
    import torch
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    if x_scales.dtype == torch.int32:
        # Flat: the rows of one column count as contiguous, whatever lies between them.
        exponents = x_scales.reshape(-1).contiguous().view(torch.uint8).to(torch.int32) << 23
        x_scales = exponents.view(torch.float32)
    hidden = x_fp8.shape[1]
    values = _table()[x_fp8.long()] if x_fp8.dtype == torch.uint8 else x_fp8.float()
    filled = torch.nn.functional.pad(values, (0, -hidden % 128)).view(x_fp8.shape[0], -1, 128)
    scales = x_scales.reshape(x_fp8.shape[0], -1)[:, :filled.shape[1]]
    return (filled * scales.unsqueeze(2)).reshape(x_fp8.shape[0], -1)[:, :hidden].to(
        torch.bfloat16)
