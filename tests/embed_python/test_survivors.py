# SPDX-License-Identifier: MIT
"""Groups that lose ranks and go on: exchanges, and the low-latency calls of a buffer that shrinks."""

import os
import re
import signal
import threading
import time
import unittest

import numpy

import peerbus
import peerbus.deep_ep as deep_ep
from ranks import bf16, die, main, raises, run, widened

EXPERTS, HIDDEN, TOP_K = 8, 128, 2


def inputs_of(rank, count=4):
    """Returns the tokens of a rank as bits, their experts and weights: sums of them are exact."""
    draw = numpy.random.default_rng(rank)
    x = bf16(numpy.repeat(draw.integers(1, 8, [count, 1]), HIDDEN, 1))
    ids = numpy.array([draw.permutation(EXPERTS)[:TOP_K] for _ in range(count)], numpy.int64)
    return x, ids, numpy.full([count, TOP_K], 0.5, numpy.float32)


def expected(x, ids, members, size):
    """Returns the sums of tokens whose experts multiply by 1 + their number, over living experts."""
    lives = numpy.isin(ids * size // EXPERTS, members)
    return widened(x) * (0.5 * (ids + 1) * lives).sum(1, keepdims=True).astype(numpy.float32)


def dispatched(exchange, x, ids, weights):
    """Returns the rows of a dispatch, whose outputs are those of such experts."""
    received = exchange.dispatch(x, ids, weights)
    for block, expert in enumerate(received.expert_ids):
        rows = slice(received.first_rows[block, 0],
                     received.first_rows[block, 0] + received.counts[block].sum())
        received.outputs[rows] = bf16(widened(received.row_data[rows]) * (expert + 1))
    return received


def by_exchange():
    metrics = os.path.join(os.environ["TEST_FOLDER"], "rank{rank}.prom")
    os.environ["PEERBUS_METRICS"] = metrics
    comm, rest = peerbus.Communicator(), None
    exchange = comm.exchange(experts=EXPERTS, hidden=HIDDEN, top_k=TOP_K, max_tokens=4)
    x, ids, weights = inputs_of(comm.rank)

    def check_metrics(rank, **wanted):
        with open(metrics.format(rank=rank)) as file:
            text = file.read()
        assert set(re.findall(r'rank="(\d)"', text)) == {str(rank)}, text
        assert not rest or set(re.findall(r'peer="(\d)"', text)) <= {"0", "1", "3"} - {str(rank)}, text
        for name, number in wanted.items():
            assert re.findall(rf'^peerbus_{name}\{{.*\}} (\d+)$', text, re.M) == [str(number)], text

    def dispatch():
        return dispatched(exchange, x, ids, weights)

    def check(sums):
        assert (widened(sums) == expected(x, ids, comm.view.members, comm.size)).all()

    check(exchange.combine(dispatch(), len(x)))
    received = dispatch()
    team, channels, window = comm.team(), comm.channels(), comm.window(64)
    comm.barrier()
    own = comm.last_seen(comm.rank)
    if comm.rank == 2:
        die()
    raises(peerbus.PeerDead, "rank 2 died", exchange.combine, received, len(x))
    raises(peerbus.Poisoned, "rank 2 died", comm.barrier)
    seen = comm.last_seen(2)
    assert seen[:4] == own[:4] and seen.operation == "barrier" and 0 <= seen.heard <= seen.since, seen
    raises(ValueError, "below the number of ranks", comm.last_seen, 4)
    assert comm.health()[2] == "died" and comm.view == (0, (0, 1, 2, 3))
    view = comm.continue_without([2]) if comm.rank == 0 else comm.continue_without_the_dead()
    assert view == (1, (0, 1, 3))
    raises(peerbus.ViewChanged, "view 1 of 3 ranks", exchange.dispatch, x, ids, weights)
    raises(peerbus.ViewChanged, "survivors", comm.all_reduce, numpy.ones(4, numpy.float32))
    check_collectives_go_on(comm, team, window, channels, view.members)
    raises(ValueError, "lost", exchange.resume, "found")
    assert exchange.resume() == (2, 1) and exchange.awaits_combine(received)
    check(exchange.combine(received, len(x)))
    check(exchange.combine(dispatch(), len(x)))
    time.sleep(1.1)
    comm.barrier()  # Begins with a new file, at most once a second.
    check_metrics(comm.rank, ranks=4, view=1)
    rest = comm.survivors()
    assert (rest.rank, rest.size) == ((0, 1, 3).index(comm.rank), 3)
    assert (rest.all_reduce(numpy.full(4, rest.rank, numpy.float32)) == 3).all()
    rest.barrier()
    check_metrics(comm.rank, ranks=3, view=1)  # Survivors keep their files, and that of the dead rank stays.
    check_metrics(2, ranks=4, view=0)
    rest.destroy()
    check_metrics(comm.rank, ranks=3, view=1)


def check_collectives_go_on(comm, team, window, channels, members):
    inside = team.in_window(window)
    x = window.part(comm.rank)[:8].view(numpy.float32)
    x[:] = comm.rank
    own = numpy.full(2, comm.rank, numpy.float32)
    for held, operation in ((team, team.all_gather), (channels, lambda x: channels.send(x, 0))):
        raises(peerbus.ViewChanged, "view 1 of 3 ranks", operation, own)
        held.resume()
        raises(peerbus.InvalidArgument, "view 1", held.resume)
    assert (team.rank, team.size) == (inside.rank, inside.size) == (members.index(comm.rank), 3)
    assert (team.all_gather(own) == numpy.array(members)[:, None]).all()
    assert (inside.all_gather(x[:2]) == numpy.array(members)[:, None]).all()
    raises(peerbus.InvalidArgument, "root", team.broadcast, own, 3)
    # Channels name ranks as the communicator does.
    after = members[(team.rank + 1) % 3]
    before = members[(team.rank + 2) % 3]
    got = numpy.empty_like(own)
    channels.batch_send_recv([(own, after)], [(got, before)])
    assert (got == before).all()
    raises(peerbus.Error, "rank 2", channels.send, own, 2)


def by_replicas():
    """Each expert has two places, so that a rank may die and no slot is dropped. Then the others take the
    experts, each at one place."""
    comm = peerbus.Communicator()
    exchange = comm.exchange(experts=EXPERTS, hidden=HIDDEN, top_k=TOP_K, max_tokens=4,
                             physical_to_logical=numpy.arange(2 * EXPERTS) % EXPERTS, replicas="round_robin")
    x, ids, weights = inputs_of(comm.rank)

    def check_batch():
        received = dispatched(exchange, x, ids, weights)
        counted = received.count_rows().rows
        sums = widened(exchange.combine(received, len(x)))
        assert (sums == expected(x, ids, range(comm.size), comm.size)).all()
        return counted.reshape(comm.size, -1).sum(1)

    assert check_batch().all()
    comm.barrier()
    if comm.rank == 2:
        die()
    raises(peerbus.PeerDead, "rank 2 died", comm.barrier)
    comm.continue_without_the_dead()
    exchange.resume()
    rows = check_batch()
    assert rows[2] == 0 and rows.sum() == len(comm.view.members) * ids.size
    table = numpy.full([comm.size, 4], -1)
    for expert in range(EXPERTS):
        table[(0, 1, 3)[expert % 3], expert // 3] = expert
    exchange.install_experts(table.reshape(-1))
    rows = check_batch()
    assert rows[2] == 0 and rows.sum() == len(comm.view.members) * ids.size


class MovedExperts:
    """Experts with two places each, whose weights may move while batches go on."""

    TABLE = numpy.arange(2 * EXPERTS) % EXPERTS
    # Of ranks 0, 1 and 3, with two places of each expert. Rank 2 is gone.
    WITHOUT_2 = numpy.array([[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 2, 3], [2, 3, 6, 7]])

    def __init__(self, spare=1):
        self.comm = peerbus.Communicator()
        self.exchange = self.comm.exchange(
            experts=EXPERTS, hidden=HIDDEN, top_k=TOP_K, max_tokens=4, physical_to_logical=self.TABLE,
            replicas="round_robin")
        self.memory = peerbus.ExpertWeights(self.comm, self.exchange, [("float32", [HIDDEN]), 3000], spare,
                                            slice_bytes=1000)
        self.input, self.received = inputs_of(self.comm.rank), None
        for place, expert in enumerate(self.held()):
            self.memory.tensor(place, 0)[:] = expert + 1
            self.memory.tensor(place, 1)[:] = expert

    def held(self):
        return self.memory.physical_to_logical.reshape(self.comm.size, -1)[self.comm.rank]

    def check_batch(self):
        x, ids, weights = self.input
        self.received = received = self.exchange.dispatch(x, ids, weights)
        for place, expert in enumerate(self.held()):
            first = received.first_rows[place, 0]
            rows = slice(first, first + received.counts[place].sum())
            received.outputs[rows] = bf16(widened(received.row_data[rows]) * self.memory.tensor(place, 0))
            assert (self.memory.tensor(place, 1) == expert).all()
        sums = widened(self.exchange.combine(received, len(x)))
        assert (sums == expected(x, ids, range(self.comm.size), self.comm.size)).all()

    def move(self, wanted):
        """Moves the experts to the places that are wanted, with batches meanwhile."""
        assert self.memory.begin(wanted) > 0
        is_over = False
        while not is_over:
            self.memory.advance(2000)
            self.check_batch()
            is_over = self.memory.commit(self.exchange)
        self.check_batch()

    def go_on(self):
        """Goes on without rank 2. The moves that were under way are dropped."""
        self.comm.continue_without_the_dead()
        self.exchange.resume()
        if self.received and self.exchange.awaits_combine(self.received):
            self.exchange.combine(self.received, len(self.input[0]))
        self.memory.abandon()
        assert not self.memory.is_moving
        maps = self.comm.survivors().all_gather(self.memory.physical_to_logical)
        assert (maps == maps[0]).all(), maps
        self.check_batch()

    def move_without_2(self):
        self.move(self.WITHOUT_2.reshape(-1))
        assert sorted(self.held()) == sorted(self.WITHOUT_2[self.comm.rank])
        # The busiest expert gets a third place, at the rank that lacks it. The places of rank 2 stay.
        before = self.memory.physical_to_logical
        busiest = numpy.bincount([3], [100], EXPERTS) + 1
        planned, moves = self.exchange.plan_experts(busiest, most_moves=2)
        of_ranks = planned.reshape(self.comm.size, -1)
        assert moves in (1, 2) and (of_ranks[2] == before.reshape(of_ranks.shape)[2]).all()
        assert all(3 in of_ranks[rank] for rank in (0, 1, 3)), planned
        self.move(planned)


def by_moved_weights():
    """A rank dies while weights move. The others drop the moves, and move the weights among themselves."""
    moved = MovedExperts()
    moved.check_batch()
    assert moved.memory.begin(numpy.roll(moved.TABLE, 3)) > 1
    moved.memory.advance(4000)
    moved.check_batch()
    moved.comm.barrier()
    if moved.comm.rank == 2:
        die()
    raises(peerbus.PeerDead, "rank 2 died", moved.memory.commit, moved.exchange)
    moved.go_on()
    assert (moved.memory.physical_to_logical == moved.TABLE).all()
    moved.move_without_2()


def killed_in_moves():
    """A rank is killed at some moment of moves. The others have one map, by which they go on. A move is of one
    round, so that every map has all experts at the others."""
    moved = MovedExperts(spare=4)
    if moved.comm.rank == 2:
        threading.Timer(float(os.environ["AFTER"]), die).start()
    try:
        while True:
            moved.move(numpy.roll(moved.TABLE, 3))
            moved.move(moved.TABLE)
    except peerbus.PeerDead:
        moved.go_on()
    moved.move_without_2()


def by_buffer():
    comm = peerbus.Communicator()
    buffer = deep_ep.Buffer(comm, low_latency_mode=True, enable_shrink=True)
    x, ids, weights = inputs_of(comm.rank)
    status = numpy.zeros(comm.size, numpy.int32)
    gone = set()

    def require_masks():
        buffer.low_latency_query_mask_buffer(status)
        assert set(status.nonzero()[0]) == gone, (status, gone)

    def leave(where, ranks):
        gone.update(ranks)
        if comm.rank not in ranks:
            return False
        if where.startswith("kill"):
            die()
        buffer.destroy()
        comm.destroy()
        return True

    own = numpy.arange(EXPERTS // comm.size) + comm.rank * EXPERTS // comm.size
    for use_hook in (False, True):
        for use_fp8 in (False, True):  # Each takes memory of its own, also when ranks are gone.
            if not gone and leave("leave before dispatch", {1}):
                return
            received, counts, handle, _, hook = buffer.low_latency_dispatch(
                x, ids, 4, EXPERTS, use_fp8=use_fp8, return_recv_hook=use_hook)
            if use_hook:
                hook()
            require_masks()
            came = [r for r in range(comm.size) if r not in gone]
            wanted = [sum((inputs_of(r)[1] == expert).sum() for r in came) for expert in own]
            assert (counts == wanted).all(), (counts, wanted)
            if gone == {1} and leave("kill before combine", {3}):
                return
            rows = received[0] if use_fp8 else received
            outputs = numpy.zeros(rows.shape, numpy.uint16)
            for e, expert in enumerate(own):
                if use_fp8:
                    sent = numpy.concatenate([widened(inputs_of(r)[0])[(inputs_of(r)[1] == expert).any(1)]
                                              for r in range(comm.size) if r in came])
                else:
                    sent = widened(rows[e, :counts[e]])
                outputs[e, :counts[e]] = bf16(sent * (expert + 1))
            for _ in range(2):  # The handle is combined again.
                sums, _, hook = buffer.low_latency_combine(outputs, ids, weights, handle,
                                                           return_recv_hook=use_hook)
                if use_hook:
                    hook()
                require_masks()
                assert (widened(sums) == expected(x, ids, [r for r in range(comm.size) if r not in gone],
                                                  comm.size)).all()
            if len(gone) == 2 and leave("kill before clean", {5}):
                return
            buffer.clean_low_latency_buffer(4, HIDDEN, EXPERTS)
            require_masks()
    buffer.low_latency_clean_mask_buffer()
    require_masks()  # What is gone stays masked.


def killed_anywhere():
    """One rank is killed at some moment, also inside a call, and the others go on by themselves."""
    comm = peerbus.Communicator()
    buffer = deep_ep.Buffer(comm, low_latency_mode=True, enable_shrink=True)
    x, ids, weights = inputs_of(comm.rank)
    buffer.low_latency_dispatch(x, ids, 4, EXPERTS, use_fp8=False)
    if comm.rank == 1:
        threading.Timer(float(os.environ["AFTER"]), die).start()
    whole, left = (expected(x, ids, members, comm.size) for members in (range(4), (0, 2, 3)))
    rounds, view = 0, 0
    while rounds < 6:
        try:
            rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, EXPERTS, use_fp8=False)
            outputs = numpy.zeros(rows.shape, numpy.uint16)
            for e in range(len(counts)):
                expert = comm.rank * EXPERTS // comm.size + e
                outputs[e, :counts[e]] = bf16(widened(rows[e, :counts[e]]) * (expert + 1))
            sums, _, _ = buffer.low_latency_combine(outputs, ids, weights, handle)
        except peerbus.ViewChanged:  # On all ranks: they were in different calls.
            rounds, view = 0, comm.view.number
            continue
        got = widened(sums)
        assert (got == left).all() if rounds else ((got == whole).all(1) | (got == left).all(1)).all()
        # Ranks that went on inside a call did so in the same one.
        if comm.view.number != view:
            rounds, view = 1, comm.view.number
        elif view:
            rounds += 1


def grows():
    """Two of three ranks serve, and take in the third, which comes twice: it dies in between."""
    rank, place = int(os.environ["RANK"]), {"job": os.environ["PEERBUS_JOB"]}
    served = os.path.join(os.environ["TEST_FOLDER"], "served")

    def serve(comm):
        with comm, comm.exchange(experts=EXPERTS, hidden=HIDDEN, top_k=TOP_K, max_tokens=4) as exchange:
            x, ids, weights = inputs_of(comm.rank)
            received = exchange.dispatch(x, ids, weights)
            received.outputs[:] = received.row_data
            assert (widened(exchange.combine(received, len(x))) == widened(x)).all()
            comm.barrier()

    def admitted(comm):
        while (larger := comm.admit(**place)) is None:
            assert comm.refusal == ""
        assert larger.view == (0, (0, 1, 2)) and larger.rank == comm.rank
        return larger

    if rank == 1:
        for first in (True, False):
            child = os.fork()
            if child == 0:
                comm = peerbus.Communicator.join(1, 3, **place)
                assert comm.view.members == (0, 1, 2)
                serve(comm)
                if first:
                    die()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == (signal.SIGKILL if first else 0)
        raises(peerbus.InvalidArgument, "rank 3 of 3", peerbus.Communicator.join, 3, 3, **place)
        return
    raises(TypeError, "present needs a rank and a size", peerbus.Communicator, present=[0, 1])
    with peerbus.Communicator(rank, 3, present=[0, 2], **place) as few:
        assert few.view.members == (0, 2) and few.admit(**place) is None and few.refusal == ""
        larger = admitted(few)
        serve(larger)
        serve(admitted(few))  # The group of two is there still, and takes in the next.


def grows_over_tcp():
    """Rank 0 comes last, to a group of two pretended hosts, whose numbers are then those of the slots."""
    rank, secret = int(os.environ["RANK"]), os.environ["PEERBUS_SECRET"]
    place = {"port": int(os.environ["PEERBUS_PORT"]), "job": os.environ["PEERBUS_JOB"]}
    here = {"secret": secret, "host": os.environ["PEERBUS_HOST"], "transport": "planes"}
    if rank == 0:
        raises(peerbus.Error, "secret", peerbus.Communicator.join, 0, 3, **place,
               **dict(here, secret="another secret!!"))
        comm = peerbus.Communicator.join(0, 3, address="127.0.0.2,127.0.0.1", **place, **here)
    else:
        few = peerbus.Communicator(rank, 3, present=[1, 2], **place, **here)
        assert few.size == 2 and few.rank == rank - 1
        while (comm := few.admit(**place)) is None:
            pass
        few.destroy()
    assert (comm.rank, comm.size) == (rank, 3)
    exchange = comm.exchange(experts=EXPERTS, hidden=HIDDEN, top_k=TOP_K, max_tokens=4)
    x, ids, weights = inputs_of(rank)
    received = exchange.dispatch(x, ids, weights)
    received.outputs[:] = received.row_data
    assert (widened(exchange.combine(received, len(x))) == widened(x)).all()


class Tests(unittest.TestCase):
    def test_grows(self):
        run(3, grows)
        run(3, grows_over_tcp, hosts=2)

    def test_exchange(self):
        run(4, by_exchange, killed=(2,))

    def test_replicas(self):
        run(4, by_replicas, killed=(2,))
        run(4, by_moved_weights, killed=(2,))

    def test_buffer(self):
        run(8, by_buffer, killed=(3, 5))

    def test_killed_anywhere(self):
        for after in (0.0001, 0.002, 0.005, 0.011):
            with self.subTest(after=after):
                run(4, killed_anywhere, killed=(1,), AFTER=str(after))
                run(4, killed_in_moves, killed=(2,), AFTER=str(after))


if __name__ == "__main__":
    main(globals())
