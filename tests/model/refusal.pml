// SPDX-License-Identifier: MIT
//
// Model of refusals: how all ranks of an exchange agree that a dispatch or a combine does not happen,
// also when a rank dies or gives up waiting. It follows
//   moe/engine/exchange_core.ipp     begin_dispatch, advance, next_ready, end_dispatch,
//                                    begin_combine, announce_outputs, finish_combine
//   moe/control/control_protocol.ipp counts_first: post, place, after_send, receive, abandon
//   moe/control/control_messages.ipp post_counts, post_verdict, announce, await_all, refused,
//                                    fail, fail_waiting
//   moe/control/batch.hpp            batch::begin, refuse, undo
//   moe/plan/refusal.hpp             verdict, with the epoch in it
//   communicator/rank_group.ipp      fail, poison, require_healthy
//   bootstrap/membership.ipp         announce, health, and the pidfd that tells of a death
//   core/signal.ipp                  wait_slowly: a value that came counts, then health, then time
//
// Who runs. All ranks make the same calls in the same order: dispatch_send, dispatch_recv, and
// combine in one call. The rank that comes first to a place in the order chooses any call that a
// correct program may make there, and the others make the same. So the search covers all orders with
// DISPATCHES dispatches and ATTEMPTS combines of each set. In each dispatch_send and each combine,
// each rank may find its own input bad.
//
// What may happen besides. One rank dies before any of its stores, or while it waits. The others
// learn of it later. The deadline of any wait passes at any time. A rank whose wait fails makes no
// further call, as its communicator is poisoned; it tells the others by its state, or catches the
// error and lives on silently.
//
// Memory. Each store to a peer is a step of its own, and signals are, too. Stores become visible at
// once and in order; slot_reuse.pml has puts that arrive late and in another order. What a dying rank
// has not stored is never seen.
//
// Proved, for DISPATCHES dispatches:
//  - If a rank refuses a dispatch or an attempt to combine, no rank does it, and each other rank names a
//    rank that refused. If none refuses, all ranks do it, unless a rank died or a wait was given up.
//  - Nobody writes rows of a refused dispatch, and the rows that the set held are as they were.
//  - A refusal leaves nothing behind: later dispatches and combines, refused or not, are again as above,
//    and read the messages, rows and verdicts of their own numbers.
//  - No wait ends with peer_dead while all ranks live and keep their deadlines.
//  - Nobody waits forever: there is no state in which a rank waits and nothing moves.
//    -DNO_TIMEOUT shows that for waits without a deadline: those for a dead rank end by the membership.
//    -DLIVENESS -DNO_TIMEOUT shows it as an LTL formula as well.
//
// Not proved: anything about more dispatches, attempts, batches in flight or deaths.
//
// Abstracted. All reasons are one. Bounds that differ, which each rank finds by comparing, are left
// out, and so are layouts with slots (one_phase), staging and `settle`, lanes, outputs, and exchanges in
// two levels (refuse_ahead, await_called). Ranks are those of one view: what the ranks that are left do
// after a failure (exchange_core::resume) is not here. A combine is one call: an objection in combine_recv is that
// rank's own and tells nobody.

#ifndef RANKS
#define RANKS 2
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT 1
#endif
#ifndef DISPATCHES
#define DISPATCHES 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif

#ifdef BROKEN_FEW_GENERATIONS // of messages of counts
#define GENERATIONS (2 * IN_FLIGHT - 1)
#else
#define GENERATIONS (2 * IN_FLIGHT)
#endif
#ifdef BROKEN_ONE_VERDICT // for all attempts of a set
#define VERDICTS 1
#else
#define VERDICTS 2
#endif

// batch::reached, and what a program knows of a set
#define IDLE 0
#define COUNTED 1
#define SENT 2
#define RECEIVED 3
#define RETURNED 4

#define SET(n) ((n) % IN_FLIGHT)
// Which place among those of a set belongs to source rank p in dispatch n: another one each time.
#define PLACE(p, n) (((p) + (n) / IN_FLIGHT) % RANKS)
#define PAIR(d, p) ((d) * RANKS + (p))
#define AT(rank, set) ((rank) * IN_FLIGHT + (set))
#define ROW_AT(d, set, place) (AT(d, set) * RANKS + (place))
#define COUNTS_AT(d, p, n) (PAIR(d, p) * GENERATIONS + (n) % GENERATIONS)
#define VERDICT_AT(d, p, set, attempt) ((PAIR(d, p) * IN_FLIGHT + (set)) * VERDICTS + (attempt) % VERDICTS)
#define SIGNAL_AT(d, p, set) (PAIR(d, p) * IN_FLIGHT + (set))

// A record: the epoch, and whether the rank refuses.
#define RECORD(epoch, refuses) (2 * (epoch) + (refuses))
#define EPOCH(record) ((record) / 2)
#define REFUSES(record) ((record) % 2)

// The window of rank d.
byte counts[RANKS * RANKS * GENERATIONS];
byte verdicts[RANKS * RANKS * IN_FLIGHT * VERDICTS];
byte rows[RANKS * IN_FLIGHT * RANKS];
byte counts_signal[RANKS * RANKS * IN_FLIGHT];
byte rows_signal[RANKS * RANKS * IN_FLIGHT];
byte outputs_signal[RANKS * RANKS * IN_FLIGHT];

// Memory that rank d may read: the dispatch, or 0.
byte rows_held[RANKS * IN_FLIGHT];
byte counts_held[RANKS * IN_FLIGHT];

// The membership.
bool crashed[RANKS];
bool failed[RANKS]; // as membership::health sees it
bool has_left[RANKS];
byte deaths;

// For the properties: of each dispatch and each attempt, which ranks refused it, whether a rank has done
// it, and how many ranks know how it ended. When all do, the entry is cleared, as it would only tell
// states apart that do not differ otherwise.
typedef operation {
  byte objectors; // a bit for each rank
  bool done;
  byte known_at
};
operation dispatches[DISPATCHES + 1];
operation combines[IN_FLIGHT * (ATTEMPTS + 1)];
bool trouble;     // a rank died, or a wait was given up
byte ended;

inline object(which) {
  d_step {
    assert(!which.done);
    which.objectors = which.objectors | (1 << me)
  }
}
// This rank learns that the operation is done, or that `refuser` refuses it.
inline learn(which, refuser) {
  d_step {
    if
    :: refuser == RANKS -> assert(which.objectors == 0); which.done = true
    :: else -> assert(which.objectors & (1 << (refuser)))
    fi;
    which.known_at++;
    if
    :: which.known_at == RANKS -> which.objectors = 0; which.done = false; which.known_at = 0
    :: else
    fi
  }
}

// Calls as numbers; those of a set are followed by those of the next set.
#define SEND 1
#define RECEIVE 2
#define COMBINE (RECEIVE + IN_FLIGHT)
#define END (COMBINE + IN_FLIGHT)

// The calls that other ranks have made and this one has not. The rank whose list is empty is the
// first, and chooses the next call.
chan to_make[RANKS] = [2 * DISPATCHES + ATTEMPTS * IN_FLIGHT + 1] of { byte };

#ifdef NO_CRASH
#define MAY_DIE false
#else
#define MAY_DIE (deaths == 0)
#endif
#ifdef NO_TIMEOUT
#define MAY_TIME_OUT false
#else
#define MAY_TIME_OUT true
#endif

// One step: it happens, or the rank dies before.
#define STEP(...)                         \
  if                                      \
  :: atomic { true -> __VA_ARGS__ }       \
  :: MAY_DIE -> goto dies                 \
  fi

// Does something for each rank q, as one step.
#define FOR_RANKS(...)                \
  d_step {                            \
    q = 0;                            \
    do                                \
    :: q < RANKS -> __VA_ARGS__; q++  \
    :: else -> break                  \
    od;                               \
    q = 0                             \
  }

// The peers. With two ranks the first is also the last.
#define FIRST ((me + 1) % RANKS)
#define FINAL ((me + RANKS - 1) % RANKS)
// Does something for each peer p, as a step each.
#if RANKS == 2
#define STEP_FOR_PEERS(...) STEP(p = FIRST; __VA_ARGS__)
#else
#define STEP_FOR_PEERS(...) STEP(p = FIRST; __VA_ARGS__); STEP(p = FINAL; __VA_ARGS__)
#endif
#define CAME(signal, p, set, least) (signal[SIGNAL_AT(me, p, set)] >= (least))
#define ALL_CAME(signal, set, least) (CAME(signal, FIRST, set, least) && CAME(signal, FINAL, set, least))

// membership::health: a peer has failed, or one that is awaited has left.
#ifdef BROKEN_NO_HEALTH // Waits do not look at the membership.
#define IS_HOPELESS(signal, set, least) false
#else
#define IS_HOPELESS(signal, set, least)                      \
  (failed[FIRST] || failed[FINAL] ||                         \
   (has_left[FIRST] && !CAME(signal, FIRST, set, least)) ||  \
   (has_left[FINAL] && !CAME(signal, FINAL, set, least)))
#endif

// await_all: goes on once the signals of all peers are at least `least`, or fails.
#define AWAIT_ALL(signal, set, least)                                                          \
  if                                                                                           \
  :: ALL_CAME(signal, set, least)                                                              \
  :: !ALL_CAME(signal, set, least) && IS_HOPELESS(signal, set, least) -> assert(trouble); goto fails \
  :: !ALL_CAME(signal, set, least) && MAY_TIME_OUT -> trouble = true; goto fails               \
  :: MAY_DIE -> goto dies                                                                      \
  fi

// control_messages::refused: the lowest peer q whose record refuses this epoch, or RANKS.
#ifdef BROKEN_NO_EPOCH // A record of another attempt is taken for one of this.
#define IS_OF(record, epoch) true
#else
#define IS_OF(record, epoch) (EPOCH(record) == (epoch))
#endif
#define FIND_REFUSER(record_of_q, epoch)                                         \
  d_step {                                                                       \
    refuser = RANKS;                                                             \
    q = 0;                                                                       \
    do                                                                           \
    :: q < RANKS ->                                                              \
      if                                                                         \
      :: q != me && IS_OF(record_of_q, epoch) && REFUSES(record_of_q) -> refuser = q; break \
      :: else                                                                    \
      fi;                                                                        \
      q++                                                                        \
    :: else -> break                                                             \
    od;                                                                          \
    q = 0                                                                        \
  }

// This rank writes its message of dispatch n at rank d.
inline write_counts(d, n) {
  d_step {
    q = 0;
    do
    :: q < IN_FLIGHT ->
      assert(counts_held[AT(d, q)] == 0 || counts_held[AT(d, q)] % GENERATIONS != n % GENERATIONS);
      q++
    :: else -> break
    od;
    q = 0;
    counts[COUNTS_AT(d, me, n)] = RECORD(n, objects)
  }
}
inline write_row(d, n) {
  d_step {
    assert(dispatches[n].objectors == 0);
    assert(rows_held[AT(d, SET(n))] == 0);
    rows[ROW_AT(d, SET(n), PLACE(me, n))] = n
  }
}
// The rows that this rank reads are those of dispatch n.
inline rows_are(n) {
  FOR_RANKS(assert(rows[ROW_AT(me, SET(n), q)] == n))
}

// Whether this rank finds its input bad.
inline look_at_input() {
  if
  :: objects = 1
  :: objects = 0
  fi
}

// dispatch_recv of a dispatch that is refused.
inline end_refused() {
  learn(dispatches[wanted], refused_by[s] - 1);
  known[s] = before[s];
  refused_by[s] = 0;
  before[s] = 0;
  held[s] = 0;
  wanted = 0
}

// The calls of a set that a correct program may make.
#define CALLS_OF(s)                                                                   \
  :: known[s] == COUNTED -> call = RECEIVE + (s)                                      \
  :: known[s] == RECEIVED && attempts[s] < ATTEMPTS -> call = COMBINE + (s)
#if IN_FLIGHT == 1
#define NONE_ON_ITS_WAY (known[0] != COUNTED)
#else
#define NONE_ON_ITS_WAY (known[0] != COUNTED && known[1] != COUNTED)
#endif

inline next_call() {
  if
  :: nempty(to_make[me]) -> to_make[me]?call
  :: empty(to_make[me]) ->
    if
    :: latest < DISPATCHES && known[SET(latest + 1)] != COUNTED -> call = SEND
    CALLS_OF(0)
#if IN_FLIGHT > 1
    CALLS_OF(1)
#endif
    :: latest == DISPATCHES && NONE_ON_ITS_WAY -> call = END
    fi;
    FOR_RANKS(if :: q != me -> to_make[q]!call :: else fi)
  fi;
  if
  :: call == SEND -> s = SET(latest + 1)
  :: else -> s = (call - RECEIVE) % IN_FLIGHT
  fi
}

// The attempt under way.
#define COMBINE_OF(s) combines[(s) * (ATTEMPTS + 1) + attempts[s]]

// An atomic block ends where others may come in between. Within a block this rank only waits for
// signals, or does what nobody else could tell from doing it a moment later.
proctype rank(byte me) {
  byte call = 0;
  byte latest = 0;           // batch_ring::latest
  byte known[IN_FLIGHT];     // of a set, the same at all ranks that have made the same calls
  byte before[IN_FLIGHT];    // what was known before the dispatch under way
  bool counted[IN_FLIGHT];   // batch::reached is `counted`: its rows have not left
  byte held[IN_FLIGHT];      // the dispatch whose rows the set held before
  byte numbers[IN_FLIGHT];   // of the latest dispatch of the set, refused or not
  byte refused_by[IN_FLIGHT];  // 1 + the rank that refused it; 0 if it is not refused
  byte attempts[IN_FLIGHT];  // batch::combines
  byte s = 0;                // the set of the call
  byte wanted = 0;           // of advance
  byte at = 0;
  byte q = 0;
  byte p = FIRST;
  byte refuser = 0;
  bit objects = 0;

next:
  atomic {
    next_call();
    if
    :: call == SEND -> goto dispatch_send
    :: call >= RECEIVE && call < COMBINE -> wanted = numbers[s]
    :: call >= COMBINE && call < END -> goto combine
    :: call == END -> has_left[me] = true; goto ends
    fi;
    if
    :: refused_by[s] == me + 1 -> // This rank has no ticket.
      end_refused();
      goto next
    :: else -> goto advance
    fi
  };

dispatch_send: // begin_dispatch
  atomic {
    look_at_input();
    latest++;
    numbers[s] = latest;
    before[s] = known[s];
    known[s] = COUNTED;
    refused_by[s] = 0;
    if
    :: objects ->
      // What the set holds stays readable, as this refusal keeps rows from being written.
      object(dispatches[latest]);
      refused_by[s] = me + 1
    :: else ->
      held[s] = rows_held[AT(me, s)];
      rows_held[AT(me, s)] = 0;
      counted[s] = true
    fi;
    write_counts(me, latest)
  };
#ifdef BROKEN_REFUSER_SILENT // The rank with bad input throws, and tells nobody.
  if
  :: objects -> goto after_refusal
  :: else
  fi;
#endif
#ifdef BROKEN_SIGNALS_FIRST // before what they announce
  STEP_FOR_PEERS(counts_signal[SIGNAL_AT(p, me, s)] = latest);
#endif
  // counts_first::post: post_counts, then announce
  STEP_FOR_PEERS(write_counts(p, latest));
  STEP_FOR_PEERS(counts_signal[SIGNAL_AT(p, me, s)] = latest);
  if
  :: objects ->
#ifndef BROKEN_REFUSER_AHEAD // The rank with bad input waits for nobody.
    AWAIT_ALL(counts_signal, s, latest);
#endif
after_refusal:
    atomic {
      objects = 0;
      goto next
    }
  :: else
  fi;
#ifdef BROKEN_ROWS_AT_ONCE // Rows leave without waiting for counts.
  STEP_FOR_PEERS(write_row(p, latest));
#endif

advance: // Sends the rows of batches whose counts are complete, and waits for those up to `wanted`.
  atomic {
    if
    :: latest > IN_FLIGHT -> at = latest - IN_FLIGHT + 1 // batch_ring::oldest
    :: else -> at = 1
    fi
  };
next_ready:
  atomic {
    do
    :: at <= latest && (!counted[SET(at)] || refused_by[SET(at)] != 0) -> at++
    :: else -> break
    od;
    if
    :: at > latest -> goto no_more
    :: else
    fi;
    // counts_first::place
    if
    :: at > wanted && !ALL_CAME(counts_signal, SET(at), at) -> goto no_more
    :: at > wanted && ALL_CAME(counts_signal, SET(at), at)
    :: at <= wanted -> AWAIT_ALL(counts_signal, SET(at), at)
    fi
  };
  atomic {
    FIND_REFUSER(counts[COUNTS_AT(me, q, at)], at);
    if
    :: refuser < RANKS ->
      refused_by[SET(at)] = refuser + 1;
      refuser = 0;
      goto next_ready
    :: else
    fi;
    refuser = 0;
    FOR_RANKS(assert(counts[COUNTS_AT(me, q, at)] == RECORD(at, 0)));
    counts_held[AT(me, SET(at))] = at;
    write_row(me, at)
  };
#ifndef BROKEN_ROWS_AT_ONCE
  STEP_FOR_PEERS(write_row(p, at));
#endif
  STEP_FOR_PEERS(rows_signal[SIGNAL_AT(p, me, SET(at))] = at);
  // after_send has read the counts again.
  atomic {
    counts_held[AT(me, SET(at))] = 0;
    counted[SET(at)] = false;
    goto next_ready
  };

no_more:
  atomic {
    at = 0;
    if
    :: call == SEND -> goto next
    :: call >= COMBINE -> goto finish_combine
    :: else
    fi;
    // end_dispatch
    if
    :: refused_by[s] != 0 ->
      // abandon: batch::undo
      counted[s] = false;
      rows_held[AT(me, s)] = held[s];
      if
      :: held[s] != 0 -> rows_are(held[s])
      :: else
      fi;
      end_refused();
      goto next
    :: else
    fi;
    AWAIT_ALL(rows_signal, s, wanted);
    learn(dispatches[wanted], RANKS);
    rows_are(wanted);
    rows_held[AT(me, s)] = wanted;
    known[s] = RECEIVED;
    before[s] = 0;
    held[s] = 0;
    wanted = 0;
    goto next
  };

combine: // begin_combine
  atomic {
    look_at_input();
    attempts[s]++;
    if
    :: objects -> object(COMBINE_OF(s))
    :: else
    fi
  };
  // announce_outputs
  if
  :: objects ->
    STEP_FOR_PEERS(verdicts[VERDICT_AT(p, me, s, attempts[s])] = RECORD(attempts[s], 1))
  :: else
  fi;
  STEP_FOR_PEERS(outputs_signal[SIGNAL_AT(p, me, s)] = attempts[s]);
  goto advance;
finish_combine:
  AWAIT_ALL(outputs_signal, s, attempts[s]);
  atomic {
    FIND_REFUSER(verdicts[VERDICT_AT(me, q, s, attempts[s])], attempts[s]);
    if
    :: objects -> refuser = me
    :: else
    fi;
    learn(COMBINE_OF(s), refuser);
    if
    :: refuser == RANKS -> known[s] = RETURNED
    :: else // It stays `received`.
    fi;
    refuser = 0;
    objects = 0;
    goto next
  };

dies:
  atomic {
    deaths++;
    trouble = true;
    crashed[me] = true;
    goto ends
  };
fails: // control_messages::fail_waiting: rank_group::fail poisons the communicator and throws.
  if
  :: failed[me] = true // The exception ends the rank: membership::announce_end.
  :: skip              // Its caller catches it, and makes no more calls.
  fi;
ends:
  ended++
}

// The kernel tells of a death.
proctype pidfd(byte r) {
end:
  atomic { crashed[r] -> failed[r] = true }
}

init {
  atomic {
    byte r = 0;
    do
    :: r < RANKS ->
      run rank(r);
#ifndef NO_CRASH
      run pidfd(r);
#endif
      r++
    :: else -> break
    od;
    r = 0
  }
}

#ifdef LIVENESS
ltl all_end { <> (ended == RANKS) }
#endif
