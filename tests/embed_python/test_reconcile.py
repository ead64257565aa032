# SPDX-License-Identifier: MIT
"""The cases of FlashInfer's tests of its agreement on active ranks, as calls of `PeerbusFleet`. There a
rank whose key is late is dead; here one is gone if its process has ended, or if another rank masks it and it
leaves."""

import os
import time
import unittest

import numpy

import peerbus
from engine_model import Model
from ranks import die, die_after, main, raises, run
from test_flashinfer import (FleetAlgoKnobFaultTolerance, Params, check, end, fleet_of, mask_of,
                             moe_ep, reconcile)

LIMIT = 20  # Seconds, also on a busy machine.


def set_mask(rank, fleet, *masked):
    fleet.set_active_mask(rank.kind.given(numpy.array([r not in masked for r in range(rank.size)],
                                                      numpy.int32)))


def unchanged(rank, fleet, gone, epoch):
    """Reconciles when nothing has happened since."""
    mask = rank.kind.got(fleet.reconcile_active_mask(LIMIT)).tolist()
    assert mask == [int(r not in gone) for r in range(rank.size)] == mask_of(rank, fleet)
    assert fleet.active_mask_epoch == epoch and not fleet.query_fault()


def evict(rank, fleet, views, leaving, gone=()):
    """Ranks mask others, {rank: {others}}, and reconcile. Those that are `leaving` know it, and return
    True. The others go on without them and without those which are `gone`."""
    from peerbus.engines import flashinfer
    set_mask(rank, fleet, *views.get(rank.rank, ()), *gone)
    if rank.rank not in leaving:
        reconcile(rank, fleet, {*leaving, *gone}, timeout_s=LIMIT)
        return False
    by = min(r for r in views if rank.rank in views[r])
    assert issubclass(flashinfer.MoEEpRankEvictedError, peerbus.ViewChanged)
    raises(flashinfer.MoEEpRankEvictedError, f"rank {rank.rank} was masked by rank {by}",
           fleet.reconcile_active_mask, LIMIT)
    raises(peerbus.InvalidArgument, "destroyed", fleet.query_active_mask)
    raises(peerbus.InvalidArgument, "destroyed", moe_ep, rank, fleet, rank.tokens(1))
    return True


def all_live():
    rank = Model()
    fleet = fleet_of(rank)
    for _ in range(2):  # Before there is memory for tokens, and after.
        for _ in range(2):
            unchanged(rank, fleet, (), 0)
        check(rank, fleet)
    rank.comm.barrier()


def killed():
    """Ranks die before any call has failed: only that they are missing tells it."""
    rank = Model()
    fleet = fleet_of(rank)
    gone = set(map(int, os.environ["GONE"].split()))
    if os.environ["WHEN"] == "after a round":
        check(rank, fleet)
    end(rank, gone)
    reconcile(rank, fleet, gone, timeout_s=LIMIT)
    check(rank, fleet, gone)
    rank.comm.barrier()


def views_differ():
    """Rank 1 masks rank 3, and the others do not. Rank 3 lives, and leaves."""
    rank = Model()
    fleet = fleet_of(rank)
    if os.environ["WHEN"] == "after a round":
        check(rank, fleet)
    if not evict(rank, fleet, {1: {3}}, {3}):
        check(rank, fleet, {3})
        unchanged(rank, fleet, {3}, 1)
        assert rank.comm.health()[3] == "left" and rank.comm.view == (1, (0, 1, 2))
        rank.comm.barrier()


def never_itself():
    rank = Model()
    fleet = fleet_of(rank)
    raises(ValueError, "mask itself", set_mask, rank, fleet, rank.rank)
    unchanged(rank, fleet, (), 0)
    rank.comm.barrier()


def late():
    """Rank 3 is dead. Rank 0 gives up before rank 2 comes, and rank 1 waits for it: all have one mask."""
    rank = Model()
    fleet = fleet_of(rank, knobs=[FleetAlgoKnobFaultTolerance(reconcile_timeout_s=LIMIT)])
    check(rank, fleet)
    end(rank, {3})
    has_given_up = os.path.join(os.environ["TEST_FOLDER"], "has given up")
    if rank.rank == 0:
        while rank.comm.health()[3] == "runs":
            time.sleep(0.001)
        raises(peerbus.TimedOut, "runs, but has not called", fleet.reconcile_active_mask, 0.15)
        assert mask_of(rank, fleet) == [1, 1, 1, 1] and fleet.active_mask_epoch == 0
        open(has_given_up, "w").close()
    while rank.rank == 2 and not os.path.exists(has_given_up):
        time.sleep(0.001)
    reconcile(rank, fleet, {3}, epoch=1)
    check(rank, fleet, {3})
    rank.comm.barrier()


def decided_once():
    """Rank 2 comes to a view that the others have decided on, and that does not change any more."""
    rank = Model()
    fleet = fleet_of(rank)
    end(rank, {3})
    time.sleep(0.3 if rank.rank == 2 else 0)
    reconcile(rank, fleet, {3}, epoch=1)
    for _ in range(2):
        unchanged(rank, fleet, {3}, 1)
    assert rank.comm.view == (1, (0, 1, 2))
    rank.comm.barrier()


def rounds_are_separate():
    """What a rank masked in one round is forgotten in the next one, and who is gone stays gone."""
    rank = Model()
    fleet = fleet_of(rank)
    unchanged(rank, fleet, (), 0)
    if evict(rank, fleet, {0: {4}, 3: {4}}, {4}):
        return
    unchanged(rank, fleet, {4}, 1)
    end(rank, {3})
    reconcile(rank, fleet, {3, 4}, epoch=2)
    if evict(rank, fleet, {2: {0}}, {0}, gone={3, 4}):
        return
    assert fleet.active_mask_epoch == 3
    check(rank, fleet, {0, 3, 4})
    rank.comm.barrier()


def evicted():
    """Rank 2 is masked by both others. Batches of theirs are void, and what was complete is known."""
    rank = Model()
    fleet = fleet_of(rank)
    check(rank, fleet)
    check(rank, fleet)
    if evict(rank, fleet, {0: {2}, 1: {2}}, {2}):
        raises(peerbus.InvalidArgument, "destroyed", rank.comm.barrier)
        return
    assert fleet.completed == 2
    raises(ValueError, "rank 2 would be active, which is gone", set_mask, rank, fleet)
    set_mask(rank, fleet, 2)
    check(rank, fleet, {2})
    rank.comm.barrier()


def mask_each_other():
    """Ranks 0 and 1 mask each other, and 1 masks 2 too: the mask of a rank that leaves counts for nothing."""
    rank = Model()
    fleet = fleet_of(rank)
    if not evict(rank, fleet, {0: {1}, 1: {0, 2}}, {1}):
        check(rank, fleet, {1})
        rank.comm.barrier()


def leaves_late():
    """Rank 2 is masked and keeps a window of its own, so that it has not left."""
    rank = Model()
    fleet = fleet_of(rank)
    check(rank, fleet)
    kept = rank.comm.window(8)
    told = os.path.join(os.environ["TEST_FOLDER"], "told by rank {}")
    if rank.rank == 2:
        evict(rank, fleet, {0: {2}}, {2})
        while not all(os.path.exists(told.format(r)) for r in (0, 1)):
            time.sleep(0.001)
        kept.destroy()
        return
    set_mask(rank, fleet, *[2] * (rank.rank == 0))
    raises(peerbus.TimedOut, "rank 2 was masked, but has not left", fleet.reconcile_active_mask, 2)
    open(told.format(rank.rank), "w").close()
    reconcile(rank, fleet, {2}, epoch=1, timeout_s=LIMIT)
    check(rank, fleet, {2})
    rank.comm.barrier()


def evicted_while_another_dies():
    """Rank 1 dies at some moment while the others leave out rank 3."""
    from peerbus.engines import flashinfer
    rank = Model()
    fleet = fleet_of(rank)
    check(rank, fleet)
    rank.comm.barrier()
    if rank.rank == 1:
        die_after(float(os.environ["AFTER"]))
    set_mask(rank, fleet, *[3] * (rank.rank == 0))
    while True:  # Until rank 1 is gone too, which ends the last reconcile of the others or a round.
        try:
            mask = fleet.reconcile_active_mask(LIMIT).tolist()
            if mask == [1, 0, 1, 0, 1]:
                break
            assert mask == [1, 1, 1, 0, 1]
            check(rank, fleet, {3})
        except flashinfer.MoEEpRankEvictedError:
            assert rank.rank == 3
            return
        except (peerbus.PeerDead, peerbus.Poisoned):
            pass
    assert rank.comm.view.members == (0, 2, 4)
    check(rank, fleet, {1, 3})
    rank.comm.barrier()


def bad_shapes():
    rank = Model()
    fleet = fleet_of(rank)
    for wrong in ([1], [1] * 4, [], [1, 1, 2]):
        raises(ValueError, "expected 0 or 1 for each of 3 ranks", fleet.set_active_mask, wrong)
    kind, given = type(fleet), vars(fleet.bootstrap)
    for wrong in (dict(rank=5), dict(world_size=0), dict(rank=(rank.rank + 1) % 3)):
        raises(ValueError, "the process group has rank", kind, Params(**dict(given, **wrong)), fleet.params)
    unchanged(rank, fleet, (), 0)
    rank.comm.barrier()


def another_world():
    """What a rank believes of a group of another size does not reach this one."""
    rank = Model()
    fleet = fleet_of(rank)
    raises(ValueError, "rank 1 of 3, expected that of the bootstrap, 1 of 2" if rank.rank == 1 else "of 2",
           type(fleet), Params(world_size=2, rank=rank.rank, process_group=rank.comm), fleet.params)
    raises(ValueError, "each of 3 ranks", fleet.set_active_mask, [1, 0] if rank.rank == 0 else [0, 1])
    unchanged(rank, fleet, (), 0)
    check(rank, fleet)
    rank.comm.barrier()


MOMENTS = ("at once", "after a round")


class Tests(unittest.TestCase):
    def test_all_live(self):
        run(4, all_live)

    def test_one_rank_alone(self):
        run(1, all_live)

    def test_rank_never_comes(self):
        for when in MOMENTS:
            run(4, killed, killed=(2,), GONE="2", WHEN=when)

    def test_views_differ(self):
        for when in MOMENTS:
            run(4, views_differ, WHEN=when)

    def test_rank_never_masks_itself(self):
        run(2, never_itself)

    def test_rank_0_is_dead(self):
        for when in MOMENTS:
            run(4, killed, killed=(0,), GONE="0", WHEN=when)

    def test_two_are_dead(self):
        for when in MOMENTS:
            run(5, killed, killed=(1, 3), GONE="1 3", WHEN=when)

    def test_late(self):
        run(4, late, killed=(3,))

    def test_decided_once(self):
        run(4, decided_once, killed=(3,))

    def test_rounds_are_separate(self):
        run(5, rounds_are_separate, killed=(3,))

    def test_evicted(self):
        run(3, evicted)

    def test_leaves_late(self):
        run(3, leaves_late)

    def test_mask_each_other(self):
        run(4, mask_each_other)

    def test_evicted_while_another_dies(self):
        for after in (0.0002, 0.0005, 0.001, 0.002, 0.004):
            with self.subTest(after=after):
                run(5, evicted_while_another_dies, killed=(1,), AFTER=str(after))

    def test_bad_shapes(self):
        run(3, bad_shapes)

    def test_another_world(self):
        run(3, another_world)


if __name__ == "__main__":
    main(globals())
