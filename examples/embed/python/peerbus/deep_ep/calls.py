# SPDX-License-Identifier: MIT
"""Calls of DeepEP's API as plain values: what platforms say of them, and who watches them.

The limits are those of the library (docs/profiles.md). Nothing here repeats one.
"""

import ctypes
import itertools
import operator
import os

from .. import _library as c

TARGETS = tuple(name.decode() for name in itertools.takewhile(
    lambda name: name is not None, map(c.lib.peerbus_target_name, itertools.count())))

OPERATIONS = ("dispatch", "combine", "low_latency_dispatch", "low_latency_combine",
              "EPBuffer.dispatch", "EPBuffer.combine", "BucketBuffer.all_gather",
              "BucketBuffer.reduce_scatter", "BucketBuffer.all_reduce",
              "EPBuffer.lb_prefetch_weights")
OPTIONS = ("dropped", "use_fp8", "round_scale", "use_ue8m0", "cumulative_statistics",
           "wait_statistics", "use_logfmt", "zero_copy", "out", "return_recv_hook", "async_finish",
           "handle", "bias", "config", "previous_event", "allocate_on_comm_stream", "do_expand",
           "do_handle_copy", "no_multiple_reduction", "narrow_topk_idx", "sl_idx",
           "no_low_latency_mode", "gaps_in_x", "topk_weights")
_bit_of = {name: 1 << i for i, name in enumerate(
    (*OPTIONS[:23], "num_rdma_bytes", "num_nvl_bytes", *OPTIONS[23:]))}
ELEMENTS = ("bf16", "fp8_e4m3", "other")
KINDS = ("refused", "no_effect", "differs", "set", "unset")

_variables = {"HCCL_BUFFSIZE": "hccl_buffsize_mb", "NVSHMEM_QP_DEPTH": "nvshmem_qp_depth",
              "DEEPEP_NORMAL_LONG_SEQ_ROUND": "normal_long_seq_rounds",
              "MOE_ENABLE_TOPK_NEG_ONE": "moe_enable_topk_neg_one"}

_element_of = {"bfloat16": 0, "uint16": 0, "float8_e4m3fn": 1, "uint8": 1}

watcher = None
"""Called with every call (as a dictionary) before it is made; None if nobody watches."""


def element_of(x):
    """Returns the element type of a tensor as platforms name it."""
    return ELEMENTS[_element_of.get(str(x.dtype).rpartition(".")[2], 2)]


def has_gaps(x):
    """Returns whether a tensor of torch or numpy is not contiguous."""
    if hasattr(x, "is_contiguous"):
        return not x.is_contiguous()
    return not getattr(getattr(x, "flags", None), "c_contiguous", True)


def is_narrow(topk_idx):
    """Returns whether the ids are given and have not DeepEP's type, int64."""
    return topk_idx is not None and str(topk_idx.dtype).rpartition(".")[2] != "int64"


def has_dropped(topk_idx, num_experts=None):
    """Returns whether the ids contain negative ones, or any of `num_experts` and more."""
    return topk_idx is not None and bool(
        (topk_idx < 0).any() or num_experts is not None and (topk_idx >= num_experts).any())


def structure_of(call, variables=()):
    """Returns the library's form of a call. `variables` are (name, value) pairs of the target."""
    made = c.Call(operation=OPERATIONS.index(call["operation"]),
                  element=ELEMENTS.index(call.get("element", "bf16")),
                  options=sum(_bit_of[name] for name in call.get("options", ())))
    for name in ("ranks", "ranks_per_node", "tokens", "max_tokens", "hidden", "top_k", "experts",
                 "expert_alignment", "num_worst_tokens", "num_sms", "num_qps"):
        setattr(made, name, call.get(name, 0))
    if "tensors" in call:  # Calls of BucketBuffer have a list instead of tokens.
        made.tokens, made.hidden = call["tensors"], call["tensor_bytes"]
    for name in ("num_rdma_bytes", "num_nvl_bytes"):
        if name in call:
            setattr(made, name, call[name])
            made.options |= _bit_of[name]
    for name, value in variables:
        setattr(made, _variables[name], value)
    return made


def findings(target, call):
    """Returns what the platform says of a call: dictionaries with kind, what, given, expected,
    advice. Environment variables count as set, and are listed with the kinds set and unset."""
    structure, count = structure_of(call), ctypes.c_uint64(32)
    found = ()
    while count.value > len(found):
        found = (c.Finding * count.value)()
        c.check(c.lib.peerbus_findings(TARGETS.index(target), ctypes.byref(structure), found,
                                       len(found), ctypes.byref(count)))
    return [{"kind": KINDS[each.kind], **{name: getattr(each, name).decode()
                                          for name in ("what", "given", "expected", "advice")}}
            for each in found[:count.value]]


class Target:
    """The platform whose limits the calls of a buffer are checked against."""

    def __init__(self, name):
        name = name or os.environ.get("PEERBUS_TARGET") or "unrestricted"
        if name not in TARGETS:
            raise ValueError(f"target is {name!r}, expected one of {', '.join(TARGETS)}")
        self.name, self._number = name, TARGETS.index(name)
        # As the program will find them on the target.
        self._variables = [(name, int(os.environ[name])) for name in _variables
                           if os.environ.get(name, "").isdigit()]
        self.wanted = self._number != 0 or watcher is not None
        self.is_v1 = name in ("unrestricted", "deepep_v1")  # Behaves as DeepEP's Buffer.

    def see(self, **call):
        """Tells the watcher of a call, and raises what the target refuses of it. Call it only if
        `wanted`, because a call costs some microseconds."""
        options = tuple(name for name in OPTIONS if call.pop(name, False))
        call = {name: value if isinstance(value, str) else operator.index(value)
                for name, value in call.items()}
        call["options"] = options
        if watcher is not None:
            watcher(call)
        if self._number != 0:
            c.check(c.lib.peerbus_require(
                self._number, ctypes.byref(structure_of(call, self._variables))))
