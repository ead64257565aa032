# SPDX-License-Identifier: MIT
"""Lets a program that says `cuda` and `nccl` run on CPUs, for `python -m peerbus.deep_ep.run`.

It changes torch for this process, and for the threads that Python starts in it. docs/python.md lists
what is replaced and what is skipped.
"""

import contextlib
import mmap
import os
import threading
import time

import numpy

from .. import Communicator, Error

_on_cuda = ("cuda",)
_MAP_NORESERVE = 0x4000  # Of <sys/mman.h>.
_lazy_bytes = 1 << 26  # Zeros of this size or more get their pages when they are first touched.


def _to_cpu(value, torch):
    """Returns a device of CUDA as the CPU, and anything else as it is."""
    if isinstance(value, str) and value.split(":")[0] in _on_cuda:
        return "cpu"
    if isinstance(value, torch.device) and value.type in _on_cuda:
        return torch.device("cpu")
    return value


def _is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _device_count():
    """Returns the ranks that a launcher has started on this host. A program that starts a rank for
    each device gets PEERBUS_DEVICES of them, by default 8."""
    for name in ("LOCAL_WORLD_SIZE", "PEERBUS_DEVICES"):
        if os.environ.get(name):
            return int(os.environ[name])
    return 8


class _Properties:
    name, multi_processor_count, total_memory, major, minor = "CPU", 132, 1 << 34, 9, 0


class _Device:
    """torch.cuda.device and torch.cuda.device_of: the device within a `with` block."""

    def __init__(self, device=None):
        self.idx = self.prev_idx = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class _StreamContext:
    """torch.cuda.stream: the current stream within a `with` block."""

    def __init__(self, stream=None):
        self.stream = stream

    def __enter__(self):
        from . import event
        self._before = event.current_stream()
        if self.stream is not None:
            event.set_current_stream(self.stream)
        return self

    def __exit__(self, *_):
        from . import event
        event.set_current_stream(self._before)
        return False


def _values_of_cuda(torch):
    """Returns a function for each name of torch.cuda that returns a value. Each is an object of its
    own: torch 2 refuses to see one behind two names."""
    from . import event
    here = {"device": 0}

    def set_device(device):
        index = device if _is_number(device) else getattr(torch.device(device), "index", 0)
        here["device"] = index or 0

    def memory():
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    return {
        "set_device": set_device, "current_device": lambda: here["device"],
        "is_available": lambda: True, "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False, "device_count": _device_count,
        "synchronize": lambda *_, **__: event.complete(),
        "current_stream": lambda *_, **__: event.current_stream(),
        "default_stream": lambda *_, **__: event.default_stream,
        "set_stream": event.set_current_stream,
        "get_device_properties": lambda *_, **__: _Properties,
        "get_device_capability": lambda *_, **__: (9, 0),
        "get_device_name": lambda *_, **__: "CPU",
        "memory_allocated": lambda *_, **__: 0, "max_memory_allocated": lambda *_, **__: 0,
        "memory_reserved": lambda *_, **__: 0, "max_memory_reserved": lambda *_, **__: 0,
        "mem_get_info": lambda *_, **__: memory(),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state)}


def _replace_cuda(torch):
    from .event import ClockEvent, Stream

    def nothing():
        return lambda *_, **__: None

    cuda = torch.cuda
    for name in ("_sleep", "empty_cache", "init", "ipc_collect", "reset_peak_memory_stats",
                 "reset_max_memory_allocated", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, nothing())
    for name, function in _values_of_cuda(torch).items():
        setattr(cuda, name, function)
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, nothing())
    cuda.stream = cuda.StreamContext = _StreamContext
    cuda.device = cuda.device_of = _Device
    cuda.Stream, cuda.Event = Stream, ClockEvent
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.record_stream = nothing()
    torch.compile = lambda model=None, **_: (lambda f: f) if model is None else model
    default = getattr(torch, "set_default_device", None)
    torch.set_default_device = lambda device: default and default(
        "cpu" if _is_number(device) else _to_cpu(device, torch))
    _replace_generator(torch)
    _replace_module(torch)


def _replace_generator(torch):
    """Makes torch.Generator take devices of CUDA. Any generator is still an instance of it."""
    original = torch.Generator

    class OfAny(type):
        def __instancecheck__(cls, value):
            return isinstance(value, original)

        def __call__(cls, device="cpu"):
            return original("cpu" if _is_number(device) else _to_cpu(device, torch))

    torch.Generator = OfAny("Generator", (), {"__doc__": original.__doc__})


def _replace_module(torch):
    """Makes modules take devices of CUDA, whose parser of arguments no mode sees."""
    original = torch.nn.Module.to

    def to(module, *arguments, **options):
        if _is_number(options.get("device")):
            options["device"] = "cpu"
        if arguments and _is_number(arguments[0]):
            arguments = ("cpu", *arguments[1:])
        return original(module, *(_to_cpu(each, torch) for each in arguments),
                        **{name: _to_cpu(each, torch) for name, each in options.items()})

    torch.nn.Module.to = to


class _Done:
    """The work of a collective operation that has ended."""

    def wait(self, *_, **__):
        return True

    is_completed = is_success = wait


def _replace_distributed(torch):
    import torch.distributed as dist
    init, new_group, barrier = dist.init_process_group, dist.new_group, dist.barrier
    all_gather, all_to_all_single = dist.all_gather, dist.all_to_all_single
    of_gloo = (torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32,
               torch.int64)

    def moved(tensor):
        """Returns a tensor as gloo moves it: the bytes of a type that it does not know."""
        return tensor if tensor.dtype in of_gloo else tensor.view(torch.uint8)

    def init_process_group(backend=None, *arguments, **options):
        options.pop("device_id", None)
        return init("gloo", *arguments, **options)

    def new_group_of_gloo(ranks=None, timeout=None, backend=None, *arguments, **options):
        options.pop("device_id", None)
        if timeout is not None:
            options["timeout"] = timeout
        return new_group(ranks, *arguments, backend="gloo", **options)

    def all_gather_of_gloo(tensor_list, tensor, group=None, async_op=False):
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format)
                 for _ in tensor_list]
        all_gather([moved(part) for part in parts], moved(tensor.contiguous()), group=group)
        for part, target in zip(parts, tensor_list):
            target.copy_(part)
        return _Done() if async_op else None

    def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
        parts = [torch.empty_like(input_tensor) for _ in range(dist.get_world_size(group))]
        all_gather_of_gloo(parts, input_tensor, group)
        output_tensor.copy_(torch.stack(parts).view(output_tensor.shape))
        return _Done() if async_op else None

    def all_to_all_single_of_gloo(output, input, output_split_sizes=None, input_split_sizes=None,
                                  group=None, async_op=False):
        all_to_all_single(moved(output), moved(input.contiguous()), output_split_sizes,
                          input_split_sizes, group=group)
        return _Done() if async_op else None

    def barrier_of_gloo(group=None, async_op=False, device_ids=None):
        work = barrier(**({} if group is None else {"group": group}), async_op=True)
        if async_op or work is None:  # None: of a rank outside the group.
            return work
        while not work.is_completed():  # A GPU serves its peers while its process waits.
            for comm in tuple(Communicator._all):
                with contextlib.suppress(Error):  # Its own calls tell of that.
                    comm.progress()
            time.sleep(0.0001)
        work.wait()

    dist.init_process_group, dist.new_group = init_process_group, new_group_of_gloo
    dist.all_gather, dist.barrier = all_gather_of_gloo, barrier_of_gloo
    dist.all_gather_into_tensor = dist._all_gather_base = all_gather_into_tensor
    dist.all_to_all_single = all_to_all_single_of_gloo


def _lazy_zeros(torch, args, kwargs):
    """Returns the zeros that `torch.zeros` is asked for if they are many, otherwise None. A program
    that only keeps a GPU busy with them takes no memory here."""
    if not args or set(kwargs) - {"dtype", "device"}:
        return None
    shape = args[0] if len(args) == 1 and not _is_number(args[0]) else args
    kind = kwargs.get("dtype") or torch.get_default_dtype()
    nbytes = torch.empty(0, dtype=kind).element_size()
    for size in shape:
        nbytes *= int(size)
    if nbytes < _lazy_bytes:
        return None
    pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return torch.from_numpy(numpy.frombuffer(pages, numpy.uint8)).view(kind).view(*shape)


def _normal_as_drawn_by_a_gpu(torch, function, args, kwargs):
    """Returns the normal numbers of 16 bits that are asked for, drawn as float32 and rounded.
    Returns None for other functions and types. Of bfloat16 that torch draws on a CPU, 6 of 1000 are
    0; a GPU draws float32, of which hardly any is."""
    narrow = (torch.bfloat16, torch.float16)
    if kwargs.get("out") is not None:
        return None
    if function is torch.Tensor.normal_:
        tensor = args[0]
        if tensor.dtype not in narrow:
            return None
        return tensor.copy_(function(torch.empty(tensor.shape, dtype=torch.float32),
                                     *args[1:], **kwargs))
    kind = kwargs.get("dtype")
    if kind is None:
        kind = torch.get_default_dtype() if function is torch.randn else args[0].dtype
    if kind not in narrow:
        return None
    kwargs = dict(kwargs, dtype=torch.float32)
    needs_gradient = kwargs.pop("requires_grad", False)
    return function(*args, **kwargs).to(kind).requires_grad_(needs_gradient)


def _without_float8(torch, function, args, kwargs):
    """Returns the result of an indexing or a comparison of E4M3 or E5M2, which torch has for GPUs
    only: by the bytes, or by the values as float32. Returns None for other functions."""
    kinds = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2")
                  if hasattr(torch, name))

    def mapped(convert):
        return [convert(value) if isinstance(value, torch.Tensor) and value.dtype in kinds else value
                for value in args]

    name = function.__name__
    if name in ("__getitem__", "index_select", "__setitem__"):
        moved = function(*mapped(lambda value: value.view(torch.uint8)), **kwargs)
        return moved if moved is None else moved.view(args[0].dtype)
    if name in ("eq", "__eq__", "ne", "__ne__", "equal"):
        return function(*mapped(lambda value: value.float()), **kwargs)
    return None


def _enter_in_threads(mode):
    """Makes each thread that is started from now on run within a mode of its own, because torch's
    modes belong to a thread."""
    start = threading.Thread.start

    def start_within_mode(thread):
        run = thread.run

        def run_within_mode():
            with mode():
                run()

        thread.run = run_within_mode
        start(thread)

    threading.Thread.start = start_within_mode


def install():
    """Replaces what a program for GPUs needs. A second call does nothing, and neither does a call
    where torch is not installed."""
    try:
        import torch
    except ImportError:
        return
    if getattr(torch, "_peerbus_on_cpu", False):
        return
    torch._peerbus_on_cpu = True
    os.environ.setdefault("USE_LIBUV", "0")  # Not every build of torch has libuv.
    _replace_cuda(torch)
    _replace_distributed(torch)
    zeros, to = torch.zeros, torch.Tensor.to
    normal = (torch.randn, torch.randn_like, torch.Tensor.normal_)

    class OnCpu(torch.overrides.TorchFunctionMode):
        """Replaces devices in the arguments of torch's functions."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = {name: _to_cpu(value, torch) for name, value in (kwargs or {}).items()}
            args = tuple(_to_cpu(value, torch) for value in args)
            if _is_number(kwargs.get("device")):
                kwargs["device"] = "cpu"
            if kwargs.get("pin_memory"):
                del kwargs["pin_memory"]
            if function is zeros:
                lazy = _lazy_zeros(torch, args, kwargs)
                if lazy is not None:
                    return lazy
            elif function in normal:
                drawn = _normal_as_drawn_by_a_gpu(torch, function, args, kwargs)
                if drawn is not None:
                    return drawn
            elif function is to and len(args) > 1 and _is_number(args[1]):
                args = (args[0], "cpu", *args[2:])
            try:
                return function(*args, **kwargs)
            except RuntimeError as problem:
                if "Float8" not in str(problem):
                    raise
                made = _without_float8(torch, function, args, kwargs)
                if made is None and function.__name__ != "__setitem__":
                    raise
                return made

    OnCpu().__enter__()  # For the rest of this thread.
    _enter_in_threads(OnCpu)
