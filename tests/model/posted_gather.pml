// SPDX-License-Identifier: MIT
//
// Model of a gather (gather.pml) among ranks that share no memory, which tell each other by messages. It
// follows
//   communicator/view_agreement.ipp   gather, gives_no_more, await_last_words
//   communicator/posted_boards.ipp    post_set, post_contribution, tell_contributions, take, ~posted_boards
//   bootstrap/detail/tcp_failure_detector.hpp   hear, learn
//
// Who runs. Each rank gives, and then takes what each of the others has given, one after the other. It fails
// if one of them gives no more: because it begins to agree on the next view, or because it has ended and all
// that live have told what they have of all that have ended. Who has failed posts the set of ranks that it
// knows to be gone. Who has come to an end may leave. Up to CRASHES ranks die before any step.
//
// Messages. Between any two ranks they come in their order. Of what a rank posted before it died, each other
// rank has any part from the beginning, and then sees the end. Of who leaves, each has all.
//
// Proved:
//  - Of the ranks that live, or have left, either all that come to an end have everything, or none has.
//  - Nobody waits forever: there is no state in which a rank waits and nothing moves.
//
// Not proved: the same where a connection fails while both its ranks live, or deadlines pass; gathers one after
// the other, of which two contributions of a rank may be on their way (posted_boards_test.cpp).

#ifndef RANKS
#define RANKS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif

#define BIT(r) (1 << (r))
#define ALL (BIT(RANKS) - 1)

mtype = { contribution, last_contribution, told, told_all, set };

chan wire[RANKS * RANKS] = [2 * RANKS + 2] of { mtype, byte }; // [from][to]
#define WIRE(from, to) wire[(from) * RANKS + (to)]

byte crashed;    // ranks, as bits, here and below
byte left;
byte has_all;    // how those that have come to an end did
byte has_failed;
byte deaths;

byte told_by[RANKS * RANKS]; // [observer][teller]: of whose end it has told what it had
#define TOLD(p) told_by[me * RANKS + (p)]

#define POST(kind, what)                                       \
  q = 0;                                                       \
  do                                                           \
  :: q == RANKS -> break                                       \
  :: q < RANKS && q == me -> q++                               \
  :: q < RANKS && q != me -> WIRE(me, q)!kind, what; q++       \
  od

// Posts the contributions of `of`, as far as this rank has them and has not posted them, but its own.
#define POST_CONTRIBUTIONS(of)                                         \
  r = 0;                                                       \
  do                                                           \
  :: r == RANKS -> break                                       \
  :: r < RANKS ->                                              \
    if                                                         \
    :: r != me && (has & (of) & ~posted & BIT(r)) ->           \
      posted = posted | BIT(r);                                \
      POST(last_contribution, r)                                       \
    :: else                                                    \
    fi;                                                        \
    r++                                                        \
  od

#ifdef BROKEN_LAST_ONLY // It tells of the rank that ended last only.
#define OF_ENDED(p) BIT(p)
#else
#define OF_ENDED(p) known
#endif
#ifdef BROKEN_TOLD_FIRST
#define TELL(p) known = known | BIT(p); POST(told, p); POST_CONTRIBUTIONS(OF_ENDED(p))
#else
#ifdef BROKEN_TELLS_NOTHING // Who has nothing says nothing.
#define TELL(p) known = known | BIT(p); POST_CONTRIBUTIONS(OF_ENDED(p))
#else
#define TELL(p) known = known | BIT(p); POST_CONTRIBUTIONS(OF_ENDED(p)); POST(told, p)
#endif
#endif

// Whether nobody who lives, as far as this rank knows, has anything to tell of the ranks `of`.
#define HAS_TOLD(t, of) ((t) == me || (ended & BIT(t)) || ((of) & ~TOLD(t)) == 0)
#define HAVE_TOLD(of) (HAS_TOLD(0, of) && HAS_TOLD(1, of) && HAS_TOLD(RANKS - 2, of) && HAS_TOLD(RANKS - 1, of))
// For up to 4 ranks.
#ifdef BROKEN_NO_TELLING // A rank that has ended gives no more at once.
#define LAST_WORDS(p) true
#else
#ifdef BROKEN_ONE_DEATH // It waits for what the others have of that rank only.
#define LAST_WORDS(p) HAVE_TOLD(BIT(p))
#else
#define LAST_WORDS(p) HAVE_TOLD(ended)
#endif
#endif

// A message of `from`, or the end of what it has sent.
#define HEAR(from)                                                                             \
  :: atomic {                                                                                  \
      from < RANKS && from != me && !(ended & BIT(from)) && nempty(WIRE(from, me)) ->          \
      WIRE(from, me)?kind, what;                                                               \
      if                                                                                       \
      :: kind == contribution -> has = has | BIT(from)                                                 \
      :: kind == last_contribution -> has = has | BIT(what)                                            \
      :: kind == told -> TOLD(from) = TOLD(from) | BIT(what)                                   \
      :: kind == told_all -> TOLD(from) = ALL                                                  \
      :: kind == set -> agrees = agrees | BIT(from); gone = gone | what                        \
      fi;                                                                                      \
      kind = 0; what = 0                                                                       \
    }                                                                                          \
  :: atomic {                                                                                  \
      from < RANKS && from != me && !(ended & BIT(from)) &&                                    \
      ((crashed & BIT(from)) || ((left & BIT(from)) && empty(WIRE(from, me)))) ->              \
      do                                                                                       \
      :: nempty(WIRE(from, me)) -> WIRE(from, me)?kind, what                                   \
      :: empty(WIRE(from, me)) -> break                                                        \
      od;                                                                                      \
      ended = ended | BIT(from);                                                               \
      TELL(from);                                                                              \
      kind = 0; what = 0; q = 0; r = 0                                                         \
    }
#define HEAR_ALL HEAR(0) HEAR(1) HEAR(2) HEAR(3)

#define DIES atomic { deaths < CRASHES -> deaths++; crashed = crashed | BIT(me); goto over }

proctype rank(byte me) {
  byte has;    // whose contributions it has
  byte ended;  // whose end it has seen
  byte known;  // of whose end it has told
  byte posted; // whose contributions it has posted again
  byte agrees; // from whom a set has come
  byte gone;   // what these name
  byte p, q, r;
  mtype kind;
  byte what;

  atomic { has = BIT(me); POST(contribution, me); q = 0 }
  do
  HEAR_ALL
  :: atomic { p < RANKS && (has & BIT(p)) -> p++ }
  :: atomic {
      p == RANKS ->
      assert((has_failed & ~crashed) == 0);
      has_all = has_all | BIT(me);
      break
    }
  :: atomic {
      p < RANKS && !(has & BIT(p)) &&
      ((agrees & BIT(p)) || ((ended & BIT(p)) && LAST_WORDS(p))) ->
      assert((has_all & ~crashed) == 0);
      has_failed = has_failed | BIT(me);
      gone = (gone | ended) & ~BIT(me);
      // Of who is gone it tells what it has, also if it has not seen that end itself.
      p = 0;
      do
      :: p == RANKS -> break
      :: p < RANKS ->
        if
        :: (gone & ~known & BIT(p)) -> TELL(p)
        :: else
        fi;
        p++
      od;
      POST(set, gone);
      q = 0; r = 0;
      break
    }
  :: DIES
  od;
  p = 0; agrees = 0;
end_listens:
  do
  HEAR_ALL
  :: DIES
  :: atomic {
#ifndef BROKEN_LEAVES_SILENTLY
      POST_CONTRIBUTIONS(ALL);
#endif
      POST(told_all, 0);
      left = left | BIT(me);
      break
    }
  od;
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
