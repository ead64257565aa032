# SPDX-License-Identifier: MIT
"""A small mixture-of-experts language model on CPUs, whose experts are split over ranks by code
written for DeepEP: python3 generate_text.py --ranks 4

It learns the repository's LICENSE, byte by byte, in one process; continues some prompts in that
process; and continues them again on all ranks, each with a part of the experts and of the prompts
(token_dispatcher.py). It fails unless both give the same bytes. A launcher may start the ranks.

Why they are the same: rows and outputs of experts are bf16 on either way, as DeepEP carries them.
All else is computed as float64: BLAS may add in another order for another number of rows, and in
float32 such a difference would now and then become another bf16. Gate weights have the values of
bf16, so that their products with outputs are exact in float32, fused with the addition or not. A
token has two experts, and a sum of two depends neither on their order nor on the ranks that add.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    sys.exit("generate_text.py: torch is not installed (Debian: apt-get install python3-torch)")
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, silu

from token_dispatcher import TokenDispatcher

TEXT = pathlib.Path(__file__).resolve().parents[3] / "LICENSE"
LAYERS, HIDDEN, HEADS = 2, 64, 4  # DeepEP's low-latency kernels for GPUs need 2048 or more.
EXPERTS, TOP_K, EXPERT_HIDDEN = 8, 2, 32
BATCH, WINDOW, LEARNING_RATE = 2, 96, 6e-3  # of training
PROMPTS, PROMPT_LENGTH = 6, 24  # 4 ranks have 2, 2, 1 and 1 of them.
TOLERANCE = 1e-9  # Of logits, for sums of float64 in another order.


class Experts(nn.Module):
    """Feed-forward networks."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, EXPERT_HIDDEN) * HIDDEN**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, EXPERT_HIDDEN, HIDDEN) * EXPERT_HIDDEN**-0.5)

    def keep(self, begin, end):
        """Forgets all experts but those of a rank."""
        self.up = nn.Parameter(self.up[begin:end].clone())
        self.down = nn.Parameter(self.down[begin:end].clone())

    def forward(self, rows, which=slice(None)):
        """Returns the outputs of one expert, [T, H], or of all, [E, T, H]."""
        return silu(rows @ self.up[which]) @ self.down[which]

    def one(self, i, rows):
        """Returns the outputs of an expert for rows of bf16, as bf16."""
        return self(rows.to(self.up.dtype), i).bfloat16()


class Layer(nn.Module):
    """Causal attention and a mixture of experts."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.router, self.experts = nn.Linear(HIDDEN, EXPERTS, bias=False), Experts()

    def forward(self, x, cache, moe):
        x = x + self.attention(self.norms[0](x), cache)
        return x + moe(self, self.norms[1](x).flatten(0, 1)).to(x.dtype).view_as(x)

    def attention(self, x, cache):
        """Attends to the keys and values of `cache` and of x [S, T, H], which join the cache."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, -1))
        cache[:] = [torch.cat(pair, 2) for pair in zip(cache, (k, v))] if cache else [k, v]
        keys = torch.arange(cache[0].shape[2])
        distance = keys[-x.shape[1]:, None] - keys
        slopes = 4.0 ** -torch.arange(1, HEADS + 1)[:, None, None]  # Positions: attention fades.
        scores = q @ cache[0].transpose(2, 3) * q.shape[-1]**-0.5 - slopes * distance
        scores = scores.masked_fill(distance < 0, -torch.inf)
        return self.out((scores.softmax(-1) @ cache[1]).transpose(1, 2).flatten(2))

    def route(self, rows):
        """Returns the experts of each row and their weights, [T, K]."""
        logits, ids = self.router(rows).topk(TOP_K)
        return ids, logits.softmax(-1)


class Model(nn.Module):
    """Gives the logits of the next byte."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(256, HIDDEN), nn.LayerNorm(HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, 256)

    def forward(self, tokens, caches, moe):
        x = self.embedding(tokens)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cache, moe)
        return self.head(self.norm(x))


def train(model, text, steps):
    """Learns the text. Every expert computes every row, which needs no dispatch."""
    def dense(layer, rows):
        ids, weights = layer.route(rows)
        gates = (one_hot(ids, EXPERTS) * weights[..., None]).sum(1)
        return (gates.T[..., None] * layer.experts(rows)).sum(0)

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, steps)
    for _ in range(steps):
        begins = torch.randint(len(text) - WINDOW, [BATCH, 1])
        window = text[begins + torch.arange(WINDOW + 1)]
        logits = model(window[:, :-1], [[] for _ in model.layers], dense)
        loss = cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def through(exchange):
    """Returns a MoE layer whose rows take the way of `exchange`."""
    def moe(layer, rows):
        x = rows.bfloat16()
        ids, weights = layer.route(x.to(rows.dtype))
        return exchange(x, ids, weights.bfloat16().float(), layer.experts.one)
    return moe


def in_this_process(is_prefill):
    """Returns an exchange without ranks, which rounds as the mode of DeepEP does."""
    def exchange(x, ids, weights, expert):
        outputs = torch.empty(*ids.shape, HIDDEN, dtype=torch.bfloat16)
        for i in range(EXPERTS):
            row, slot = (ids == i).nonzero(as_tuple=True)
            outputs[row, slot] = expert(i, x[row])
        terms = weights[..., None] * outputs
        return (terms.bfloat16().float() if is_prefill else terms).sum(1).bfloat16()
    return exchange


@torch.no_grad()
def generate(model, prompts, count, prefill, decode):
    """Continues each prompt by the likeliest bytes. Returns bytes and logits, [S, count, ...]."""
    caches = [[] for _ in model.layers]
    logits = [model(prompts, caches, through(prefill))[:, -1]]
    while len(logits) < count:
        logits.append(model(logits[-1].argmax(-1, keepdim=True), caches, through(decode))[:, -1])
    logits = torch.stack(logits, 1)
    return logits.argmax(-1), logits


def run_rank(rank, options, init_method):
    """Trains and generates on rank 0, then generates on all ranks. Rank 0 fails if they differ."""
    dist.init_process_group("gloo", init_method, rank=rank, world_size=options.ranks)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # The layers are too small for more, and the ranks share the cores.
    text = torch.tensor(list(TEXT.read_bytes()))
    prompts = torch.stack([text[begin:begin + PROMPT_LENGTH] for begin in torch.linspace(
        0, len(text) - 2 * PROMPT_LENGTH, PROMPTS).long().tolist()])
    model, seconds = Model(), []
    if rank == 0:
        begin = time.perf_counter()
        loss = train(model, text, options.steps)
        seconds.append(time.perf_counter() - begin)
    model.double()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)

    if rank == 0:
        begin = time.perf_counter()
        expected, expected_logits = generate(model, prompts, options.tokens, in_this_process(True),
                                             in_this_process(False))
        seconds.append(time.perf_counter() - begin)
    local = EXPERTS // options.ranks
    for layer in model.layers:
        layer.experts.keep(rank * local, (rank + 1) * local)
    dispatcher = TokenDispatcher(dist.group.WORLD, HIDDEN, EXPERTS, max_decode_tokens=8)
    dist.barrier()
    begin = time.perf_counter()
    result = generate(model, prompts.tensor_split(options.ranks)[rank], options.tokens,
                      dispatcher.prefill, dispatcher.decode)
    dist.barrier()
    seconds.append(time.perf_counter() - begin)
    results = [None] * options.ranks
    dist.all_gather_object(results, result)
    dispatcher.destroy()
    dist.destroy_process_group()
    if rank > 0:
        return
    got, got_logits = map(torch.cat, zip(*results))
    ranks = f"{options.ranks} rank{'s' if options.ranks > 1 else ''}"
    report(options, ranks, loss, seconds, prompts, got)
    wrong = (got != expected).any(1).sum().item()
    distance = (got_logits - expected_logits).abs().max().item()
    verdict = f"{wrong} of {PROMPTS} texts differ, logits by up to {distance:.1e}"
    if wrong or not distance <= TOLERANCE:
        sys.exit(f"FAILED: {ranks} and one process: {verdict}; expected 0, and at most {TOLERANCE}")
    print(f"{ranks} and one process agree: {verdict}")


def report(options, ranks, loss, seconds, prompts, generated):
    """Prints a text and the times."""
    parts = (bytes(row.tolist()).decode(errors="replace") for row in (prompts[1], generated[1]))
    print("{!r} goes on\n{!r}\n".format(*parts))
    bytes_read, bytes_written = options.steps * BATCH * WINDOW, PROMPTS * options.tokens
    print(f"{'':24}{'seconds':>8}{'tokens/s':>10}")
    for what, time_taken, count in zip(
            (f"training, loss {loss:.2f}", "one process", ranks), seconds,
            (bytes_read, bytes_written, bytes_written)):
        print(f"{what:24}{time_taken:8.2f}{count / time_taken:10.0f}")


def whole_number(text):
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"{text}, expected a whole number from 1 to {2**31 - 1}")
    return number


def main():
    parser = argparse.ArgumentParser(
        description="Trains a small mixture of experts and generates text with it, in one process "
                    "and on several ranks by DeepEP's calls.")
    launched = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None  # By torchrun, say.
    try:
        ranks = whole_number(launched or "4")
    except argparse.ArgumentTypeError as wrong:
        parser.error(f"WORLD_SIZE is {wrong}")
    for name, default, meaning in (
            ("ranks", ranks, "processes that share the experts"), ("steps", 400, "of training"),
            ("tokens", 64, "bytes per prompt"), ("seed", 1, "of the first parameters")):
        parser.add_argument(f"--{name}", type=whole_number, default=default, metavar="N",
                            help=f"{meaning} (default: {default})")
    options = parser.parse_args()
    if launched and options.ranks != ranks:
        parser.error(f"--ranks is {options.ranks}, but the launcher has started {ranks}")
    if EXPERTS % options.ranks != 0:
        parser.error(f"{options.ranks} ranks, expected a number that divides the {EXPERTS} experts")
    if launched:
        run_rank(int(os.environ["RANK"]), options, "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(run_rank, (options, f"file://{folder}/ranks"),
                                        nprocs=options.ranks)
        except torch.multiprocessing.ProcessExitedException as ended:
            sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
