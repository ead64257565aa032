// SPDX-License-Identifier: MIT
//
// Model of the agreement on the next view (view_agreement.pml) among ranks that share no memory, which tell each other
// by messages, and of ranks that are put out although they live. It follows
//   communicator/view_agreement.ipp   agree, require_member, wait
//   communicator/posted_boards.ipp    post_set, take
//
// Who runs. A rank agrees when a message or an end tells it of somebody who is gone, or when its caller names another
// rank (continue_without), which EVICTIONS callers do. Who is named may stop forever, and lives. Who reads its own name
// leaves. Up to CRASHES ranks die before any step.
//
// Messages. Between any two ranks they come in their order. Of what a rank posted before it died, each other
// rank has any part from the beginning, and then sees the end. Of who leaves, each has all.
//
// Proved:
//  - Ranks that live, and are in a view of the same number, have the same set of ranks, unless one has put out the other.
//  - Nobody is left out but who has died, left or been named.
//  - Who is put out may still come to a view that the others have been in with it, and to none that they are in without.
//  - Nobody waits forever: there is no state in which a rank waits and nothing moves.
//
// Not proved: the same with ranks that leave without having been named, and the rule for ranks that are out of reach
// (require_enough). With EVICTIONS=2, two ranks that name each other at the same moment both go on: the test
// model.posted_views.name_each_other shows it, as the docstring of continue_without says.

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

chan wire[RANKS * RANKS] = [RANKS] of { byte, byte }; // [from][to]: a set of gone ranks, and the view of who posts it
#define WIRE(from, to) wire[(from) * RANKS + (to)]

byte crashed; // ranks, as bits, here and below
byte left;
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
      WIRE(from, me)?sets[from], views[from];                                                  \
      has_news = has_news || !(gone & BIT(from))                                               \
    }                                                                                          \
  :: atomic {                                                                                  \
      from < RANKS && from != me && !(ended & BIT(from)) &&                                    \
      ((crashed & BIT(from)) || ((left & BIT(from)) && empty(WIRE(from, me)))) ->              \
      do                                                                                       \
      :: nempty(WIRE(from, me)) -> WIRE(from, me)?_, _                                         \
      :: empty(WIRE(from, me)) -> break                                                        \
      od;                                                                                      \
      ended = ended | BIT(from);                                                               \
      has_news = has_news || !(gone & BIT(from))                                               \
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

proctype rank(byte me) {
  byte view;
  byte present; // who is gone in its view
  byte gone;    // and whom it knows to be gone
  byte ended;   // whose end it has seen
  byte sets[RANKS];
  byte views[RANKS];
  bool has_news, has_grown, is_written;
  byte p, next, awaited;

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
        :: sets[p] & BIT(me) -> goto evicted
#endif
        :: else ->
          if
          :: gone & BIT(p)
          :: else ->
            has_grown = has_grown || (sets[p] & ~gone) != 0;
            gone = gone | sets[p];
            if
            :: gone & BIT(p)
            :: else ->
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
        do
        :: p == RANKS -> p = 0; break
        :: p < RANKS ->
          if
          :: p != me -> WIRE(me, p)!gone, view
          :: else
          fi;
          p++
        od;
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
        is_written = false;
        goto again
      }
    :: DIES
    :: STOPS
    od
  :: else
  fi;
#endif
  atomic {
    assert(!(gone & BIT(me)));
    assert((gone & ~(crashed | left | named)) == 0);
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
    goto end_idle
  }

evicted:
  atomic {
    assert(named & BIT(me));
    left = left | BIT(me);
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
