// SPDX-License-Identifier: MIT
/*
 * The agreement of living ranks on who goes on, with deaths at any step and time-outs of any wait.
 *
 * Code: detail::view_agreement::agree (include/peerbus/communicator/view_agreement.ipp), called by
 * communicator::continue_without_the_dead, and the waits of an exchange around it, which end by the
 * death of a member of the view (membership::health, exchange_core). Here an operation is one: each
 * rank of a view raises its signal to the number of the view, and waits for those of all members.
 * If the deadline of any wait passes, the rank agrees, or agrees anew from the view that it is in:
 * what it has written stays on its board. It still knows the deaths that it has noticed, and learns
 * again from the boards what others know.
 *
 * What is left out: a board is written and read in one step, as its two counters promise; that a
 * rank which died does nothing any more, and that its death is noticed sooner or later, is given.
 * Of a rank's reads of the others' boards each is a step of its own. A death may be noticed late.
 *
 * Proved, for RANKS ranks of which any CRASHES may die, rank 0 too, and any TIMEOUTS deadlines pass:
 * - Two living ranks that are in a view of the same number have the same set of ranks.
 * - A rank that completes an operation of a view got the signal of this view from every member, and
 *   not that of a later one, which a slow rank might take for it.
 * - A rank that lives is never left out.
 * - No rank waits for ever: whenever all that live wait, they wait in an operation that is complete,
 *   or nobody is left.
 *
 * BROKEN_FIRST_SET: a rank decides as soon as it has read all boards, without waiting until they have
 * its own set. BROKEN_NUMBER: the next view counts from the rank's own view only.
 * BROKEN_DEADLINE_DECIDES: a rank whose deadline passes goes on with the set that it has.
 */

#ifndef RANKS
#define RANKS 3
#endif
#ifndef CRASHES
#define CRASHES (RANKS - 1)
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1
#endif
#define VIEWS (2 * RANKS)
#define ALL ((1 << RANKS) - 1)
#define BIT(r) (1 << (r))

byte written_set[RANKS];    /* gone ranks, as bits */
byte written_view[RANKS];
byte revised[RANKS];
byte signal[RANKS];         /* 1 + the view of the operation */
byte dead;                  /* as bits */
byte crashes = CRASHES;
byte timeouts = TIMEOUTS;   /* that are left */
byte view_of[RANKS];        /* the view that a rank is in, and its set */
byte set_of[RANKS];

/* A rank may die before any step. */
#define STEP                                                        \
  if                                                                \
  :: crashes > 0 -> atomic { crashes--; dead = dead | BIT(me); goto died } \
  :: true                                                           \
  fi

/* The deadline of a wait passes. */
#define TIMES_OUT atomic { timeouts > 0 -> timeouts-- }

inline enter() {
  d_step {
    assert(view < VIEWS);
    assert(!(gone & BIT(me)));
    assert((gone & ~dead) == 0); /* only the dead are left out */
    view_of[me] = view;
    set_of[me] = gone;
    noticed = 0;
    peer = 0;
    do
    :: peer == RANKS -> break
    :: peer < RANKS ->
       assert((dead & BIT(peer)) || view_of[peer] != view || set_of[peer] == gone);
       peer++
    od
  }
}

proctype rank(byte me) {
  byte view = 0, gone = 0, next, peer, awaited, seen;
  byte noticed = 0; /* deaths in this view that the rank has seen itself */
  bool has_grown, is_written;

  enter();
operate:
  STEP;
  signal[me] = view + 1;
  peer = 0;
  do
  :: peer == RANKS -> break
  :: peer < RANKS && (peer == me || (gone & BIT(peer))) -> peer++
  :: peer < RANKS && peer != me && !(gone & BIT(peer)) ->
     STEP;
     if
     :: signal[peer] > view -> /* what was raised before a death counts */
        assert(signal[peer] == view + 1);
        peer++
     :: (dead & ~gone) != 0 -> goto agree
     :: TIMES_OUT -> goto agree
     fi
  od;
  /* The operation is complete. The next one of this view ends by a death only. */
end_idle:
  do
  :: (dead & ~gone) != 0 -> break
  :: TIMES_OUT -> break
  :: crashes > 0 -> atomic { crashes--; dead = dead | BIT(me); goto died }
  od;

agree:
  atomic { is_written = false; gone = set_of[me] | noticed };
again:
  STEP;
  d_step { has_grown = false; next = view; awaited = RANKS; peer = 0 }
  /* Which of the deaths it notices now is open. */
  do
  :: peer == RANKS -> break
  :: peer < RANKS ->
     if
     :: (dead & BIT(peer)) && !(gone & BIT(peer)) ->
        d_step { gone = gone | BIT(peer); noticed = noticed | BIT(peer); has_grown = true }
     :: true
     fi;
     peer++
  od;
  peer = 0;
  do
  :: peer == RANKS -> break
  :: peer < RANKS && (peer == me || (gone & BIT(peer))) -> peer++
  :: peer < RANKS && peer != me && !(gone & BIT(peer)) ->
     STEP;
     d_step {
       assert(!(written_set[peer] & BIT(me)));
       if
       :: written_set[peer] & ~gone -> gone = gone | written_set[peer]; has_grown = true
       :: else
       fi;
#ifndef BROKEN_NUMBER
       if
       :: written_view[peer] > next -> next = written_view[peer]
       :: else
       fi;
#endif
       if
       :: written_set[peer] != gone && awaited == RANKS -> awaited = peer; seen = revised[peer]
       :: else
       fi;
       peer++
     }
  od;
  if
  :: has_grown || !is_written ->
     if
     :: gone == set_of[me] -> goto again_later /* nobody is gone that it has noticed */
     :: else ->
        STEP;
        d_step { written_set[me] = gone; written_view[me] = view; revised[me]++ }
        is_written = true;
        goto again
     fi
  :: else
  fi;
#ifndef BROKEN_FIRST_SET
  if
  :: awaited != RANKS ->
     /* Waits until that board is written again, or a rank outside the set dies. */
     if
     :: revised[awaited] != seen -> goto again
     :: (dead & ~gone) != 0 -> goto again
#ifdef BROKEN_DEADLINE_DECIDES
     :: TIMES_OUT
#else
     :: TIMES_OUT -> goto agree
#endif
     fi
  :: else
  fi;
#endif
  view = next + 1;
  enter();
  goto operate;

again_later:
  if
  :: (dead & ~gone) != 0 -> goto again
  :: true -> goto operate /* in the view that it is in: `noticed` passes */
  fi;

died:
  skip
}

init {
  byte r;
  atomic {
    r = 0;
    do
    :: r == RANKS -> break
    :: r < RANKS -> run rank(r); r++
    od
  }
}
