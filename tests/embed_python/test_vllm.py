# SPDX-License-Identifier: MIT
"""peerbus.engines.vllm, called in the order in which vLLM's modular kernel and its models call a back
end. On numpy arrays, and on torch tensors where torch is installed: TENSORS=torch."""

import abc
import collections
import os
import signal
import threading
import time
import types
import unittest

import numpy

import peerbus
from peerbus.engines import dealt
from engine_model import (EXPERTS, HIDDEN, MOST, Model, batches, check_arguments, expected, factor,
                          put_module)
from ranks import bf16, has_hosts, main, needs_torch, raises, run, widened
from test_deep_ep import codes

Quant = collections.namedtuple("Quant", "quant_dtype block_shape per_act_token_quant")


class Rank(Model):
    """This rank, with a back end over all."""

    def __init__(self, same_bits=False):
        from peerbus.engines import vllm
        super().__init__()
        self.vllm = vllm
        self.manager = vllm.All2AllManager(self.comm, same_bits=same_bits,
                                           relay="automatic" if same_bits else self.relay)
        self.handle = self.manager.get_handle(self.numbers())

    def numbers(self, **other):
        return dict(dict(max_num_tokens_per_dp_rank=MOST, token_hidden_size=HIDDEN,
                         num_ep_ranks=self.size, num_global_experts=EXPERTS,
                         num_local_experts=EXPERTS // self.size), **other)


class Delegate:
    """vLLM's experts that leave weighting and adding to finalize."""


Delegate.__name__ = "TopKWeightAndReduceDelegate"


class Contiguous:
    """Weights and adds, as vLLM's class of outputs [N, K, H] does."""

    def __init__(self, kind):
        self.kind = kind

    def apply(self, output, fused_expert_output, topk_weights, topk_ids,
              apply_router_weight_on_input):
        assert output is None
        outputs = numpy.nan_to_num(widened(self.kind.got(fused_expert_output)))
        weights = self.kind.got(topk_weights)
        if apply_router_weight_on_input:
            weights = numpy.ones_like(weights)
        shape = [*weights.shape, HIDDEN]
        return self.kind.given(bf16((weights[..., None] * outputs.reshape(shape)).sum(1)), True)


class Kernel:
    """The steps of vLLM's FusedMoEKernelModularImpl, over one rank's experts."""

    def __init__(self, rank, batched=False, tables=None, impl=None, quant=None, most=MOST):
        self.rank, self.kind, self.impl, self.quant = rank, rank.kind, impl, quant
        handle = rank.manager.get_handle(rank.numbers(max_num_tokens_per_dp_rank=most))
        self.steps = rank.vllm.PrepareAndFinalize(handle, batched, tables)
        self.batched, self.tables, self.most = batched, tables, most

    def global_ids(self):
        """Returns the global numbers of this rank's experts."""
        places = numpy.array(self.rank.places)
        return places if self.tables is None else self.kind.got(self.tables[1])[places]

    def prepare(self, x, weights, ids, on_input=False):
        return self.steps.prepare_async(x, weights, ids, EXPERTS, None, on_input, self.quant,
                                        defer_input_quant=self.quant is None)

    def experts(self, rows, scales, meta, ids):
        """Returns the outputs of rows; not a number where none is to be read."""
        if scales is not None:
            coded, scales = self.kind.got(rows), self.kind.got(scales)
            if coded.dtype == numpy.uint8 and str(self.quant.quant_dtype).endswith("fp8_e4m3fn") or \
                    str(self.quant.quant_dtype).endswith("float8_e4m3fn"):
                values = codes()[coded] * numpy.repeat(scales, 128, -1)
            else:
                values = coded.view(numpy.int8) * scales
        else:
            values = widened(self.kind.got(rows))
        own, counts = self.global_ids(), self.kind.got(meta.expert_num_tokens)
        assert counts.dtype == numpy.int32 and len(counts) == len(own)
        if self.batched:
            assert ids is None and values.shape == (len(own), self.rank.size * self.most, HIDDEN)
            outputs = numpy.full(values.shape, numpy.nan, numpy.float32)
            for e, number in enumerate(counts):
                outputs[e, :number] = values[e, :number] * factor(own[e])
        else:
            ids = self.kind.got(ids)
            assert len(ids) == len(values) and ((ids >= 0) & (ids < EXPERTS)).all()
            is_local = numpy.isin(ids, own)
            assert [(ids == e).sum() for e in own] == counts.tolist()
            outputs = numpy.where(is_local, factor(ids), numpy.nan)[..., None] * values[:, None]
        return self.kind.given(bf16(outputs.round(2)), True)

    def finalize(self, receiver, weights, ids, count, on_input=False):
        """Returns the halves' second part: it returns the output."""
        rows, scales, meta, row_ids, row_weights = receiver()
        outputs = self.experts(rows, scales, meta, row_ids)
        output = self.kind.given(bf16(numpy.full([count, HIDDEN], 7)), True)
        finish = self.steps.finalize_async(
            output, outputs, weights if row_weights is None else row_weights,
            ids if row_ids is None else row_ids, on_input, self.impl)

        def result():
            finish[0]()
            finish[1]()
            return widened(self.kind.got(output))
        return result

    def layer(self, x, weights, ids, on_input=False):
        given = self.rank.given(x, weights, ids)
        hook, receiver = self.prepare(*given, on_input)
        hook()
        return self.finalize(receiver, *given[1:], len(x), on_input)()


def kernels(rank):
    """Yields the ways to have rows and outputs, by name."""
    yield "standard, finalize adds", Kernel(rank, impl=Delegate())
    yield "standard, experts add", Kernel(rank, impl=Contiguous(rank.kind))
    yield "batched", Kernel(rank, batched=True, impl=Delegate())


def layers():
    """Batches of all kinds come out exact, in whole calls and with two under way."""
    for same_bits in (False, True):
        rank = Rank(same_bits)
        for name, kernel in kernels(rank):
            for x, weights, ids in batches(rank):
                assert (kernel.layer(x, weights, ids) == expected(x, weights, ids)).all(), name
            in_flight = []
            for count in (MOST, 2):
                batch = rank.tokens(count)
                given = rank.given(*batch)
                in_flight.append((batch, given, kernel.prepare(*given)))
            results = [(kernel.finalize(receiver, *given[1:], len(batch[0])), batch)
                       for batch, given, (_, receiver) in in_flight]
            for result, batch in results:
                assert (result() == expected(*batch)).all(), name
            kernel = Kernel(rank, kernel.batched, impl=kernel.impl, most=MOST + 1)
            x, weights, ids = rank.tokens(3, top_k=1)
            assert (kernel.layer(x, weights, ids, on_input=True) == expected(x, weights, ids)).all()


def threads():
    """Two threads take turns, as vLLM's micro-batches do; each has batches of its own."""
    rank = Rank()
    for _, kernel in kernels(rank):
        turns, problems = [threading.Event(), threading.Event()], []

        def work(me, batch):
            given = rank.given(*batch)

            def yield_turn():
                turns[1 - me].set()
                assert turns[me].wait(20)
                turns[me].clear()
            try:
                assert turns[me].wait(20)
                turns[me].clear()
                _, receiver = kernel.prepare(*given)
                yield_turn()
                result = kernel.finalize(receiver, *given[1:], len(batch[0]))
                yield_turn()
                assert (result() == expected(*batch)).all()
            except BaseException as problem:
                problems.append(problem)
            turns[1 - me].set()

        both = [threading.Thread(target=work, args=(me, rank.tokens(1 + me + rank.rank % 3)))
                for me in (0, 1)]
        for thread in both:
            thread.start()
        turns[0].set()
        for thread in both:
            thread.join()
        assert not problems, problems


def quantized():
    """Rows arrive as int8 per token, or float8_e4m3fn in blocks of 128, with scales."""
    rank = Rank()
    names = ("int8", "float8_e4m3fn")
    if rank.kind.torch is not None:
        names = [getattr(rank.kind.torch, name, name) for name in names]
    for quant in (Quant(names[0], None, True), Quant(names[1], [128, 128], False)):
        for batched in (False, True):
            kernel = Kernel(rank, batched, impl=Delegate(), quant=quant)
            batch = rank.tokens(1 + rank.rank, is_constant=True)
            assert (kernel.layer(*batch) == expected(*batch)).all(), quant
    kernel = Kernel(rank, quant=Quant("int8", None, False))
    raises(NotImplementedError, "int8 per token", kernel.layer, *rank.tokens(1))


def placements():
    """The tables of a placement change between batches, and outputs do not."""
    rank = Rank()
    shared = numpy.random.default_rng(5)
    to_place, to_global = (rank.kind.given(numpy.arange(EXPERTS)) for _ in range(2))
    for _, kernel in kernels(rank):
        kernel = Kernel(rank, kernel.batched, (to_place, to_global, None), kernel.impl)
        for _ in range(3):
            drawn = shared.permutation(EXPERTS)
            rank.kind.got(to_place)[:], rank.kind.got(to_global)[drawn] = drawn, numpy.arange(EXPERTS)
            batch = rank.tokens(1 + rank.rank)
            assert (kernel.layer(*batch) == expected(*batch)).all()


def refusals():
    """What is wrong on rank 0 is refused on all, and the next batch comes through."""
    rank = Rank()
    other = rank.rank != 0

    def refused(fragment, call, *arguments):
        if other:
            raises(peerbus.Refused, "", call, *arguments)
        else:
            raises((peerbus.Error, TypeError, ValueError, RuntimeError), fragment, call, *arguments)

    for _, kernel in kernels(rank):
        x, weights, ids = rank.tokens(2)
        raises(peerbus.InvalidArgument, "before prepare", kernel.steps.finalize, None, None, None, None,
               False, None)
        narrow = numpy.repeat(x, 1, 0)[:, :64] if not other else x
        refused("expected [count, 128]", kernel.layer, narrow, weights, ids)
        wrong = ids + (0 if other else EXPERTS)
        refused("expert", kernel.layer, x, weights, wrong)
        refused("expected [2, 3]", kernel.layer, x, weights, ids[:, :2] if not other else ids)
        refused("8 tokens", kernel.layer, *rank.tokens(2 if other else MOST + 2))
        assert (kernel.layer(x, weights, ids) == expected(x, weights, ids)).all()
        # A batch that is not received is not finalized, and bad outputs may be sent again.
        given = rank.given(x, weights, ids)
        _, receiver = kernel.prepare(*given)
        output = rank.kind.given(bf16(numpy.zeros([2, HIDDEN])), True)
        raises(peerbus.InvalidArgument, "expected the receiver", kernel.steps.finalize, output, None,
               None, None, False, None)
        prepared = receiver()
        good = kernel.experts(*prepared[:4])
        bad = good if other else rank.kind.given(numpy.zeros([1, 3], numpy.float32))
        row_weights, row_ids = (given[1], given[2]) if prepared[3] is None else prepared[4:2:-1]
        refused("", kernel.steps.finalize, output, bad, row_weights, row_ids, False, kernel.impl)
        kernel.steps.finalize(output, good, row_weights, row_ids, False, kernel.impl)
        assert (widened(rank.kind.got(output)) == expected(x, weights, ids)).all()
        # A third batch while two are under way.
        pending = [kernel.prepare(*given) for _ in range(2)]
        raises(peerbus.Error, "in_flight", kernel.prepare, *given)
        for _, receiver in pending:
            assert (kernel.finalize(receiver, *given[1:], 2)() == expected(x, weights, ids)).all()


def given_up():
    """A batch whose experts raise is given up; the next ones are finalized with their own outputs."""
    rank = Rank()
    for _, kernel in kernels(rank):
        for _ in range(3):
            stale = rank.given(*rank.tokens(2))
            kernel.prepare(*stale)[1]()  # No finalize follows.
            batch = rank.tokens(2)
            assert (kernel.layer(*batch) == expected(*batch)).all()
    x, weights, ids = rank.given(*rank.tokens(2), alike=True)
    rank.manager.dispatch(x, weights, ids)
    rows = rank.manager.dispatch(x[:1], weights[:1], ids[:1])[0]
    assert len(rank.manager.combine(rows)) == 1
    raises(peerbus.InvalidArgument, "expected those of a dispatch before it: none", rank.manager.combine,
           rows)


def hooks():
    """Another thread runs the hooks, as vLLM's micro-batches do. What they raise, the receiver raises."""
    rank = Rank()
    for _, kernel in kernels(rank):
        batch = rank.tokens(2)
        given = rank.given(*batch)

        def elsewhere(hook):
            thread = threading.Thread(target=hook)
            thread.start()
            thread.join()
        hook, receiver = kernel.prepare(*given)
        elsewhere(hook)
        rows, scales, meta, ids, weights = receiver()
        assert receiver()[0] is rows
        output = rank.kind.given(bf16(numpy.zeros([2, HIDDEN])), True)
        hook, receiver = kernel.steps.finalize_async(
            output, kernel.experts(rows, scales, meta, ids), given[1] if weights is None else weights,
            given[2] if ids is None else ids, False, kernel.impl)
        elsewhere(hook)
        receiver()
        assert (widened(rank.kind.got(output)) == expected(*batch)).all()
        wrong = given if rank.rank else (given[0], given[1], given[2] + EXPERTS)
        if rank.rank == 0:
            raises(peerbus.InvalidArgument, "expert", kernel.prepare, *wrong)
        else:
            hook, receiver = kernel.prepare(*wrong)
            raises(peerbus.Refused, "rank 0", hook)
            raises(peerbus.Refused, "rank 0", receiver)
        assert (kernel.layer(*batch) == expected(*batch)).all()


def killed():
    """Rank 1 dies with a batch under way: all others raise, and say so by query_fault."""
    rank = Rank()
    kernel = Kernel(rank, impl=Delegate())
    batch = rank.tokens(2)
    kernel.layer(*batch)
    assert not rank.manager.query_fault()
    rank.comm.barrier()
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        for _ in range(3):
            kernel.layer(*batch)
    except (peerbus.PeerDead, peerbus.Unreachable) as problem:
        assert "rank 1" in str(problem), problem
    except peerbus.Poisoned:
        pass
    else:
        raise AssertionError("raised nothing")
    assert time.monotonic() - begin < 10
    assert bool(rank.manager.query_fault())


def lost(rank, ranks, x, weights, ids):
    """Returns the exact output of each token without the experts of ranks."""
    owners = numpy.repeat(range(rank.size), dealt(EXPERTS, rank.size))
    return expected(x, weights, numpy.where(numpy.isin(owners[ids], list(ranks)), -1, ids))


def goes_on():
    """A rank masks another one. Then rank 1 dies with batches of all kinds under way, and the others go on
    without its experts."""
    rank = Rank()
    manager, all_kernels = rank.manager, list(kernels(rank))
    mine = {3} if rank.rank == 0 else set()

    def check(gone):
        for name, kernel in all_kernels:
            batch = rank.tokens(3)
            assert (kernel.layer(*batch) == lost(rank, gone, *batch)).all(), name

    check(set())
    for other in mine:
        manager.update_mask(other)
    check(mine)
    raises(ValueError, "mask itself", manager.update_mask, rank.rank)
    raises(ValueError, "rank is 4, expected 0 to 3", manager.update_mask, 4)
    pending = []
    for _, kernel in all_kernels[1:]:  # Of two layouts.
        batch = rank.tokens(2)
        given = rank.given(*batch)
        pending.append((kernel, batch, given, kernel.prepare(*given)[1]))
    rank.comm.barrier()
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(peerbus.PeerDead, "rank 1", rank.comm.barrier)
    assert bool(manager.query_fault())  # Before the manager has met it.
    manager.continue_without_the_dead()
    assert not manager.query_fault() and rank.comm.view == (1, (0, 2, 3))
    for _, _, _, receiver in pending:
        raises(peerbus.ViewChanged, "dispatch its tokens again", receiver)
    for kernel, batch, given, _ in pending:  # Again with the same tensors.
        receiver = kernel.prepare(*given)[1]
        out = kernel.finalize(receiver, *given[1:], 2)()
        assert (out == lost(rank, mine | {1}, *batch)).all()
    check(mine | {1})
    manager.update_mask(3, False) if mine else manager.update_mask(1)
    raises(ValueError, "rank 1 would be active", manager.update_mask, 1, masked=False)
    check({1})
    x, weights, ids = rank.given(*rank.tokens(2), alike=True)
    raises(peerbus.ViewChanged, "survivors", manager.dispatch, x, weights, ids)
    rest = rank.vllm.All2AllManager(rank.comm.survivors())
    assert len(rest.dispatch(x, weights, ids)[0]) == 2 * 3
    check({1})
    rank.comm.barrier()


def manager():
    """All tokens go to all ranks, and sums come back; vLLM's default, AgRsAll2AllManager, does that."""
    rank = Rank()
    kind, own = rank.kind, list(rank.places)
    for count in (2 + rank.rank, 0 if rank.rank == 1 else 3):
        x, weights, ids = rank.tokens(count)
        given = rank.given(x, weights, ids, alike=True)
        extra = [kind.given(numpy.arange(count, dtype=numpy.int32)[:, None])]
        got = rank.manager.dispatch(*given, extra_tensors=extra)
        assert len(got) == 4 and len(got[3]) == 1 and len(got[3][0]) == len(got[0])
        all_x, all_weights, all_ids = (kind.got(tensor) for tensor in got[:3])
        local = numpy.isin(all_ids, own)
        outputs = widened(all_x) * (all_weights * local * factor(all_ids)).sum(1, keepdims=True)
        sums = rank.manager.combine(kind.given(bf16(outputs), True))
        assert (widened(kind.got(sums)) == expected(x, weights, ids)).all()
        logits = kind.given(numpy.full([count, EXPERTS], rank.rank, numpy.float32))
        all_x, all_logits = rank.manager.dispatch_router_logits(given[0], logits)
        assert len(all_logits) == len(all_x)
        rank.manager.combine(all_x, is_sequence_parallel=True)
    raises(peerbus.InvalidArgument, "dispatch before it: none", rank.manager.combine,
           all_x)
    bad = given[1][:0] if rank.rank == 0 and count else given[1]
    raises((peerbus.InvalidArgument, peerbus.Refused), "rows", rank.manager.dispatch, given[0], bad,
           given[2])
    columns = kind.given(numpy.full([2, rank.rank + 1], rank.rank, numpy.int64))
    sizes = [r + 1 for r in range(rank.size)]
    both = rank.manager.all_gatherv([columns, columns], dim=1, sizes=sizes)
    for joined in both:
        assert (kind.got(joined) == numpy.repeat(numpy.arange(rank.size), sizes)).all()
        assert joined.shape == (2, sum(sizes))
    part = rank.manager.reduce_scatterv(joined, dim=-1, sizes=sizes)
    assert part.shape == columns.shape and (kind.got(part) == rank.size * rank.rank).all()
    equal = rank.manager.reduce_scatterv(kind.given(numpy.ones([2 * rank.size, 3], numpy.float32)), 0)
    assert equal.shape == (2, 3) and (kind.got(equal) == rank.size).all()
    assert rank.manager.get_handle(rank.numbers()) is rank.handle
    raises(TypeError, "expected max_num_tokens_per_dp_rank", rank.manager.get_handle, {})
    raises(peerbus.InvalidArgument, "num_ep_ranks", rank.manager.get_handle,
           rank.numbers(num_ep_ranks=rank.size + 1))
    rank.manager.destroy()
    rank.comm.barrier()  # It was given, and stays.


# What vLLM calls: names of methods and of their arguments, vllm@003d383e and pull request #50556.
CALLED = {
    "All2AllManager": {
        "__init__": "cpu_group tcp_store_group", "get_handle": "kwargs",
        "dispatch_router_logits": "hidden_states router_logits is_sequence_parallel extra_tensors",
        "dispatch": "hidden_states topk_weights topk_ids is_sequence_parallel extra_tensors",
        "combine": "hidden_states is_sequence_parallel", "set_num_sms": "num_sms", "max_sms_used": "",
        "query_fault": "", "update_mask": "rank masked", "clean_buffers": "",
        "commit_staged_state": "", "destroy": "", "all_gatherv": "input_ dim sizes",
        "reduce_scatterv": "input_ dim sizes"},
    "PrepareAndFinalize": {
        "topk_indices_dtype": "", "max_num_tokens_per_rank": "", "num_dispatchers": "",
        "output_is_reduced": "", "supports_async": "", "supports_deferred_moe_finalize": "",
        "post_init_setup": "fused_experts", "on_commit": "",
        "prepare_async": "a1 topk_weights topk_ids num_experts expert_map "
                         "apply_router_weight_on_input quant_config defer_input_quant",
        "finalize_async": "output fused_expert_output topk_weights topk_ids "
                          "apply_router_weight_on_input weight_and_reduce_impl"}}


def make_vllm():
    """Puts abstract classes with vLLM's signatures where vLLM has them. Returns its registry."""
    def abstract(name, methods, **members):
        def absent(*_, **__):
            raise NotImplementedError
        return abc.ABCMeta(name, (), dict({method: abc.abstractmethod(absent) for method in methods},
                                          **members))

    class All2AllManagerBase:
        def __init__(self, cpu_group, tcp_store_group=None):
            self.cpu_group, self.tcp_store_group = cpu_group, tcp_store_group
            rank = cpu_group.rank
            # Data-parallel ranks of two tensor-parallel ranks each.
            part = cpu_group.subgroup([r for r in range(cpu_group.size) if r % 2 == rank % 2])
            self.dp_group = types.SimpleNamespace(world_size=part.size, cpu_group=part)

    registry = {}
    Format = collections.namedtuple("Format", "Standard BatchedExperts")("standard", "batched")
    Meta = collections.namedtuple("Meta", "expert_num_tokens expert_num_tokens_cpu")
    kernel = "vllm.model_executor.layers.fused_moe"
    for name in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators",
                 "vllm.model_executor", "vllm.model_executor.layers", kernel):
        put_module(name)
    put_module("vllm.distributed.device_communicators.base_device_communicator",
           All2AllManagerBase=All2AllManagerBase)
    put_module(kernel + ".modular_kernel", ExpertTokensMetadata=Meta, FusedMoEActivationFormat=Format,
           FusedMoEPrepareAndFinalizeModular=abstract(
               "FusedMoEPrepareAndFinalizeModular",
               ("activation_format", "topk_indices_dtype", "max_num_tokens_per_rank",
                "num_dispatchers", "output_is_reduced", "prepare", "finalize")))
    put_module(kernel + ".prepare_finalize",
           MoEPrepareFinalizeFactory=abstract("MoEPrepareFinalizeFactory", ("create",)))
    put_module(kernel + ".all2all_utils", register_moe_prepare_finalize_factory=lambda factory:
           registry.setdefault(factory.backend_name, factory))
    return registry


def in_vllm():
    """Where vLLM is there, the classes are its own, and both names of back ends are registered."""
    registry = make_vllm()
    rank = Rank()
    assert rank.vllm.register() and sorted(registry) == ["peerbus", "peerbus_batched"]
    moe = types.SimpleNamespace(max_num_tokens=MOST, hidden_dim=HIDDEN, num_experts=EXPERTS)
    foreign = types.SimpleNamespace(cpu_group=rank.comm)  # The manager of another platform.
    for name, manager in (("peerbus", rank.manager), ("peerbus_batched", foreign)):
        assert registry[name].supports_sequence_parallel
        made = registry[name].create(
            moe=moe, quant_config=None, routing_tables=None, allow_new_interface=True,
            use_monolithic=False, eep_stage=False, all2all_manager=manager)
        assert made.activation_format == ("batched" if name == "peerbus_batched" else "standard")
        kernel = Kernel(rank, name == "peerbus_batched", impl=Delegate())
        kernel.steps = made
        batch = rank.tokens(1 + rank.rank)
        assert (kernel.layer(*batch) == expected(*batch)).all()
        raises(NotImplementedError, "monolithic", registry[name].create, moe=moe, quant_config=None,
               routing_tables=None, all2all_manager=manager, use_monolithic=True)
    # Without sequence parallelism the ranks of a data-parallel group gather, here every second one.
    x, weights, ids = rank.given(*rank.tokens(2), alike=True)
    assert len(rank.manager.dispatch(x, weights, ids)[0]) == 2 * rank.size // 2
    assert len(rank.manager.combine(rank.kind.given(bf16(numpy.ones([rank.size, HIDDEN])), True))) == 2
    assert len(rank.manager.dispatch(x, weights, ids, is_sequence_parallel=True)[0]) == 2 * rank.size


class Tests(unittest.TestCase):
    def test_on_5_ranks(self):
        for function in (layers, quantized, placements, manager):
            with self.subTest(function=function.__name__):
                run(5, function)

    def test_on_2_and_3_ranks(self):
        for ranks, functions in ((2, (layers, threads)), (3, (layers, refusals, given_up, hooks))):
            for function in functions:
                with self.subTest(function=function.__name__, ranks=ranks):
                    run(ranks, function)

    def test_on_two_hosts(self):
        run(3, manager, hosts=2)
        # Hosts of different sizes, and of equal ones.
        for ranks, functions in ((3, (layers, refusals)), (4, (layers, given_up))):
            for function in functions:
                with self.subTest(function=function.__name__, ranks=ranks):
                    run(ranks, function, hosts=2, RELAY="always")

    def test_a_dead_rank(self):
        for hosts in (1, 2) if has_hosts else (1,):
            with self.subTest(hosts=hosts):
                with self.assertRaisesRegex(AssertionError, "rank 1 ended with -9") as caught:
                    run(3, killed, hosts=hosts)
                self.assertNotIn("rank 0 ended", str(caught.exception))
                self.assertNotIn("rank 2 ended", str(caught.exception))

    def test_goes_on_without_a_dead_rank(self):
        run(4, goes_on, killed=(1,))

    def test_vllm_is_there(self):
        run(4, in_vllm, fresh=True)

    @needs_torch
    def test_torch(self):
        for function in (layers, quantized, placements, refusals, hooks, manager):
            with self.subTest(function=function.__name__):
                run(3, function, TENSORS="torch")
        run(4, goes_on, killed=(1,), TENSORS="torch")

    def test_interface(self):
        from peerbus.engines import vllm
        self.assertFalse(vllm.register())
        for name, methods in CALLED.items():
            check_arguments(self, getattr(vllm, name), methods)


if __name__ == "__main__":
    main(globals())
