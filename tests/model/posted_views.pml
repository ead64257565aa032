// SPDX-License-Identifier: MIT
//
// Model of the agreement on the next view (view_agreement.pml) among ranks that share no memory, which tell each other
// by messages, and of ranks that are put out although they live. It follows
//   communicator/view_agreement.ipp   agree, require_member, wait
//   communicator/posted_boards.ipp    post_set, take
//
// Who runs. A rank agrees when a message or an end tells it of somebody who is gone, or when its caller names another
// rank (continue_without), which EVICTIONS callers do, also at the same time. Who is named may stop forever, and lives.
// Who reads its own name says so, and does no more. Up to CRASHES ranks die before any step.
//
// A rank that is named is doubtful: it may live, and go on with others. A set with doubtful ranks is only decided by more
// than half of the view, or by half with its first member. Doubt ends when the rank has ended, or has said that it
// is out. Whose set is large enough heeds no name that it gets from a doubtful rank.
//
// Messages. Between any two ranks they come in their order. Of what a rank posted before it died, each other
// rank has any part from the beginning, and then sees the end.
//
// Proved:
//  - Ranks that live, and are in a view of the same number, have the same set of ranks, unless one has put out the other.
//  - Nobody is left out but who has died or been named.
//  - Who is put out may still come to a view that the others have been in with it, and to none that they are in without.
//  - So of ranks that name each other at the same time, at most one side goes on.
//  - Nobody waits forever: there is no state in which a rank waits and nothing moves, except that too few of the view wait
//    for a rank that is stopped, until their deadlines.
//
// Not proved: the same with ranks that leave, and with ranks that are out of reach; that a side goes on if a set that is
// too small names ranks of a larger one.

#ifndef RANKS
#define RANKS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 1
#endif

#define BIT(r) (1 << (r))
#define ALL (BIT(RANKS) - 1)

// [from][to]: a set of gone ranks, which of them are doubtful, and the view of who posts it
chan wire[RANKS * RANKS] = [RANKS + 1] of { byte, byte, byte };
#define WIRE(from, to) wire[(from) * RANKS + (to)]

byte crashed; // ranks, as bits, here and below
byte named;
byte stopped;
byte deaths;
byte evictions;
byte view_of[RANKS]; // the view that a rank is in, and who is gone in it
byte set_of[RANKS];

// A message of `from`, or the end of what it has sent. A rank notices what comes from those that it does not take for gone.
#define HEAR(from)                                                                             \
  :: atomic {                                                                                  \
      from < RANKS && from != me && !(ended & BIT(from)) && nempty(WIRE(from, me)) ->          \
      WIRE(from, me)?sets[from], doubts[from], views[from];                                    \
      has_news = has_news || !(gone & BIT(from)) || (doubt & BIT(from))                        \
    }                                                                                          \
  :: atomic {                                                                                  \
      from < RANKS && from != me && !(ended & BIT(from)) &&                                    \
      (crashed & BIT(from)) ->                                                                 \
      do                                                                                       \
      :: nempty(WIRE(from, me)) -> WIRE(from, me)?_, _, _                                      \
      :: empty(WIRE(from, me)) -> break                                                        \
      od;                                                                                      \
      ended = ended | BIT(from);                                                               \
      has_news = has_news || !(gone & BIT(from)) || (doubt & BIT(from))                        \
    }
#if RANKS == 2
#define HEAR_ALL HEAR(0) HEAR(1)
#elif RANKS == 3
#define HEAR_ALL HEAR(0) HEAR(1) HEAR(2)
#elif RANKS == 4
#define HEAR_ALL HEAR(0) HEAR(1) HEAR(2) HEAR(3)
#else
#error "expected 2 to 4 ranks"
#endif

#define DIES atomic { deaths < CRASHES -> deaths++; crashed = crashed | BIT(me); goto over }
#define STOPS atomic { named & BIT(me) -> stopped = stopped | BIT(me); goto end_stopped }

#define OTHERS (ALL & ~gone & ~BIT(me))
#define COUNT(set) (((set) & 1) + ((set) >> 1 & 1) + ((set) >> 2 & 1) + ((set) >> 3 & 1))
#define MEMBERS (ALL & ~present)
#define FIRST (MEMBERS & -MEMBERS)
#define LEFT COUNT(ALL & ~gone)
#ifndef BROKEN_QUORUM // Any number may decide.
#define ARE_ENOUGH (2 * LEFT > COUNT(MEMBERS) || (2 * LEFT == COUNT(MEMBERS) && !(gone & FIRST)))
#else
#define ARE_ENOUGH true
#endif
#define IS_OUT(p) ((ended & BIT(p)) || (sets[p] & BIT(p)))

#define POST(set, doubtful)                       \
  do                                              \
  :: p == RANKS -> p = 0; break                   \
  :: p < RANKS ->                                 \
    if                                            \
    :: p != me -> WIRE(me, p)!set, doubtful, view \
    :: else                                       \
    fi;                                           \
    p++                                           \
  od

proctype rank(byte me) {
  byte view;
  byte present; // who is gone in its view
  byte gone;    // and whom it knows to be gone
  byte doubt;   // and who of these may live and go on
  byte ended;   // whose end it has seen
  byte sets[RANKS];
  byte doubts[RANKS];
  byte views[RANKS];
  bool has_news, has_grown, is_written;
  byte p, next, awaited, unproved;

end_idle:
  do
  HEAR_ALL
  :: atomic { has_news -> break }
  :: atomic {
      evictions < EVICTIONS && OTHERS != 0 ->
      evictions++;
      do
      :: (OTHERS & BIT(p)) -> break
      :: (OTHERS >> (p + 1)) != 0 -> p++
      od;
      gone = gone | BIT(p);
      doubt = doubt | BIT(p);
      named = named | BIT(p);
      p = 0;
      break
    }
  :: DIES
  :: STOPS
  od;
  is_written = false;

again:
  atomic {
    has_news = false;
    has_grown = (ended & ~gone) != 0;
    gone = gone | ended;
    do
    :: p == RANKS -> break
    :: p < RANKS ->
      if
      :: (doubt & BIT(p)) && IS_OUT(p) ->
        doubt = doubt & ~BIT(p);
        is_written = is_written && ARE_ENOUGH
      :: else
      fi;
      p++
    od;
    unproved = doubt;
    next = view;
    awaited = RANKS;
    p = 0
  }
  do
  HEAR_ALL
  :: atomic {
      p < RANKS ->
      if
      :: p == me || (present & BIT(p))
      :: else ->
        if
#ifndef BROKEN_NAME // Who is put out does not look for its name.
        :: (sets[p] & BIT(me)) && !((doubt & BIT(p)) && ARE_ENOUGH) -> goto evicted
#endif
        :: else ->
          if
          :: gone & BIT(p)
          :: else ->
            has_grown = has_grown || (sets[p] & ~gone) != 0;
            doubt = doubt | (sets[p] & ~gone & doubts[p]);
            unproved = unproved | (sets[p] & ~gone & doubts[p]);
            gone = gone | sets[p];
            if
            :: gone & BIT(p)
            :: else ->
              unproved = unproved & doubts[p];
              next = (views[p] > next -> views[p] : next);
              awaited = (awaited == RANKS && sets[p] != gone -> p : awaited)
            fi
          fi
        fi
      fi;
      p++
    }
  :: atomic { p == RANKS -> p = 0; break }
  :: DIES
  :: STOPS
  od;
  atomic {
    if
    :: has_grown || !is_written ->
      if
      :: gone == present -> awaited = 0; next = 0; has_grown = false; goto end_idle
      :: else ->
        POST(gone, doubt);
        is_written = true;
        goto again
      fi
    :: else
    fi
  };
#ifndef BROKEN_FIRST_SET // It decides without waiting until the others have its own set.
  if
  :: awaited != RANKS ->
    do
    HEAR_ALL
    :: atomic { has_news -> goto again }
    :: atomic { // Its deadline passes, and its caller names who does not answer.
        stopped & BIT(awaited) ->
        gone = gone | BIT(awaited);
        doubt = doubt | BIT(awaited);
        is_written = false;
        goto again
      }
    :: DIES
    :: STOPS
    od
  :: else
  fi;
#endif
  if
  :: awaited == RANKS && unproved != 0 && !ARE_ENOUGH ->
end_too_few:
    do
    HEAR_ALL
    :: atomic { has_news -> goto again }
    :: DIES
    :: STOPS
    od
  :: else
  fi;
  atomic {
    assert(!(gone & BIT(me)));
    assert((gone & ~(crashed | named)) == 0);
    view = next + 1;
    present = gone;
    view_of[me] = view;
    set_of[me] = gone;
    do
    :: p == RANKS -> p = 0; break
    :: p < RANKS ->
      assert((crashed & BIT(p)) || view_of[p] != view || set_of[p] == gone || (gone & named & BIT(p)));
      assert((crashed & BIT(p)) || !(set_of[p] & BIT(me)) || view < view_of[p]);
      p++
    od;
    awaited = 0;
    next = 0;
    doubt = 0;
    unproved = 0;
    goto end_idle
  }

evicted:
  atomic {
    assert(named & BIT(me));
    p = 0;
    gone = present | BIT(me);
    POST(gone, 0);
    goto over
  }
end_stopped:
  false;
over:
  skip
}

init {
  atomic {
    byte r = 0;
    do
    :: r < RANKS -> run rank(r); r++
    :: else -> break
    od
  }
}
