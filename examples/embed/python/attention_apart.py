# SPDX-License-Identifier: MIT
"""Text from a small language model, whose attention and experts are on ranks of their own:

    python3 attention_apart.py --attention 3 --experts 2 --drafts 3

Attention ranks share the prompts, and have no experts; expert ranks have no tokens. The model continues
prompts from the repository's LICENSE, in one process and then over the ranks, which must give the same
bytes. A step of a sequence tries up to `--drafts` bytes beside the next one, as speculative decoding and
multi-token prediction do, and keeps those that the model confirms: so each rank has another number of
tokens in each step. Each rank has two micro-batches of sequences, of which one travels while attention
works on the other. Needs numpy only.

Rows and outputs are bfloat16 on the way, and rounded alike in one process. All else is float64, because
BLAS adds in another order for another number of rows.
"""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # The ranks share the cores.
import numpy

import peerbus
from peerbus import from_bf16, to_bf16
from peerbus.engines import TokenDispatcher, dealt

TEXT = (pathlib.Path(__file__).resolve().parents[3] / "LICENSE").read_bytes()
LAYERS, HIDDEN, INNER = 2, 256, 64
EXPERTS, TOP_K = 7, 2
PROMPTS, PROMPT_BYTES, STAGES = 8, 12, 2


class Model:
    """Attention that fades with distance at a pace of each head, experts, and a last layer that has learnt the
    text. All numbers but its follow from a seed."""

    def __init__(self):
        draw = numpy.random.default_rng(7)
        self.embedding = draw.standard_normal([256, HIDDEN])
        self.fading = numpy.repeat([0.0, 0.4, 0.7, 0.9], HIDDEN // 4)
        self.mix = draw.standard_normal([LAYERS, HIDDEN, HIDDEN]) * HIDDEN**-0.5
        self.router = draw.standard_normal([LAYERS, HIDDEN, EXPERTS]) * HIDDEN**-0.5
        self.up = draw.standard_normal([LAYERS, EXPERTS, HIDDEN, INNER]) * HIDDEN**-0.5
        self.down = draw.standard_normal([LAYERS, EXPERTS, INNER, HIDDEN]) * INNER**-0.5
        self.head = numpy.zeros([HIDDEN, 256])

    def attention(self, layer, x, state):
        """Adds to rows x [T, H] what came before them. Returns them and the state behind each: [T, H]."""
        states = []
        for row in x:
            state = self.fading * state + (1 - self.fading) * row
            states.append(state)
        states = numpy.array(states).reshape(-1, HIDDEN)
        return x + numpy.tanh(states @ self.mix[layer]), states

    def route(self, layer, x):
        """Returns the experts of each row, best first, and their weights: [T, K]."""
        logits = x @ self.router[layer]
        ids = numpy.argsort(-logits, 1, kind="stable")[:, :TOP_K]
        weights = numpy.exp(numpy.take_along_axis(logits, ids, 1))
        return ids, from_bf16(to_bf16(weights / weights.sum(1, keepdims=True)))

    def expert(self, layer, i, rows):
        """Returns the outputs of an expert for rows, bfloat16 both."""
        return to_bf16(numpy.tanh(from_bf16(rows).astype(float) @ self.up[layer, i]) @ self.down[layer, i])

    def experts_here(self, layer, x):
        """Returns what the experts add to rows x, without ranks."""
        ids, weights = self.route(layer, x)
        outputs = numpy.zeros([*ids.shape, HIDDEN], numpy.float32)
        for i in range(EXPERTS):
            row, slot = numpy.nonzero(ids == i)
            outputs[row, slot] = from_bf16(self.expert(layer, i, to_bf16(x[row])))
        sums = numpy.zeros(x.shape, numpy.float32)
        for slot in range(TOP_K):
            sums += weights[:, slot, None] * outputs[:, slot]
        return from_bf16(to_bf16(sums))

    def learn(self, text):
        """Fits the last layer to the next byte of each place of a text."""
        x = self.embedding[list(text[:-1])]
        for layer in range(LAYERS):
            x, _ = self.attention(layer, x, numpy.zeros(HIDDEN))
            x = x + self.experts_here(layer, x)
        wanted = numpy.eye(256)[list(text[1:])]
        self.head = numpy.linalg.solve(x.T @ x + 1e-3 * numpy.eye(HIDDEN), x.T @ wanted)


class Sequence:
    """A prompt and its continuation."""

    def __init__(self, prompt, most):
        self.text, self.end = bytearray(prompt), len(prompt) + most
        self.known = 0  # Bytes whose states are those of `states`.
        self.states = [numpy.zeros(HIDDEN)] * LAYERS

    def is_done(self):
        return len(self.text) == self.end

    def next_tokens(self, drafts):
        """Returns the bytes that the next step looks at: those without states, and guesses of what follows
        them, which are those that followed the last three bytes elsewhere in the text."""
        at = TEXT.find(bytes(self.text[-3:]))
        guess = TEXT[at + 3:at + 3 + min(drafts, self.end - len(self.text) - 1)] if at >= 0 else b""
        self.tokens = bytes(self.text[self.known:]) + guess
        return self.tokens

    def accept(self, chosen, states):
        """Takes the bytes that the model chose after each token, as far as the tokens were right."""
        known = len(self.text) - self.known  # Of the tokens, that are no guesses.
        right = known
        while right < len(self.tokens) and chosen[right - 1] == self.tokens[right]:
            right += 1
        self.text += self.tokens[known:right] + bytes([chosen[right - 1]])
        self.known += right
        self.states = [of_layer[right - 1] for of_layer in states]


class Step:
    """A step of some sequences, layer by layer."""

    def __init__(self, model, sequences, drafts):
        self.model, self.sequences = model, [s for s in sequences if not s.is_done()]
        tokens = [s.next_tokens(drafts) for s in self.sequences]
        self.ends = numpy.cumsum([len(t) for t in tokens], dtype=int)
        self.x = model.embedding[list(b"".join(tokens))].reshape(-1, HIDDEN)
        self.states = [[] for _ in self.sequences]

    def parts(self):
        """Yields the rows of each sequence."""
        return (slice(begin, end) for begin, end in zip([0, *self.ends], self.ends))

    def attention(self, layer):
        for i, rows in enumerate(self.parts()):
            state = self.sequences[i].states[layer]
            self.x[rows], states = self.model.attention(layer, self.x[rows], state)
            self.states[i].append(states)

    def end(self):
        chosen = (self.x @ self.model.head).argmax(1)
        for sequence, rows, states in zip(self.sequences, self.parts(), self.states):
            sequence.accept(chosen[rows].tolist(), states)


def generate_here(model, sequences, drafts):
    """Continues sequences in this process. Returns the steps."""
    steps = 0
    while not all(s.is_done() for s in sequences):
        step = Step(model, sequences, drafts)
        for layer in range(LAYERS):
            step.attention(layer)
            step.x += model.experts_here(layer, step.x)
        step.end()
        steps += 1
    return steps


def serve_attention(comm, dispatcher, model, sequences, drafts):
    """An attention rank: continues sequences, as long as any rank has some. Returns the steps and tokens."""
    steps = tokens = 0
    while comm.all_gather(numpy.array([sum(not s.is_done() for s in sequences)])).any():
        stages = [Step(model, sequences[i::STAGES], drafts) for i in range(STAGES)]
        for layer in range(LAYERS):
            sent = []
            for step in stages:  # The first travels while attention works on the second.
                step.attention(layer)
                sent.append(dispatcher.send("compact", to_bf16(step.x), *model.route(layer, step.x)))
            for step, batch in zip(stages, sent):
                batch.receive()  # No rows: there are no experts here.
                batch.send_back()
                step.x += from_bf16(batch.finish())
        for step in stages:
            tokens += len(step.x)
            step.end()
        steps += 1
    return steps, tokens


def serve_experts(comm, dispatcher, model):
    """An expert rank: computes rows, as long as any rank has sequences. Returns the steps and rows."""
    nothing = (numpy.empty([0, HIDDEN], numpy.uint16), numpy.empty([0, TOP_K], numpy.int64),
               numpy.empty([0, TOP_K], numpy.float32))
    steps = rows = 0
    while comm.all_gather(numpy.array([0])).any():
        for layer in range(LAYERS):
            for _ in range(STAGES):
                batch = dispatcher.send("compact", *nothing).receive()
                for i, end in enumerate(numpy.cumsum(batch.counts)):
                    own = slice(end - batch.counts[i], end)
                    batch.outputs[own] = model.expert(layer, dispatcher.first_expert + i, batch.rows[own])
                rows += int(batch.counts.sum())
                batch.send_back()
                batch.finish()
        steps += 1
    return steps, rows


def prompts(count):
    """Returns sequences that begin at places all over the text."""
    begins = numpy.linspace(0, len(TEXT) - PROMPT_BYTES - count, PROMPTS).astype(int)
    return [Sequence(TEXT[begin:begin + PROMPT_BYTES], count) for begin in begins]


def run_rank(rank, model, options, job):
    ranks = options.attention + options.experts
    comm = peerbus.Communicator(rank, ranks, job=job)
    sequences = prompts(options.tokens)
    most = -(-PROMPTS // options.attention) * (PROMPT_BYTES + options.drafts + 1)
    dispatcher = TokenDispatcher(
        comm, EXPERTS, HIDDEN, most, in_flight=STAGES,
        experts_of_rank=[0] * options.attention + dealt(EXPERTS, options.experts))
    begin = time.perf_counter()
    if rank >= options.attention:
        steps, rows = serve_experts(comm, dispatcher, model)
        print(f"rank {rank}: {dispatcher.local_experts} experts, {rows} rows in {steps} steps", flush=True)
    else:
        own = sequences[rank::options.attention]
        steps, tokens = serve_attention(comm, dispatcher, model, own, options.drafts)
        print(f"rank {rank}: {len(own)} sequences, {tokens} tokens in {steps} steps", flush=True)
    seconds = time.perf_counter() - begin
    size = PROMPT_BYTES + options.tokens
    texts = numpy.zeros([PROMPTS, size], numpy.uint8)
    for i, sequence in enumerate(sequences):
        if i % options.attention == rank:
            texts[i] = list(sequence.text)
    texts = comm.all_gather(texts).sum(0, dtype=numpy.uint8)  # Each is zeros on all ranks but one.
    dispatcher.destroy()
    comm.barrier()
    comm.destroy()
    if rank != 0:
        return 0
    alone = prompts(options.tokens)
    generate_here(model, alone, 0)
    wrong = sum(bytes(got) != bytes(s.text) for got, s in zip(texts, alone))
    print(f"\n{bytes(texts[0]).decode(errors='replace')!r}\n\n{steps} steps for {options.tokens} bytes, "
          f"{seconds:.2f} s; {wrong} of {PROMPTS} texts differ from those of one process, one byte a step")
    return int(wrong != 0)


def whole_number(least):
    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}, expected a whole number from {least} on")
        return int(text)
    return parse


def main():
    parser = argparse.ArgumentParser(description="Continues text with attention and experts on ranks of their own.")
    for name, default, least, meaning in (
            ("attention", 3, 1, "ranks that have sequences"), ("experts", 2, 1, "ranks that have experts"),
            ("tokens", 48, 1, "bytes for each prompt"), ("drafts", 3, 0, "bytes that a step tries beside the next")):
        parser.add_argument(f"--{name}", type=whole_number(least), default=default, metavar="N",
                            help=f"{meaning} (default: {default})")
    options = parser.parse_args()
    if options.experts > EXPERTS:
        parser.error(f"--experts is {options.experts}, expected at most {EXPERTS}, the experts of the model")
    if options.tokens > len(TEXT) - PROMPT_BYTES:
        parser.error(f"--tokens is {options.tokens}, expected at most {len(TEXT) - PROMPT_BYTES}")
    model = Model()
    model.learn(TEXT)
    job, children = f"attention-{os.getpid()}", []
    for rank in range(options.attention + options.experts):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = run_rank(rank, model, options, job)
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


if __name__ == "__main__":
    main()
