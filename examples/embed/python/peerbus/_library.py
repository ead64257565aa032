# SPDX-License-Identifier: MIT
"""libpeerbus.so by ctypes: where it is, its structures, and errors as exceptions.

ctypes releases the GIL during each call.
"""

import ctypes
import operator
import os
import re
import threading
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p

INTERRUPTED = 64
ANY_RANK = 2**64 - 1
CODECS = ("bf16", "int8_per_token", "fp8_f32", "fp8_rounded", "fp8_ue8m0", "fp8_as_given", "nothing")


def _load():
    """Returns the library: that of PEERBUS_LIBRARY, one beside this file, or that of the system."""
    here = os.path.join(os.path.dirname(__file__), "libpeerbus.so")
    given = os.environ.get("PEERBUS_LIBRARY")
    name = given or (here if os.path.exists(here) else "libpeerbus.so.0.1")
    try:
        return ctypes.CDLL(name)
    except OSError as problem:
        raise ImportError(
            f"peerbus cannot load {name}: {problem}. Build it (docs/c.md), and name it in "
            "PEERBUS_LIBRARY or install it where the loader looks"
        ) from None


lib = _load()
lib.peerbus_last_error.restype = c_char_p
lib.peerbus_code_text.restype = c_char_p
lib.peerbus_version.restype = c_uint32
if lib.peerbus_version() >> 8 != 0x0001:
    raise ImportError(f"peerbus needs libpeerbus 0.1, found {lib.peerbus_version():#x}")


class Error(RuntimeError):
    """A call that failed. ``code`` is its number, the text says what was given and expected."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):  # For processes that send an exception to another one.
        return type(self), (self.code, str(self))


class InvalidArgument(Error, ValueError):
    """This rank gave a value that the call does not accept."""


class Refused(Error):
    """Another rank gave a value that the call does not accept. Nothing happened."""


class TimedOut(Error, TimeoutError):
    """The time limit passed first."""


class PeerDead(Error, ConnectionError):
    """A rank died, or left before it had done its part."""


class Poisoned(Error):
    """An earlier failure left the ranks out of step. Make a new communicator."""


class OutOfMemory(Error, MemoryError):
    """The machine does not have the memory."""


for _class in (Error, InvalidArgument, Refused, TimedOut, PeerDead, Poisoned, OutOfMemory):
    _class.__module__ = "peerbus"  # As a program names it, and a traceback shows it.

_classes = {1: InvalidArgument, 2: InvalidArgument, 4: OutOfMemory, 5: TimedOut, 6: PeerDead,
            7: Poisoned, 8: Refused}


def check(code):
    """Raises the exception for a failed call, or what a signal handler raised during the call."""
    if code == 0:
        return
    if code == INTERRUPTED:
        exception, raised[:] = raised[:], [None] * 3
        _restore(*exception)  # Raises it.
        raise KeyboardInterrupt  # If a call that another handler made has raised it already.
    text = lib.peerbus_last_error().decode(errors="replace")
    # The handle of an object of Python is null only after its `destroy`.
    raise _classes.get(code, Error)(code, re.sub(r"^peerbus: the ([a-z ]+) is NULL",
                                                 r"peerbus: the \1 was destroyed", text))


def check_refusal(code):
    """Raises what a handler of a signal raised while a call told other ranks of an error. Any other
    failure of that call is less than the error, which the caller is about to raise."""
    if code == INTERRUPTED:
        check(code)


_ranges = {c_int32: (-1 << 31, (1 << 31) - 1), c_uint32: (0, (1 << 32) - 1),
           c_int64: (-1 << 63, (1 << 63) - 1), c_uint64: (0, (1 << 64) - 1)}


class Struct(ctypes.Structure):
    """A structure of peerbus.h that begins with its size. It refuses numbers that do not fit, which
    ctypes would cut off."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls._limits = {name: _ranges[kind] for name, kind in cls._fields_ if kind in _ranges}

    def __init__(self, **members):
        for name, value in members.items():
            limits = self._limits.get(name)
            try:
                fits = limits is None or limits[0] <= value <= limits[1]
            except (TypeError, ValueError):  # No number, as ctypes will say.
                fits = True
            if not fits:
                raise InvalidArgument(1, f"{name} is {value}, expected {limits[0]} to {limits[1]}")
        super().__init__(struct_bytes=ctypes.sizeof(self), **members)


class CommOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_int64),
                ("meet_timeout_ns", c_int64)]


class Python(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("thread", c_uint64)] + [
        (name, c_void_p) for name in ("ensure_gil", "release_gil", "check_signals", "fetch", "raised")]


class Place(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("port", c_uint32), ("rank", c_uint64),
                ("size", c_uint64), ("address", c_char_p), ("job", c_char_p)]


class TeamOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("scratch_bytes", c_uint64),
                ("one_shot_bytes", c_uint64), ("window_bytes", c_uint64), ("costs_file", c_char_p),
                ("algorithm", c_int32), ("may_reorder", c_uint32)]


class ChannelOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("scratch_bytes", c_uint64)]


class Transfer(ctypes.Structure):
    """A message of a batch. It lies in an array, so it does not begin with its size."""

    _fields_ = [("sends", c_uint32), ("dtype", c_int32), ("peer", c_uint64), ("count", c_uint64),
                ("input", c_void_p), ("output", c_void_p)]


class ExchangeConfig(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("codec", c_int32), ("layout", c_int32),
                ("outputs_at_home", c_uint32), ("experts", c_uint64), ("hidden", c_uint64),
                ("top_k", c_uint64), ("max_tokens", c_uint64), ("in_flight", c_uint64),
                ("alignment", c_uint64), ("zero_gaps", c_uint32), ("reserved", c_uint32),
                ("attachments", c_uint64 * 4), ("output_attachment", c_uint64),
                ("note_bytes", c_uint64), ("physical_to_logical", c_void_p),
                ("stream_from", c_uint64)]


class DispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("expert_id_bits", c_uint32), ("count", c_uint64),
                ("tokens", c_void_p), ("experts", c_void_p), ("weights", c_void_p),
                ("attachments", c_void_p * 4), ("note", c_void_p), ("waited_ns", c_void_p),
                ("refuse", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_int64)]


class CombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("attached", c_uint32), ("count", c_uint64),
                ("out", c_void_p), ("weights", c_void_p), ("bias", c_void_p * 2),
                ("local", c_void_p), ("waited_ns", c_void_p), ("refuse", c_uint32),
                ("reserved", c_uint32), ("timeout_ns", c_int64)]


class Received(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("by_rank", c_uint32)] + [
        (name, c_uint64)
        for name in ("ticket", "rows", "end", "row_capacity", "ranks", "blocks", "experts")
    ] + [("expert_ids", c_void_p), ("first_rows", c_void_p), ("counts", c_void_p),
         ("row_data", c_void_p), ("row_bytes", c_uint64), ("scales", c_void_p),
         ("scale_bytes", c_uint64), ("outputs", c_void_p), ("attachments", c_void_p * 4),
         ("origins", c_void_p), ("slot_experts", c_void_p), ("slot_weights", c_void_p),
         ("use_starts", c_void_p), ("uses", c_void_p)]


class Tensor(ctypes.Structure):
    """DLPack's DLTensor."""
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("dtype_code", ctypes.c_uint8), ("dtype_bits", ctypes.c_uint8),
                ("dtype_lanes", ctypes.c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Array(ctypes.Structure):
    """A tensor in memory of a buffer."""
    _fields_ = [("data", c_void_p), ("ndim", c_int32), ("dtype_code", ctypes.c_uint8),
                ("dtype_bits", ctypes.c_uint8), ("dtype_lanes", ctypes.c_uint16),
                ("shape", c_int64 * 3), ("strides", c_int64 * 3)]


_tensor = c_void_p  # The address of a Tensor, which costs less than a pointer object.


class BufferOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("target", c_int32),
                ("num_max_tokens_per_rank", c_uint64), ("in_flight", c_uint64),
                ("zero_copy", c_uint32), ("enable_shrink", c_uint32),
                ("target_ranks_per_node", c_uint64), ("hccl_buffsize_mb", c_uint64),
                ("nvshmem_qp_depth", c_uint64), ("normal_long_seq_rounds", c_uint64),
                ("moe_enable_topk_neg_one", c_uint32), ("reserved", c_uint32),
                ("skip_other_ids", c_uint32), ("padding", c_uint32)]


class LowLatencyDispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("use_fp8", c_uint32), ("round_scale", c_uint32),
                ("use_ue8m0", c_uint32), ("async_finish", c_uint32), ("return_recv_hook", c_uint32),
                ("x", _tensor), ("cumulative_local_expert_recv_stats", _tensor),
                ("dispatch_wait_recv_cost_stats", _tensor), ("topk_idx", _tensor),
                ("num_max_dispatch_tokens_per_rank", c_uint64), ("num_experts", c_uint64),
                ("timeout_ns", c_int64), ("topk_weights", _tensor)]


class LowLatencyReceived(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("recv_x", Array),
                ("recv_x_scales", Array), ("recv_count", Array), ("src_info", Array),
                ("layout_range", Array), ("result", c_void_p), ("recv_topk_weights", Array),
                ("recv_rank_info", Array)]


class LowLatencyCombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("zero_copy", c_uint32), ("async_finish", c_uint32),
                ("return_recv_hook", c_uint32), ("x", _tensor), ("topk_idx", _tensor),
                ("topk_weights", _tensor), ("out", _tensor),
                ("combine_wait_recv_cost_stats", _tensor), ("handle", c_void_p),
                ("timeout_ns", c_int64), ("use_logfmt", c_uint32), ("reserved", c_uint32)]


class Combined(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("combined_x", Array),
                ("combined_topk_weights", Array), ("result", c_void_p)]


class DispatchLayout(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("num_tokens_per_rank", Array),
                ("num_tokens_per_expert", Array), ("is_token_in_rank", Array),
                ("result", c_void_p)]


class NormalDispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("x", _tensor),
                ("x_scales", _tensor), ("handle", c_void_p), ("num_tokens_per_rank", _tensor),
                ("is_token_in_rank", _tensor), ("num_tokens_per_expert", _tensor),
                ("topk_idx", _tensor), ("topk_weights", _tensor), ("expert_alignment", c_uint64),
                ("num_worst_tokens", c_uint64), ("timeout_ns", c_int64),
                ("num_max_tokens_per_rank", c_uint64)]


class NormalReceived(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("recv_x", Array),
                ("recv_x_scales", Array), ("recv_topk_idx", Array), ("recv_topk_weights", Array),
                ("num_recv_tokens_per_expert_list", Array), ("rank_prefix", Array),
                ("recv_src_idx", Array), ("is_token_in_rank", Array), ("result", c_void_p),
                ("num_max_tokens_per_rank", c_uint64)]


class NormalCombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("async_finish", c_uint32), ("x", _tensor),
                ("handle", c_void_p), ("topk_weights", _tensor), ("bias", _tensor * 2),
                ("timeout_ns", c_int64)]


class EpBufferOptions(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32),
                ("num_max_tokens_per_rank", c_uint64), ("in_flight", c_uint64)]


class EpDispatchArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("do_zero_padding", c_uint32), ("x", _tensor),
                ("x_scales", _tensor), ("topk_idx", _tensor), ("topk_weights", _tensor),
                ("cumulative_local_expert_recv_stats", _tensor), ("num_experts", c_uint64),
                ("expert_alignment", c_uint64), ("timeout_ns", c_int64),
                ("num_max_tokens_per_rank", c_uint64)]


class EpReceived(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("recv_x", Array),
                ("recv_x_scales", Array), ("recv_topk_weights", Array),
                ("psum_num_recv_tokens_per_scaleup_rank", Array),
                ("psum_num_recv_tokens_per_expert", Array),
                ("num_unaligned_recv_tokens_per_expert", Array),
                ("num_recv_tokens_per_expert_list", Array), ("recv_src_metadata", Array),
                ("num_recv_tokens", c_uint64), ("num_expanded_tokens", c_uint64),
                ("result", c_void_p), ("num_max_tokens_per_rank", c_uint64)]


class EpCombineArgs(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("async_with_compute_stream", c_uint32), ("x", _tensor),
                ("handle", c_void_p), ("topk_weights", _tensor), ("bias", _tensor * 2),
                ("timeout_ns", c_int64)]


class Call(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("operation", c_int32)] + [
        (name, c_uint64) for name in ("ranks", "ranks_per_node", "tokens", "max_tokens", "hidden",
                                      "top_k", "experts")
    ] + [("element", c_int32), ("options", c_uint32)] + [
        (name, c_uint64) for name in ("expert_alignment", "num_worst_tokens", "num_sms", "num_qps",
                                      "hccl_buffsize_mb", "nvshmem_qp_depth",
                                      "normal_long_seq_rounds")
    ] + [("moe_enable_topk_neg_one", c_uint32), ("reserved", c_uint32), ("num_rdma_bytes", c_uint64),
         ("num_nvl_bytes", c_uint64)]


class Finding(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("kind", c_int32), ("what", c_char_p),
                ("given", c_char_p), ("expected", c_char_p), ("advice", c_char_p)]


class DeepEpConfig(Struct):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32)] + [
        (name, c_uint64) for name in (
            "num_sms", "num_max_nvl_chunked_send_tokens", "num_max_nvl_chunked_recv_tokens",
            "num_max_rdma_chunked_send_tokens", "num_max_rdma_chunked_recv_tokens")]


finding_function = ctypes.CFUNCTYPE(None, POINTER(Finding), c_void_p)


def _declare():
    handle, out = c_void_p, POINTER(c_void_p)
    size, time, dtype, reduction = c_uint64, c_int64, c_int32, c_int32
    array, numbers = c_void_p, c_void_p
    codes = {
        "comm_from_environment": [c_void_p, out],
        "comm_at": [c_void_p, c_void_p, out],
        "comm_subgroup": [handle, c_void_p, size, c_void_p, out],
        "comm_destroy": [out],
        "comm_barrier": [handle, time],
        "comm_set_python": [handle, c_void_p],
        "team_create": [handle, c_void_p, time, out],
        "team_in_window": [handle, handle, out],
        "team_in_halves": [handle, out],
        "team_finish": [handle, time],
        "team_algorithm": [handle, c_int32, size, c_uint32, POINTER(c_int32)],
        "broadcast": [handle, array, size, dtype, size, time],
        "gather": [handle, array, array, size, dtype, size, time],
        "scatter": [handle, array, array, size, dtype, size, time],
        "all_gather": [handle, array, array, size, dtype, time],
        "all_gather_v": [handle, array, array, numbers, numbers, dtype, time],
        "all_to_all": [handle, array, array, size, dtype, time],
        "all_to_all_v": [handle, array, numbers, numbers, array, numbers, numbers, dtype, time],
        "reduce": [handle, array, array, size, dtype, reduction, size, time],
        "all_reduce": [handle, array, array, size, dtype, reduction, time],
        "reduce_scatter": [handle, array, array, size, dtype, reduction, time],
        "gather_v": [handle, array, size, array, numbers, numbers, dtype, size, time],
        "scatter_v": [handle, array, numbers, numbers, array, size, dtype, size, time],
        "reduce_scatter_v": [handle, array, numbers, numbers, array, dtype, reduction, time],
        "all_reduce_add": [handle, array, array, array, size, dtype, time],
        "all_gather_coded": [handle, c_int32, array, size, size, array, array, dtype, time],
        "channels_create": [handle, c_void_p, time, out],
        "channels_in_halves": [handle, out],
        "channels_finish": [handle, time],
        "send": [handle, array, size, dtype, size, time],
        "recv": [handle, array, size, dtype, size, time],
        "batch_send_recv": [handle, POINTER(Transfer), size, time],
        "window_create": [handle, size, size, time, out],
        "window_put": [handle, size, size, c_void_p, size],
        "window_signal": [handle, size, size, size],
        "window_put_signal": [handle, size, size, c_void_p, size, size, size],
        "window_get": [handle, size, size, c_void_p, size],
        "window_fetch_add": [handle, size, size, size, POINTER(c_uint64)],
        "window_flush": [handle, size],
        "window_wait": [handle, size, size, size, time],
        "exchange_create": [handle, c_void_p, time, out],
        "dispatch": [handle, c_void_p, c_void_p],
        "dispatch_send": [handle, c_void_p, POINTER(c_uint64)],
        "dispatch_recv": [handle, size, c_void_p, time, c_void_p],
        "combine": [handle, size, c_void_p],
        "combine_send": [handle, size, c_void_p],
        "combine_recv": [handle, size, c_void_p],
        "decode": [handle, size, size, POINTER(c_float)],
        "buffer_create": [handle, c_void_p, out],
        "result_wait": [handle],
        "low_latency_dispatch": [handle, c_void_p, c_void_p],
        "low_latency_combine": [handle, c_void_p, c_void_p],
        "low_latency_combine_buffer": [handle, handle, c_void_p],
        "get_dispatch_layout": [handle, _tensor, size, c_void_p],
        "normal_dispatch": [handle, c_void_p, c_void_p],
        "normal_combine": [handle, c_void_p, c_void_p],
        "buffer_refuse": [handle, c_int32, c_char_p, time],
        "ep_buffer_refuse": [handle, c_char_p, time],
        "low_latency_mask": [handle, size, c_uint32],
        "low_latency_masks": [handle, _tensor],
        "ep_buffer_create": [handle, c_void_p, out],
        "ep_dispatch": [handle, c_void_p, c_void_p],
        "ep_combine": [handle, c_void_p, c_void_p],
        "pp_create": [handle, size, size, time, out],
        "pp_send": [handle, c_void_p, size, size, time],
        "pp_recv": [handle, c_void_p, size, size, time],
        "fold_rows": [c_void_p, c_void_p, c_void_p],
        "examine": [c_int32, c_void_p, finding_function, c_void_p],
        "require": [c_int32, c_void_p],
        "nvl_buffer_size_hint": [c_void_p, size, size, POINTER(c_uint64)],
    }
    for name, arguments in codes.items():
        function = getattr(lib, "peerbus_" + name)
        function.argtypes, function.restype = arguments, c_int32
    others = {
        "comm_rank": ([handle], size),
        "comm_size": ([handle], size),
        "launched": ([], c_int32),
        "team_destroy": ([out], None),
        "channels_destroy": ([out], None),
        "window_destroy": ([out], None),
        "window_bytes": ([handle], size),
        "window_part": ([handle, size], c_void_p),
        "window_signal_value": ([handle, size], size),
        "exchange_destroy": ([out], None),
        "exchange_bytes": ([handle], size),
        "buffer_destroy": ([out], None),
        "result_destroy": ([out], None),
        "ep_buffer_destroy": ([out], None),
        "pp_destroy": ([out], None),
        "pp_storage": ([handle, POINTER(c_uint64)], c_void_p),
        "target_name": ([c_int32], c_char_p),
        "ep_buffer_size_hint": ([size, size, size, size, c_uint32, c_uint32], size),
        "low_latency_rdma_size_hint": ([size, size, size, size], size),
    }
    for name, (arguments, result) in others.items():
        function = getattr(lib, "peerbus_" + name)
        function.argtypes, function.restype = arguments, result


_declare()

# The type, value and traceback of what a handler of a signal has raised in a wait. It is never freed,
# because objects may wait when this module is gone already.
raised = (c_void_p * 3)()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(raised))
_restore = ctypes.pythonapi.PyErr_Restore
_restore.argtypes, _restore.restype = [c_void_p] * 3, None


def let_handlers_run(comm):
    """Lets handlers of signals, such as that of Ctrl-C, run while a call of the main thread waits."""
    api = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value for name in (
        "PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")]
    check(lib.peerbus_comm_set_python(comm, ctypes.byref(Python(
        thread=threading.main_thread().ident, ensure_gil=api[0], release_gil=api[1],
        check_signals=api[2], fetch=api[3], raised=ctypes.addressof(raised)))))


class Object:
    """An object of the library, destroyed with this one."""

    _reference = staticmethod(ctypes.byref)  # This module's names go before the last objects do.

    def __init__(self, kind, handle):
        self._as_parameter_ = handle
        self._destroy = getattr(lib, f"peerbus_{kind}_destroy")

    def destroy(self):
        """Releases what the library holds. Does nothing if that has happened before."""
        self._destroy(self._reference(self._as_parameter_))

    def alive(self):
        """Returns this object. Raises if it was destroyed: functions of the library that return no
        code take its handle, and would return 0."""
        if not self._as_parameter_:
            raise InvalidArgument(1, f"the {type(self).__name__.lower()} was destroyed")
        return self

    def __del__(self):
        if hasattr(self, "_destroy"):
            self.destroy()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()


def nanoseconds(seconds):
    """Returns a time limit as the library takes it. None is the default of the communicator."""
    if seconds is None:
        return 0
    try:
        limit = seconds * 1e9
        if limit != limit:
            raise ValueError
        if limit >= 1 << 63:  # More than 292 years.
            return -1
        return max(1, round(limit)) if limit > 0 else 1
    except (TypeError, ValueError):
        raise TypeError(f"timeout is {seconds!r}, expected a number of seconds, or None for the "
                        "default") from None


def number(value, name):
    """Returns a number that the library takes as 64 bits. ctypes would cut others off."""
    value = operator.index(value)
    if not 0 <= value < 1 << 64:
        raise InvalidArgument(1, f"{name} is {value}, expected 0 or more, in 64 bits")
    return value


_collective = [getattr(lib, f"peerbus_{kind}_create")
               for kind in ("window", "exchange", "team", "channels", "pp")]


def make(kind, create, *arguments):
    """Returns the handle that `create(arguments..., &handle)` sets."""
    if arguments[0] is None:
        raise TypeError(f"the {kind} was to be made of None, expected the object that it belongs to")
    if create in _collective:
        # Ranks that are early wait here, where a signal ends the wait; the bootstrap has no such place.
        check(lib.peerbus_comm_barrier(arguments[0], arguments[-1]))
    handle = c_void_p()
    check(create(*arguments, ctypes.byref(handle)))
    return handle
