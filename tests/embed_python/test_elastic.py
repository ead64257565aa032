# SPDX-License-Identifier: MIT
"""peerbus.elastic: which ranks of a group take part, for the threads of an engine."""

import os
import random
import signal
import sys
import threading
import unittest

import peerbus
from peerbus.elastic import EP_MASK_NUM_WORDS, EPGroupHealth, EPGroupHealthSnapshot
from ranks import main, raises, run


def follows():
    """The view of a group of which rank 1 is killed."""
    comm = peerbus.Communicator()
    health = EPGroupHealth(comm.size)
    assert not health.follow(comm) and health.generation == 0
    raises(ValueError, "expected ep_size, 4", EPGroupHealth(4).follow, comm)
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(peerbus.PeerDead, "rank 1", comm.barrier)
    assert not health.follow(comm) and health.all_active()  # It takes part until the others go on.
    comm.continue_without_the_dead()
    assert health.follow(comm)
    assert health.snapshot() == (0b101, 2, {1}, 1)
    assert not health.follow(comm) and health.generation == 1
    comm.barrier()


class Tests(unittest.TestCase):
    def test_one_rank_after_another(self):
        health = EPGroupHealth(4)
        self.assertEqual((health.ep_size, len(health)), (4, 4))
        self.assertTrue(health.all_active())
        self.assertEqual(health.snapshot(), (0b1111, 4, frozenset(), 0))
        self.assertTrue(health.mark_failed(2))
        self.assertEqual([health.is_active(rank) for rank in range(4)], [True, True, False, True])
        self.assertTrue(health.mark_failed(0))
        self.assertFalse(health.all_active())
        self.assertEqual(health.get_mask(), 0b1010)
        self.assertEqual(health.get_active_count(), 2)
        self.assertEqual(health.get_failed_ranks(), {0, 2})
        self.assertIsInstance(health.get_failed_ranks(), frozenset)
        self.assertEqual(health.snapshot(), EPGroupHealthSnapshot(0b1010, 2, frozenset([0, 2]), 2))
        self.assertEqual(repr(health), "EPGroupHealth(ep_size=4, active_count=2, failed_ranks=[0, 2], "
                                       "generation=2)")
        self.assertEqual(len(health), 4)
        self.assertTrue(health.mark_active(2))
        self.assertEqual(health.snapshot(), (0b1110, 3, {0}, 3))

    def test_what_is_so_already_changes_nothing(self):
        health = EPGroupHealth(3)
        self.assertFalse(health.mark_active(1))
        self.assertEqual(health.generation, 0)
        self.assertTrue(health.mark_failed(1))
        before = health.snapshot()
        for _ in range(3):
            self.assertFalse(health.mark_failed(1))
        self.assertEqual(health.snapshot(), before)
        self.assertTrue(health.mark_active(1))
        self.assertFalse(health.mark_active(1))
        self.assertEqual(health.generation, 2)
        self.assertEqual(before, (0b101, 2, {1}, 1))  # It stays what it was.

    def test_snapshot_does_not_change(self):
        health = EPGroupHealth(16)
        health.mark_failed(3)
        now, failed = health.snapshot(), health.get_failed_ranks()
        self.assertEqual((now.mask, now.active_count, now.failed_ranks, now.generation), now)
        with self.assertRaises(AttributeError):
            now.generation = 2
        health.mark_failed(4)
        self.assertEqual((now.failed_ranks, failed, now.generation), ({3}, {3}, 1))
        self.assertEqual(health.get_failed_ranks(), {3, 4})

    def test_all_ranks_fail(self):
        health = EPGroupHealth(1)
        self.assertTrue(health.mark_failed(0))
        self.assertEqual(health.snapshot(), (0, 0, {0}, 1))
        self.assertEqual(health.get_mask_words(1), (0,))

    def test_words(self):
        health, ranks = EPGroupHealth(256), (0, 63, 64, 127, 128, 191, 192, 255)
        self.assertEqual(health.get_mask_words(4), (2**64 - 1,) * 4)
        self.assertEqual(health.get_mask_words(num_words=5)[4], 0)
        for rank in ranks:
            health.mark_failed(rank)
        self.assertEqual(health.get_mask_words(4), (2**63 - 2,) * 4)
        self.assertEqual(health.get_mask(), 2**256 - 1 - sum(2**rank for rank in ranks))
        self.assertEqual(health.get_active_count(), 248)
        for few in (-1, 0, 2, 3):
            with self.assertRaisesRegex(ValueError, f"num_words is {few}, expected 4 or more for 256"):
                health.get_mask_words(few)
        self.assertEqual(EP_MASK_NUM_WORDS, 2)
        self.assertEqual(EPGroupHealth(8).get_mask_words(4), (255, 0, 0, 0))
        self.assertEqual(EPGroupHealth(64).get_mask_words(1), (2**64 - 1,))
        raises(ValueError, "num_words is 1, expected 2 or more for 72", EPGroupHealth(72).get_mask_words, 1)
        self.assertEqual(EPGroupHealth(72).get_mask_words(), (2**64 - 1, 2**8 - 1))
        self.assertEqual(EPGroupHealth(128).get_mask_words(), (2**64 - 1,) * 2)
        raises(ValueError, "expected 3 or more for 129 ranks", EPGroupHealth(129).get_mask_words)

    def test_refusals(self):
        for size in (0, -1):
            raises(ValueError, f"ep_size is {size}", EPGroupHealth, size)
        health = EPGroupHealth(8)
        for call in (health.mark_failed, health.mark_active, health.is_active):
            for rank in (-1, 8, 64):
                raises(ValueError, f"rank is {rank}, expected 0 to 7: ep_size is 8", call, rank)
        self.assertEqual(health.snapshot(), (255, 8, frozenset(), 0))

    def test_threads(self):
        """128 threads flip ranks while others look. Each snapshot agrees with itself, and generations
        count the changes."""
        size, flips, threads = 32, 60, 128
        health, changes, problems, flipping = EPGroupHealth(size), [0] * threads, [], True
        start = threading.Barrier(threads + 2)

        def flip(me):
            draw = random.Random(me)
            start.wait()
            for _ in range(flips):
                mark = draw.choice((health.mark_failed, health.mark_active))
                changes[me] += mark(draw.randrange(size))

        def look():
            start.wait()
            last = EPGroupHealthSnapshot(-1, 0, None, -1)
            while flipping and not problems:
                now = health.snapshot()
                mask = sum(1 << rank for rank in range(size) if rank not in now.failed_ranks)
                if (now.mask != mask or now.active_count != bin(mask).count("1")
                        or now.generation < last.generation
                        or now.generation == last.generation and now != last):
                    problems.append((last, now))
                last = now

        flippers = [threading.Thread(target=flip, args=(me,)) for me in range(threads)]
        lookers = [threading.Thread(target=look) for _ in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # Threads take turns in the midst of calls.
        try:
            for thread in flippers + lookers:
                thread.start()
            for thread in flippers:
                thread.join()
            flipping = False
            for thread in lookers:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(problems, [])
        self.assertGreater(sum(changes), 0)
        self.assertEqual(health.generation, sum(changes))

    def test_threads_mark_at_once(self):
        """Of threads that mark one rank one changes something, and of those that mark one each all do."""
        for ranks, changed in (([3] * 128, 1), (range(128), 128)):
            health, start, answers = EPGroupHealth(128), threading.Barrier(128), []

            def mark(rank):
                start.wait()
                answers.append(health.mark_failed(rank))

            threads = [threading.Thread(target=mark, args=(rank,)) for rank in ranks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((sum(answers), len(answers)), (changed, 128))
            mask = 2**128 - 1 - sum(2**rank for rank in set(ranks))
            self.assertEqual(health.snapshot(), (mask, 128 - changed, set(ranks), changed))

    def test_follow(self):
        run(3, follows, killed=(1,))


if __name__ == "__main__":
    main(globals())
