# SPDX-License-Identifier: MIT
"""Lets a program that says `cuda` and `nccl` run on CPUs, for `python -m peerbus.deep_ep.run`.

It changes torch for this process, and for the threads that Python starts in it. docs/python.md lists
what is replaced and what is skipped.
"""

import contextlib
import os
import threading

_on_cuda = ("cuda",)


def _to_cpu(value, torch):
    """Returns a device of CUDA as the CPU, and anything else as it is."""
    if isinstance(value, str) and value.split(":")[0] in _on_cuda:
        return "cpu"
    if isinstance(value, torch.device) and value.type in _on_cuda:
        return torch.device("cpu")
    return value


def _device_count():
    """Returns the ranks that a launcher has started on this host. A program that starts a rank for
    each device gets PEERBUS_DEVICES of them, by default 8."""
    for name in ("LOCAL_WORLD_SIZE", "PEERBUS_DEVICES"):
        if os.environ.get(name):
            return int(os.environ[name])
    return 8


class _Properties:
    name, multi_processor_count, total_memory, major, minor = "CPU", 132, 1 << 34, 9, 0


def _replace_cuda(torch):
    from .event import ClockEvent, Stream

    @contextlib.contextmanager
    def stream_context(*_, **__):
        yield

    def nothing(*_, **__):
        return None

    cuda = torch.cuda
    for name in ("set_device", "synchronize", "_sleep", "empty_cache", "init",
                 "reset_peak_memory_stats", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, nothing)
    cuda.stream = cuda.device = stream_context
    cuda.Stream, cuda.Event = Stream, ClockEvent
    cuda.current_stream = cuda.default_stream = lambda *_, **__: Stream()
    cuda.current_device, cuda.is_available = (lambda: 0), (lambda: True)
    cuda.device_count = _device_count
    cuda.get_device_properties = lambda *_, **__: _Properties
    cuda.get_device_capability = lambda *_, **__: (9, 0)
    cuda.get_device_name = lambda *_, **__: "CPU"
    cuda.memory_allocated = cuda.max_memory_allocated = lambda *_, **__: 0
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.Tensor.record_stream = nothing
    if not hasattr(torch, "compile"):
        torch.compile = lambda model=None, **_: (lambda f: f) if model is None else model
    default = getattr(torch, "set_default_device", None)
    torch.set_default_device = lambda device: default and default(_to_cpu(device, torch))


class _Done:
    """The work of a collective operation that has ended."""

    def wait(self, *_, **__):
        return True

    is_completed = is_success = wait


def _replace_distributed(torch):
    import torch.distributed as dist
    init, new_group = dist.init_process_group, dist.new_group

    def init_process_group(backend=None, *arguments, **options):
        options.pop("device_id", None)
        return init("gloo", *arguments, **options)

    def new_group_of_gloo(ranks=None, *arguments, **options):
        if "backend" in options:
            options["backend"] = "gloo"
        return new_group(ranks, *arguments, **options)

    def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
        parts = [torch.empty_like(input_tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, input_tensor.contiguous(), group=group)
        output_tensor.copy_(torch.stack(parts).view(output_tensor.shape))
        return _Done() if async_op else None

    dist.init_process_group, dist.new_group = init_process_group, new_group_of_gloo
    dist.all_gather_into_tensor = dist._all_gather_base = all_gather_into_tensor


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
    _replace_cuda(torch)
    _replace_distributed(torch)

    class OnCpu(torch.overrides.TorchFunctionMode):
        """Replaces devices in the arguments of torch's functions."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = {name: _to_cpu(value, torch) for name, value in (kwargs or {}).items()}
            return function(*(_to_cpu(value, torch) for value in args), **kwargs)

    OnCpu().__enter__()  # For the rest of this thread.
    _enter_in_threads(OnCpu)
