#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What an engine's layer of experts pays for communication, by vLLM's interfaces.

    gloo      vLLM's default: all_gather_into_tensor of tokens, weights and ids to every rank, and
              reduce_scatter_tensor of the outputs, by torch.distributed
    manager   the same shape by peerbus.engines.vllm.All2AllManager: dispatch and combine
    standard  PrepareAndFinalize: a row once to each rank of its experts, bf16 there and back
    batched   the same with rows by expert, [L, R * B, H]
    int8      standard, rows as int8 per token on their way to the experts
    same bits standard with same_bits: a row once to each expert, weighted and added at home

Each call is a dispatch and a combine of outputs that lie in tensors of their own; the experts compute
nothing. All run in turns. Prints the median wall time of the slowest rank, the least and the greatest of
the rounds, and how many times faster than gloo. With --link it also prints the bytes that crossed that
network interface in a call, both ways. All results are compared with the exact sums first. Needs torch 2
(in older ones gloo has no bfloat16). One host:

    PEERBUS_LIBRARY=.../libpeerbus.so PYTHONPATH=examples/embed/python python3 benchmarks/engines/all2all.py

Two hosts: benchmarks/engines/two_hosts.sh.
"""

import argparse
import os
import statistics
import sys
import time
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import torch_ranks

HIDDEN, TOP_K, EXPERTS = 7168, 8, 256


class Added:
    """Experts that have weighted and added already."""

    @staticmethod
    def apply(fused_expert_output, **_):
        return fused_expert_output


def bytes_of(link):
    """Returns the bytes that an interface has sent and received."""
    with open("/proc/self/net/dev", encoding="utf-8") as file:
        for line in file:
            name, _, counts = line.partition(":")
            if name.strip() == link:
                words = counts.split()
                return int(words[0]) + int(words[8])
    raise SystemExit(f"there is no interface {link}")


class Sides:
    """The ways to dispatch and combine, each a function of no arguments that returns the sums [T, H] of
    experts that return their rows."""

    def __init__(self, torch, dist, vllm, tokens, relays):
        self.torch, self.dist = torch, dist
        rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(rank)
        self.x = torch.randn(tokens, HIDDEN).bfloat16()
        self.ids = torch.rand(tokens, EXPERTS).topk(TOP_K, dim=1).indices
        self.weights = torch.softmax(torch.rand(tokens, TOP_K), 1)
        self.local = range(rank * EXPERTS // self.size, (rank + 1) * EXPERTS // self.size)
        self.numbers = dict(max_num_tokens_per_dp_rank=tokens, token_hidden_size=HIDDEN,
                            num_ep_ranks=self.size, num_global_experts=EXPERTS,
                            num_local_experts=EXPERTS // self.size)
        self.all = {"gloo": self.by_gloo}
        self.outputs = {}
        int8 = types.SimpleNamespace(quant_dtype="int8", block_shape=None, per_act_token_quant=True)
        for relay in relays:
            self.manager = vllm.All2AllManager(dist.group.WORLD, relay=relay)
            self.all.setdefault("manager", self.by_manager)
            suffix = "" if relay == "automatic" else f", relay {relay}"
            standard, batched = (self.steps(vllm, self.manager, batched) for batched in (False, True))
            self.add("standard" + suffix, standard)
            self.add("batched" + suffix, batched, is_at_home=True)
            self.add("int8" + suffix, standard, quant=int8)
        invariant = vllm.All2AllManager(dist.group.WORLD, same_bits=True)
        self.add("same bits", self.steps(vllm, invariant, False), is_at_home=True)

    def steps(self, vllm, manager, batched):
        return vllm.PrepareAndFinalize(manager.get_handle(self.numbers), batched)

    def mine(self, ids, weights):
        """Returns the weights of this rank's experts, added for each row."""
        is_local = (ids >= self.local.start) & (ids < self.local.stop)
        return self.torch.where(is_local, weights, self.torch.zeros(())).sum(1, keepdim=True)

    def kept(self, name, make):
        """Returns outputs, which are made in the first call."""
        if name not in self.outputs:
            self.outputs[name] = make()
        return self.outputs[name]

    def by_gloo(self):
        whole = [self.kept(f"gloo {i}", lambda: tensor.new_empty(self.size * len(tensor),
                                                                 tensor.shape[1]))
                 for i, tensor in enumerate((self.x, self.weights, self.ids))]
        for given, gathered in zip((self.x, self.weights, self.ids), whole):
            self.dist.all_gather_into_tensor(gathered, given)
        rows, weights, ids = whole
        outputs = self.kept("gloo", lambda: (rows * self.mine(ids, weights)).bfloat16())
        sums = self.kept("gloo sums", lambda: self.torch.empty_like(self.x))
        self.dist.reduce_scatter_tensor(sums, outputs)
        return sums

    def by_manager(self):
        rows, weights, ids = self.manager.dispatch(self.x, self.weights, self.ids)
        outputs = self.kept("manager", lambda: (rows * self.mine(ids, weights)).bfloat16())
        return self.manager.combine(outputs)

    def add(self, name, steps, quant=None, is_at_home=False):
        """Adds prepare and finalize. `is_at_home`: the weights are applied there."""
        def call():
            rows, scales, _, ids, weights = steps.prepare(
                self.x, self.weights, self.ids, EXPERTS, None, False, quant)
            ids, weights = (self.ids, self.weights) if ids is None else (ids, weights)

            def outputs():
                values = rows.float() if scales is None else rows * scales
                return (values if is_at_home else values * self.mine(ids, weights)).bfloat16()
            sums = self.kept(name + " sums", lambda: self.torch.empty_like(self.x))
            steps.finalize(sums, self.kept(name, outputs), weights, ids, False, Added)
            return sums
        self.all[name] = call

    def check(self):
        """Compares what each returns with the exact sums. int8 rounds rows, and gloo adds in bf16."""
        for name, call in self.all.items():
            difference = (call().float() - self.x.float()).abs().max().item()
            most = self.x.float().abs().max().item()
            if difference > most * (0.02 if name.startswith(("int8", "gloo")) else 0.008):
                raise SystemExit(f"{name}: a sum is wrong by {difference}")


def run_rank(chosen):
    """Measures as one rank. Rank 0 prints."""
    from peerbus.engines import vllm
    torch, dist = torch_ranks.join()
    rank, size = dist.get_rank(), dist.get_world_size()
    sides = Sides(torch, dist, vllm, chosen.tokens, chosen.relay)
    sides.check()
    comm = sides.manager.comm
    figures, crossed = {name: [] for name in sides.all}, {}
    for number in range(-1, chosen.rounds):
        for name, call in sides.all.items():
            comm.barrier()
            before = bytes_of(chosen.link) if chosen.link else 0
            begin = time.perf_counter()
            for _ in range(chosen.calls):
                call()
            own = torch.tensor([time.perf_counter() - begin])
            comm.barrier()
            crossed[name] = ((bytes_of(chosen.link) if chosen.link else 0) - before) / chosen.calls
            dist.all_reduce(own, dist.ReduceOp.MAX)
            if number >= 0:  # The first round makes the memory.
                figures[name].append(own.item() / chosen.calls * 1e3)
    sides.check()
    if rank != 0:
        return
    print(f"{size} ranks, {comm.transport}, {chosen.tokens} tokens each, hidden {HIDDEN}, top-{TOP_K} of "
          f"{EXPERTS}, torch {torch.__version__}; all tokens to all ranks and back: "
          f"{2 * (size - 1) * chosen.tokens * HIDDEN * 2 / 1e6:.1f} MB sent by each rank")
    for name, samples in figures.items():
        middle = statistics.median(samples)
        ratios = [a / b for a, b in zip(figures["gloo"], samples)]
        link = f", {crossed[name] / 1e6:6.2f} MB by {chosen.link}" if chosen.link else ""
        print(f"{name:22} {middle:8.2f} ms ({min(samples):.2f} to {max(samples):.2f}), "
              f"{statistics.median(ratios):5.2f} x gloo ({min(ratios):.2f} to {max(ratios):.2f}){link}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    torch_ranks.add_options(parser, calls=10)
    parser.add_argument("--relay", nargs="+", default=["automatic"], help="of prepare and finalize")
    parser.add_argument("--link", help="the interface whose bytes are counted, on rank 0's host")
    torch_ranks.run(parser.parse_args(), run_rank)


if __name__ == "__main__":
    main()
