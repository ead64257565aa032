// SPDX-License-Identifier: MIT
//
// Model of the reuse of an exchange's windows over several batches in flight: rows, outputs, what
// travels beside them, staging, and the messages of counts. It follows
//   moe/engine/exchange_core.ipp     begin_dispatch, advance, next_ready, end_dispatch,
//                                    begin_combine, announce_outputs, finish_combine, reopen
//   moe/control/control_protocol.ipp counts_first and one_phase: give_up, post, place, after_send,
//                                    receive
//   moe/control/control_messages.ipp post_counts, post_own_counts, announce, all_came, await_all
//   moe/engine/batch_ring.ipp        require_free, awaiting_rows, behind
//   moe/memory_map.hpp               how often each area exists, and which dispatch uses which
//   moe/path/direct_row_path.hpp, moe/path/staged_copies.ipp   send, publish
//
// Who runs. All ranks make the same calls in the same order: dispatch_send, dispatch_recv,
// combine_send, combine_recv and reopen. The order itself is not given. The rank that comes first to a
// place in the order chooses any call that the exchange does not refuse as misuse, and the others
// make the same call when they come there. So the search covers all orders with DISPATCHES
// dispatches, IN_FLIGHT of them on their way at most, batches that are never combined included.
//
// What moves. A put or a store to a peer is an item on a wire from one rank to another, and arrives at
// any time. Puts arrive in any order, also before signals that were sent earlier. A signal arrives
// when all puts and signals before it have arrived. It need not be later than that: a rank that sees a
// signal late is a rank that makes its next step late. Only `advance` makes something else of a signal
// that is missing, so it may take signals that are there for missing. Each rank has one row for each rank
// in a dispatch. As rows lie together, a place belongs to another source rank in each batch.
//   by default   A put brings what was at its source at the call. Outputs are read where the expert
//                wrote them. That is how ranks that store to each other's memory do it.
//   -DSTAGED     A put reads its source when it arrives, the latest moment. Outputs are put home.
//   -DONE_PHASE  The layout has slots: rows leave at once with the counts, each source rank has places
//                of its own, and a signal gives rows up.
//   -DATTACHMENTS  Experts store output attachments at home, from dispatch_recv on. (With -DSTAGED what
//                is put home stands for both.)
//
// Memory holds the number of the dispatch that was written there. A reader does not read twice: it
// holds the memory from the first moment at which it may read until the last, and nobody may write
// there meanwhile.
//
// -DFAILURES: one rank dies before any of its calls and signals, and the deadline of one wait, of any rank, passes.
// What is on the wire of a rank that is gone arrives or not. The other ranks learn of its end later, as they wait.
// A rank whose wait fails writes nothing more, because control_messages::fail_waiting poisons its communicator, and
// tells the others. It still reads what it holds.
//
// Proved, for DISPATCHES dispatches:
//  - Rows, counts, notes, what came home, and outputs are those of the batch when they are read first,
//    and nobody overwrites them before they are read last.
//  - What a put has not read yet is not overwritten (-DSTAGED).
//  - No rank waits forever: there is no state in which a rank waits and nothing moves.
//  - The same with -DFAILURES, also for what a rank holds that has died or given up.
//
// Not proved: anything about more dispatches, three batches in flight, or ranks that make their calls in
// different orders, which a contract forbids.
//
// Abstracted. A rank has one lane, and nobody refuses (refusal.pml has that). A board that all ranks
// read, as more than four ranks over a direct transport have, is modelled as a copy for each reader; a
// signal there is no earlier than any of the copies. With slots, a rank that has nothing for a peer
// sends its counts all the same. Codecs, streaming stores, weights of a combine and exchanges in two
// levels are left out, and so is `resume`, by which ranks go on in a later view.
//
// tests/moe/reuse_model_test.cpp has more kinds of calls, refusals and three batches in flight, over
// orders that are given or drawn at random.

#ifndef RANKS
#define RANKS 2
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT 2
#endif
#ifndef DISPATCHES
#define DISPATCHES 5 // At most 6, as ARRIVE stands that often below.
#endif
#ifndef REOPENS
#define REOPENS 0    // How often the order may have a reopen.
#endif

#ifdef BROKEN_FEW_GENERATIONS // of messages of counts
#define GENERATIONS (2 * IN_FLIGHT - 1)
#else
#define GENERATIONS (2 * IN_FLIGHT)
#endif

mtype = { COUNTS, ROWS, HOME, SIGNAL }

// control_messages::phase
#define ALL_COUNTS 0
#define ALL_ROWS 1
#define ALL_OUTPUTS 2

// stage
#define IDLE 0
#define COUNTED 1
#define SENT 2
#define RECEIVED 3
#define RETURNING 4
#define RETURNED 5

#define SET(n) ((n) % IN_FLIGHT)
#ifdef BROKEN_ONE_SET // of rows, for all batches
#define ROW_SET(n) 0
#else
#define ROW_SET(n) SET(n)
#endif
#ifdef BROKEN_ONE_STAGING // for all batches
#define STAGING_SET(n) 0
#else
#define STAGING_SET(n) SET(n)
#endif

// Which place among those of a set belongs to source rank p in dispatch n.
#ifdef ONE_PHASE
#define PLACE(p, n) (p)
#else
#define PLACE(p, n) (((p) + (n) / IN_FLIGHT) % RANKS)
#endif

#define PAIR(p, d) ((p) * RANKS + (d))
#define AT(rank, set) ((rank) * IN_FLIGHT + (set))
#define ROW_AT(d, set, place) (((d) * IN_FLIGHT + (set)) * RANKS + (place))
#define COUNTS_AT(d, p, n) ((PAIR(d, p)) * GENERATIONS + (n) % GENERATIONS)
#define SIGNAL_AT(phase, d, p, set) ((((phase) * RANKS + (d)) * RANKS + (p)) * IN_FLIGHT + (set))

// A put and its dispatch, or SIGNAL, where it is and its value.
#define WIRE(p, d) ((p) * (RANKS - 1) + (d) - ((d) > (p)))
chan wire[RANKS * (RANKS - 1)] = [4 * IN_FLIGHT + 4] of { mtype, byte, byte };

// The window of rank d.
byte counts[RANKS * RANKS * GENERATIONS];     // COUNTS_AT(d, source, n)
byte rows[RANKS * IN_FLIGHT * RANKS];         // ROW_AT(d, set, place)
byte outputs[RANKS * IN_FLIGHT];              // of the expert at d
byte homes[RANKS * IN_FLIGHT * RANKS];        // outputs or output attachments that came home to d
byte staged[RANKS * IN_FLIGHT];               // rows that leave d
byte signals[3 * RANKS * RANKS * IN_FLIGHT];  // SIGNAL_AT(phase, d, source, set)

// What rank d holds: the dispatch whose memory it may read, or 0.
byte rows_held[RANKS * IN_FLIGHT];
byte counts_held[RANKS * IN_FLIGHT];
byte homes_held[RANKS * IN_FLIGHT];
byte sums[RANKS * IN_FLIGHT]; // while combine_recv reads outputs where the experts wrote them

// Calls as numbers; those of a set are followed by those of the next set.
#define SEND 1
#define RECEIVE 2
#define COMBINE_SEND (RECEIVE + IN_FLIGHT)
#define COMBINE_RECEIVE (COMBINE_SEND + IN_FLIGHT)
#define REOPEN (COMBINE_RECEIVE + IN_FLIGHT)
#define END (REOPEN + IN_FLIGHT)

// The calls that other ranks have made and this one has not. The rank whose list is empty is the
// first, and chooses the next call.
chan to_make[RANKS] = [4 * DISPATCHES + 3 * REOPENS + 1] of { byte };
byte reopens;

// A put of dispatch n by rank p arrives at d.
inline write_counts(n) {
  s = 0;
  do
  :: s < IN_FLIGHT ->
    assert(counts_held[AT(d, s)] == 0 || counts_held[AT(d, s)] % GENERATIONS != n % GENERATIONS);
    s++
  :: else -> break
  od;
  s = 0;
  counts[COUNTS_AT(d, p, n)] = n
}
inline counts_arrive(n) {
#ifdef STAGED
  assert(counts[COUNTS_AT(p, p, n)] == n); // The source is the message at the writer.
#endif
  write_counts(n)
}
inline rows_arrive(n) {
#ifdef STAGED
  assert(staged[AT(p, STAGING_SET(n))] == n);
#endif
  assert(rows_held[AT(d, ROW_SET(n))] == 0);
  rows[ROW_AT(d, ROW_SET(n), PLACE(p, n))] = n
}
inline home_arrives(n) {
#ifdef STAGED
  assert(outputs[AT(p, SET(n))] == n);
#endif
  assert(homes_held[AT(d, SET(n))] == 0);
  homes[ROW_AT(d, SET(n), PLACE(p, n))] = n
}

// Signals that follow, up to the next put, arrive with it.
inline signals_arrive() {
  do
  :: nempty(wire[WIRE(p, d)]) ->
    wire[WIRE(p, d)]?<kind,s,v>;
    if
    :: kind == SIGNAL -> wire[WIRE(p, d)]?kind,s,v; signals[s] = v
    :: else -> break
    fi
  :: empty(wire[WIRE(p, d)]) -> break
  od;
  kind = 0;
  s = 0;
  v = 0
}

#define ARRIVE(n)                                                                        \
  :: d_step { wire[WIRE(p, d)]??COUNTS,n,0 -> counts_arrive(n); signals_arrive() }       \
  :: d_step { wire[WIRE(p, d)]??ROWS,n,0 -> rows_arrive(n); signals_arrive() }           \
  :: d_step { wire[WIRE(p, d)]??HOME,n,0 -> home_arrives(n); signals_arrive() }

// The wire from p to d.
proctype carrier(byte p, d) {
  mtype kind = 0;
  byte s = 0;
  byte v = 0;
end:
  do
  ARRIVE(1)
  ARRIVE(2)
  ARRIVE(3)
#if DISPATCHES > 3
  ARRIVE(4)
#endif
#if DISPATCHES > 4
  ARRIVE(5)
#endif
#if DISPATCHES > 5
  ARRIVE(6)
#endif
  od
}

// Does something for each rank q, or for each peer.
#define FOR_RANKS(...)                \
  d_step {                            \
    q = 0;                            \
    do                                \
    :: q < RANKS -> __VA_ARGS__; q++  \
    :: else -> break                  \
    od;                               \
    q = 0                             \
  }
#define FOR_PEERS(...) FOR_RANKS(if :: q != me -> __VA_ARGS__ :: else fi)

#define PUT(kind, n) FOR_PEERS(wire[WIRE(me, q)]!kind,n,0)

// control_messages::announce. The signal arrives at once if nothing is before it.
#ifdef BROKEN_SIGNALS_OVERTAKE // the puts before them: the transport breaks its contract.
#define WAITS false
#define GOES true
#else
#define WAITS nempty(wire[WIRE(me, q)])
#define GOES empty(wire[WIRE(me, q)])
#endif
#define ANNOUNCE(phase, set, value)                                              \
  FOR_PEERS(                                                                     \
    if                                                                           \
    :: GOES -> signals[SIGNAL_AT(phase, q, me, set)] = value                     \
    :: WAITS -> wire[WIRE(me, q)]!SIGNAL,SIGNAL_AT(phase, q, me, set),value      \
    fi)

// Whether the signals of all peers are at least `least`.
#if RANKS == 2
#define ALL_CAME(phase, set, least) (signals[SIGNAL_AT(phase, me, 1 - me, set)] >= (least))
#else
#define PEER(i) ((me + (i)) % RANKS)
#define ALL_CAME(phase, set, least)                          \
  (signals[SIGNAL_AT(phase, me, PEER(1), set)] >= (least) && \
   signals[SIGNAL_AT(phase, me, PEER(2), set)] >= (least))
#endif

#ifdef FAILURES
// The rank may die here.
#define STEP if :: !has_died -> has_died = true; is_any_gone = true; goto ends :: true fi
#ifdef BROKEN_GOES_ON // as if what it waited for had come
#define GIVES_UP skip
#else
#define GIVES_UP goto ends
#endif
// Goes on once `came` is true, or fails.
#define AWAIT(came)                                                          \
  if                                                                         \
  :: came                                                                    \
  :: !(came) && is_any_gone -> GIVES_UP                                      \
  :: !(came) && !has_timed_out -> has_timed_out = true; is_any_gone = true; GIVES_UP \
  fi
#else
#define STEP skip
#define AWAIT(came) came
#endif
bool has_died;
bool has_timed_out;
bool is_any_gone; // a rank that has died, or has told that its wait failed

// The rows of dispatch n leave: any_row_path::send, then announce.
inline send_rows(n) {
  staged[AT(me, STAGING_SET(n))] = n;
  // The row for this rank itself.
  assert(rows_held[AT(me, ROW_SET(n))] == 0);
  rows[ROW_AT(me, ROW_SET(n), PLACE(me, n))] = n;
  PUT(ROWS, n);
  STEP;
  ANNOUNCE(ALL_ROWS, SET(n), n)
}

// What this rank reads is that of dispatch n.
inline counts_are(n) {
  FOR_RANKS(assert(counts[COUNTS_AT(me, q, n)] == n))
}
inline rows_are(n) {
  FOR_RANKS(assert(rows[ROW_AT(me, ROW_SET(n), q)] == n))
}

// announce_outputs, reopen, one_phase::give_up: one more attempt of the set.
inline announce_attempt() {
  attempts[s]++;
  STEP;
  ANNOUNCE(ALL_OUTPUTS, s, attempts[s])
}
#define ATTEMPT_CAME AWAIT(ALL_CAME(ALL_OUTPUTS, s, attempts[s]))

// This rank gives up the notes of the batch in set s, what came home for it, and its rows.
inline give_up() {
  counts_held[AT(me, s)] = 0;
  homes_held[AT(me, s)] = 0;
  rows_held[AT(me, s)] = 0
}

// begin_dispatch, up to the signal of counts; with slots also the rows, and one signal for all.
inline begin_dispatch() {
  give_up();
  latest++;
  numbers[s] = latest;
  counts[COUNTS_AT(me, me, latest)] = latest;
  PUT(COUNTS, latest);
  STEP;
#ifdef ONE_PHASE
  send_rows(latest);
  stages[s] = SENT
#else
  ANNOUNCE(ALL_COUNTS, s, latest);
  stages[s] = COUNTED
#endif
}

// Something of this rank goes home: staged_copies::publish, or output attachments by stores.
inline come_home() {
  assert(homes_held[AT(me, s)] == 0);
  homes[ROW_AT(me, s, PLACE(me, numbers[s]))] = numbers[s];
  PUT(HOME, numbers[s])
}

// From here on the experts of this rank may write outputs, and store attachments at home.
inline outputs_begin() {
  // Others read outputs in place, but only in their combine_recv.
  FOR_RANKS(assert(sums[AT(q, s)] == 0));
  outputs[AT(me, s)] = 0;
#if defined(ATTACHMENTS) && !defined(STAGED)
  come_home();
#endif
  stages[s] = RECEIVED
}

// The calls of a set that the exchange accepts: batch_ring::awaiting_rows and behind.
#define CALLS_OF(s)                                                                       \
  :: stages[s] == COUNTED || stages[s] == SENT -> call = RECEIVE + (s)                    \
  :: stages[s] == RECEIVED -> call = COMBINE_SEND + (s)                                   \
  :: stages[s] == RETURNING -> call = COMBINE_RECEIVE + (s)                               \
  :: stages[s] == RETURNED && reopens < REOPENS -> reopens++; call = REOPEN + (s)
#define AT_REST(s) (stages[s] != COUNTED && stages[s] != SENT && stages[s] != RETURNING)
#if IN_FLIGHT == 1
#define ALL_AT_REST AT_REST(0)
#else
#define ALL_AT_REST (AT_REST(0) && AT_REST(1))
#endif
#ifdef BROKEN_NO_REQUIRE_FREE // A batch on its way home may lose its set. With slots that hurts.
#define IS_FREE(s) (stages[s] != COUNTED && stages[s] != SENT)
#else
#define IS_FREE(s) AT_REST(s) // batch_ring::require_free
#endif

// Chooses the call that comes next, or takes it from the list.
inline next_call() {
  if
  :: nempty(to_make[me]) -> to_make[me]?call
  :: empty(to_make[me]) ->
    if
    :: latest < DISPATCHES && IS_FREE(SET(latest + 1)) -> call = SEND
    CALLS_OF(0)
#if IN_FLIGHT > 1
    CALLS_OF(1)
#endif
    :: latest == DISPATCHES && ALL_AT_REST -> call = END
    fi;
    FOR_RANKS(if :: q != me -> to_make[q]!call :: else fi)
  fi;
  if
  :: call == SEND -> s = SET(latest + 1)
  :: else -> s = (call - RECEIVE) % IN_FLIGHT
  fi
}

// An atomic block ends where other ranks and the wires may come in between. Within a block this rank
// only waits for signals, or does what nobody else could tell from doing it a moment later.
proctype rank(byte me) {
  byte call = 0;
  byte latest = 0;             // batch_ring::latest
  byte stages[IN_FLIGHT];      // batch::reached
  byte numbers[IN_FLIGHT];     // batch::number
  byte attempts[IN_FLIGHT];    // batch::combines
  byte s = 0;                  // the set of the call
  byte wanted = 0;             // of advance
  byte at = 0;
  byte q = 0;
next:
  atomic {
    STEP;
    next_call();
    if
    :: call == SEND ->
#ifdef ONE_PHASE
      // take_memory: one_phase::give_up, then await_all
      if
      :: stages[s] == RECEIVED ->
        give_up();
        announce_attempt();
        stages[s] = IDLE;
#ifndef BROKEN_NO_RELEASE // It does not wait until all have given up their rows.
        ATTEMPT_CAME
#endif
      :: else
      fi;
#endif
      begin_dispatch()
    :: call >= RECEIVE && call < COMBINE_SEND -> wanted = numbers[s]
    :: call >= COMBINE_SEND && call < COMBINE_RECEIVE ->
      outputs[AT(me, s)] = numbers[s];
#ifdef STAGED
      come_home();
#endif
#ifdef ONE_PHASE
      rows_held[AT(me, s)] = 0;
#endif
      announce_attempt();
      stages[s] = RETURNING
    :: call >= COMBINE_RECEIVE && call < END
    :: call == END -> goto ends
    fi
  };

#ifndef ONE_PHASE
  // advance: sends the rows of batches whose counts are complete, in order, and waits for those up to
  // `wanted`. next_ready chooses the batch.
  atomic {
    if
    :: latest > IN_FLIGHT -> at = latest - IN_FLIGHT + 1 // batch_ring::oldest
    :: else -> at = 1
    fi;
next_ready:
    do
    :: at <= latest && stages[SET(at)] != COUNTED -> at++
    :: else -> break
    od;
    if
    :: at > latest -> goto no_more
    :: else
    fi;
#ifndef BROKEN_ROWS_BEFORE_COUNTS // Rows leave without waiting for counts.
    if
    :: at > wanted -> goto no_more // As if the signals had not arrived yet.
    :: at > wanted && ALL_CAME(ALL_COUNTS, SET(at), at)
    :: at <= wanted -> AWAIT(ALL_CAME(ALL_COUNTS, SET(at), at))
    fi;
    // counts_first::place reads the counts, after_send reads them again, and notes are read later.
    counts_are(at);
    counts_held[AT(me, SET(at))] = at;
#endif
    send_rows(at);
    stages[SET(at)] = SENT;
    at++;
    goto next_ready
  };
#endif

no_more:
  atomic {
    at = 0;
    wanted = 0;
    if
    :: call >= RECEIVE && call < COMBINE_SEND ->
      // end_dispatch: receive
      AWAIT(ALL_CAME(ALL_ROWS, s, numbers[s]));
      rows_are(numbers[s]);
#ifdef ONE_PHASE
      counts_are(numbers[s]);
      counts_held[AT(me, s)] = numbers[s];
#endif
      rows_held[AT(me, ROW_SET(s))] = numbers[s];
      outputs_begin()
    :: call >= COMBINE_RECEIVE && call < REOPEN ->
      // finish_combine: await_all, then sum_copies begins.
#ifndef BROKEN_UNANNOUNCED_OUTPUTS // Nobody waits for outputs.
      ATTEMPT_CAME;
#endif
#if defined(ATTACHMENTS) || defined(STAGED)
      FOR_RANKS(assert(homes[ROW_AT(me, s, q)] == numbers[s]));
      homes_held[AT(me, s)] = numbers[s];
#endif
#ifndef STAGED
      FOR_RANKS(assert(outputs[AT(q, s)] == numbers[s]));
      sums[AT(me, s)] = 1;
#endif
      stages[s] = RETURNED
    :: call >= REOPEN && call < END ->
      homes_held[AT(me, s)] = 0;
      announce_attempt();
#ifndef BROKEN_REOPEN_AT_ONCE // It does not wait until all have read the outputs.
      ATTEMPT_CAME;
#endif
      rows_are(numbers[s]);
      rows_held[AT(me, s)] = numbers[s];
      outputs_begin()
    :: else
    fi;
    call = 0
  };
#ifndef STAGED
  atomic { // sum_copies ends.
    sums[AT(me, s)] = 0;
    s = 0;
    goto next
  };
#else
  goto next;
#endif
ends:
  skip
}

init {
  atomic {
    byte p = 0;
    byte d = 0;
    do
    :: p < RANKS ->
      d = 0;
      do
      :: d < RANKS ->
        if
        :: d != p -> run carrier(p, d)
        :: else
        fi;
        d++
      :: else -> break
      od;
      run rank(p);
      p++
    :: else -> break
    od;
    p = 0;
    d = 0
  }
}
