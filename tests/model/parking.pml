// SPDX-License-Identifier: MIT
//
// Model of a signal and of the parking of those who wait for it. It follows
//   core/signal.hpp   signal_word::raise, raise_each, raise_at_least, set, fence, wake_parked,
//                     wait_at_least
//   core/signal.ipp   signal_word::wake_sleepers, park, wait_slowly
//   core/futex.ipp    futex_wait, futex_wake_all
//   transport/direct.hpp         direct_path::signal, signal_each, wait_at
//   bootstrap/membership.ipp     membership::health, as wait_slowly calls it through its `health`
// Comments beside the steps name the functions.
//
// Who runs. Rank 0 raises one word at each of the other ranks, as `raise_each` does; with two ranks
// that is `raise`. At each of these words THREADS waiters wait for the values from some value on:
// threads of its rank, or ranks that wait at the word of another one. With -DTWO_RAISERS a thread
// that takes the signals of a far rank raises the same word by `raise_at_least`, while rank 0 raises
// it by `raise`, as under the transport `planes`.
//
// Memory. Stores of a raiser go to a buffer and become visible later. A relaxed store may become
// visible at any time, in order only with stores to the same place. A release store becomes visible
// after all earlier ones. So this is weaker than x86-TSO, and allows what AArch64 may do with stores.
// A sequentially consistent fence and a system call of the futex wait until the buffer is empty. The
// load of `parked` by the raiser may so come before its own store of `value` is visible, unless the
// fence stands between them. Waiters write by sequentially consistent operations, so they need no
// buffer, and their loads, which are acquires or sequentially consistent, happen in program order.
//
// What may happen besides. The deadline of a wait passes at any look at the clock. The time between
// two checks passes at any moment, also during a sleep. A sleep ends without a reason. The raiser
// dies between any two steps; what it has stored still becomes visible. The others learn of its
// death later, or much later.
//
// Abstracted. Polls, pauses and yields before the first sleep are one look, since looks that fail
// change nothing. Payload is a number, and later payload may replace it, so a waiter checks that it
// finds what belongs to its value or to a later one.
//
// Proved, for RAISES values:
//  - No wake-up is lost. Whenever the value is reached and no raiser is in the middle of a raise, no
//    waiter sleeps that waits for this value. This does not rest on time-outs: it holds in each state.
//  - A waiter that returns ok sees the payload that was written before the signal.
//  - A waiter returns peer_dead only if the raiser died, and did not raise the value before.
//  - The value never falls.
//  - -DLIVENESS -DNO_TIMEOUT -DNO_CRASH: every wait ends with ok, without any time-out.
//  - -DLIVENESS -DNO_DEADLINE: if the raiser may die, every wait ends, with ok or peer_dead, because a
//    sleeper looks at the membership from time to time.
//
// Not proved: anything about more values, waiters or raisers; that the count in `parked` may overflow;
// that compiler and processor keep the orders that the model assumes.
//
// Known limit: -DTWO_RAISERS with -DTHREADS=2 has an error. `wake_sleepers` stores what it read plus
// one. If both raisers read the same number, the second store may bring `parked` back to a number
// that a waiter has announced, once another waiter sets bit 0 again; the first one then sleeps until
// its next check. A transport does not allow two threads to wait for one signal, so no word has two
// raisers and two waiters at once. -DEXCHANGE_PARKED shows that an exchange would not have this limit.

#ifndef RANKS
#define RANKS 2
#endif
#ifndef THREADS
#if RANKS == 2
#define THREADS 2
#else
#define THREADS 1
#endif
#endif
#ifndef RAISES
#define RAISES 2
#endif

#define WORDS (RANKS - 1)
#define WAITERS (WORDS * THREADS)
#ifdef TWO_RAISERS
#define RAISERS 2
#define FIRST_PLAIN 2 // The receiver raises 1, which was sent before rank 0 came to raise 2.
#else
#define RAISERS 1
#define FIRST_PLAIN 1
#endif
#define LAST (FIRST_PLAIN + RAISES - 1)

// The stores that a buffer holds: of what, at which word, which number.
mtype = { PAYLOAD, VALUE, PARKED }
chan buffer[RAISERS] = [3 * WORDS * RAISES] of { mtype, byte, byte };

byte payload[WORDS];
byte value[WORDS];
byte parked[WORDS];
byte raising[WORDS];  // raisers that are in the middle of a raise; one that died there stays
bool asleep[WAITERS];
byte target[WAITERS];
byte ended;           // waiters that have returned from their last wait
bool crashed;         // rank 0 executes nothing more
bool failed;          // and the membership says so

#define WORD_OF(waiter) ((waiter) / THREADS)

// The property: no waiter sleeps whose value is reached while nobody is about to wake it. It is looked
// at wherever it could become false: when a value becomes visible, when a raise is over, and when a waiter
// falls asleep.
inline no_lost_wake_up(w) {
  d_step {
    i = w * THREADS;
    do
    :: i < (w + 1) * THREADS ->
      assert(!(raising[w] == 0 && asleep[i] && value[w] >= target[i]));
      i++
    :: else -> break
    od;
    i = 0
  }
}

// futex_wake_all: the kernel wakes every thread that sleeps on the word.
inline futex_wake(w) {
  d_step {
    i = w * THREADS;
    do
    :: i < (w + 1) * THREADS ->
#ifdef BROKEN_WAKE_ONE // instead of all
      if
      :: asleep[i] -> asleep[i] = false; break
      :: else
      fi;
#else
      asleep[i] = false;
#endif
      i++
    :: else -> break
    od;
    i = 0
  }
}

#ifdef EXCHANGE_PARKED
// Not what the code does: wake_sleepers by compare_exchange_strong instead of a store.
inline exchange_parked(w) {
  d_step {
    if
    :: parked[w] == seen -> parked[w] = seen + 1
    :: else
    fi
  }
}
#endif

#ifdef NO_CRASH
#define MAY_CRASH false
#else
#define MAY_CRASH true
#endif

// One step of rank 0: it happens, or the rank dies before.
#define STEP(...) if :: __VA_ARGS__ :: MAY_CRASH -> goto dies fi

// raise_each, with one word for each peer.
proctype raiser() {
  byte goal = FIRST_PLAIN;
  byte w = 0;
  byte seen = 0;
  byte i = 0;
  do
  :: goal <= LAST ->
    // put: what the signal publishes. Copies of bytes, so nothing orders them among each other.
    w = 0;
    do
    :: w < WORDS ->
      STEP(atomic { raising[w]++; buffer[0]!PAYLOAD,w,goal });
      w++
    :: else -> break
    od;
#ifdef BROKEN_LOOK_FIRST
    // The raiser looks for sleepers before it stores the value.
    STEP(seen = parked[0]);
#endif
    // set, for each word
    w = 0;
    do
    :: w < WORDS -> STEP(buffer[0]!VALUE,w,goal); w++
    :: else -> break
    od;
#ifndef BROKEN_NO_FENCE
    // fence
    STEP(empty(buffer[0]));
#endif
    // wake_parked, for each word
    w = 0;
    do
    :: w < WORDS ->
#ifndef BROKEN_LOOK_FIRST
      STEP(seen = parked[w]);
#endif
      if
      :: seen % 2 == 1 ->
        // wake_sleepers. A plain store: with one raiser at a time only waiters write `parked`
        // meanwhile, and they set a bit that is set already.
#if defined(BROKEN_NO_CLEAR)
        // Whoever has announced itself may still fall asleep after the wake-up.
        skip;
#elif defined(BROKEN_FLAG_ONLY)
        // Cleared instead of counted: a second waiter may set the same number again.
        STEP(buffer[0]!PARKED,w,0);
#elif defined(EXCHANGE_PARKED)
        STEP(exchange_parked(w));
#elif !defined(BROKEN_CLEAR_LATE)
        STEP(buffer[0]!PARKED,w,seen + 1);
#endif
        // The kernel has a full barrier before it looks for sleepers.
#ifdef BROKEN_WAKE_NO_BARRIER
        STEP(futex_wake(w));
#else
        STEP(atomic { empty(buffer[0]) -> futex_wake(w) });
#endif
#ifdef BROKEN_CLEAR_LATE
        // Cleared after the wake-up.
        STEP(buffer[0]!PARKED,w,seen + 1);
#endif
      :: else
      fi;
      atomic { seen = 0; raising[w]--; no_lost_wake_up(w); w++ }
    :: else -> break
    od;
    w = 0;
    goal++
  :: else -> break
  od;
  goto ends;
dies:
  crashed = true;
ends:
  skip
}

#ifdef TWO_RAISERS
// A thread of the rank that owns word 0 takes the signal 1 of a far rank: raise_at_least(1).
proctype receiver() {
  byte present = 0;
  byte seen = 0;
  byte i = 0;
  raising[0]++;
  present = value[0];
  do
  :: present < 1 ->
#ifdef BROKEN_STORE_AT_LEAST
    // A store instead of an exchange may replace a greater value.
    atomic { assert(value[0] <= 1); value[0] = 1 };
    break
#else
    // compare_exchange_weak. It may fail without a reason, which changes nothing here.
    if
    :: atomic { value[0] == present -> value[0] = 1; no_lost_wake_up(0) }; break
    :: atomic { value[0] != present -> present = value[0] }
    fi
#endif
  :: else -> goto gives_up
  od;
  // fence: nothing is in this thread's buffer. wake_parked:
  seen = parked[0];
  if
  :: seen % 2 == 1 ->
#ifdef EXCHANGE_PARKED
    exchange_parked(0);
#else
    buffer[1]!PARKED,0,seen + 1;
#endif
    atomic { empty(buffer[1]) -> futex_wake(0) }
  :: else
  fi;
gives_up:
  atomic { seen = 0; present = 0; raising[0]--; no_lost_wake_up(0) }
}
#endif

inline value_becomes_visible() {
  assert(what >= value[w]);
  value[w] = what;
  no_lost_wake_up(w)
}

// A store of buffer b becomes visible.
inline becomes_visible(b) {
  if
  :: atomic { buffer[b]??PAYLOAD,w,what -> payload[w] = what }
#ifdef BROKEN_RELAXED_VALUE // set() is no release.
  :: atomic { buffer[b]??VALUE,w,what -> value_becomes_visible() }
#else
  // A release: no earlier store is left.
  :: atomic { buffer[b]?VALUE,w,what -> value_becomes_visible() }
#endif
  :: atomic { buffer[b]??PARKED,w,what -> parked[w] = what }
  fi;
  atomic { w = 0; what = 0 }
}

proctype memory(byte b) {
  byte w = 0;
  byte what = 0;
  byte i = 0;
end:
  do
  :: becomes_visible(b)
  od
}

// The kernel tells that the process of rank 0 has ended. All that it stored is visible by then: its
// core has left the process.
proctype pidfd() {
end:
  atomic { crashed && empty(buffer[0]) -> failed = true }
}

#if defined(NO_TIMEOUT) || defined(BROKEN_NO_CHECKS) // A sleeper sleeps until it is woken.
#define DEADLINE_MAY_PASS false
#define CHECK_MAY_BE_DUE false
#define SLEEP_MAY_END_EARLY false
#else
#define CHECK_MAY_BE_DUE true
#ifdef NO_DEADLINE
#define DEADLINE_MAY_PASS false
#else
#define DEADLINE_MAY_PASS true
#endif
#ifdef LIVENESS
#define SLEEP_MAY_END_EARLY false // It could then do so for ever, while no time passes.
#else
#define SLEEP_MAY_END_EARLY true
#endif
#endif

proctype waiter(byte me) {
  byte announced = 0;
  bool is_due = false;   // next_check has expired
  bool is_last = false;  // is_last_poll
  byte w = WORD_OF(me);
  byte i = 0;
  atomic {
    if
    :: target[me] = 1
    :: target[me] = LAST
    fi
  }
wait:
  // wait_at_least; then wait_slowly, whose loop begins here.
  do
  :: if
     :: value[w] >= target[me] -> goto ok
     :: else
     fi;
     // until.expired(), next_check.expired()
     if
     :: is_due
     :: !is_due && CHECK_MAY_BE_DUE -> is_due = true
     :: !is_due
     :: DEADLINE_MAY_PASS -> is_last = true
     fi;
     if
     :: is_due || is_last ->
       if
       :: failed ->
         // health() returns peer_dead. A value that the peer raised before it died still counts.
#ifndef BROKEN_HEALTH_LAST // It does not look again.
         if
         :: value[w] >= target[me] -> goto ok
         :: else
         fi;
#endif
         assert(crashed && (target[me] < FIRST_PLAIN || value[w] < target[me]));
         goto returns
       :: else
       fi;
       if
       :: is_last ->
         if
         :: value[w] >= target[me] -> goto ok
         :: else -> goto returns // timed_out
         fi
       :: else
       fi;
       is_due = false
     :: else
     fi;
     // park
#ifdef BROKEN_RELAXED_ANNOUNCEMENT
     // If fetch_or were relaxed, the load after it could come first.
     if
     :: value[w] >= target[me] -> goto ok
     :: else
     fi;
#endif
#ifdef BROKEN_NO_ANNOUNCEMENT
     announced = parked[w];
#else
     atomic { announced = parked[w] | 1; parked[w] = announced };
#endif
#if !defined(BROKEN_NO_SECOND_LOOK) && !defined(BROKEN_RELAXED_ANNOUNCEMENT)
     if
     :: value[w] >= target[me] -> goto again
     :: else
     fi;
#endif
     // futex_wait: the kernel compares and queues the thread as one step.
     atomic {
       if
#ifdef BROKEN_BLIND_SLEEP // It does not compare.
       :: true -> asleep[me] = true; no_lost_wake_up(w)
#else
       :: parked[w] == announced -> asleep[me] = true; no_lost_wake_up(w)
       :: else
#endif
       fi
     };
     if
     :: !asleep[me]
     :: atomic { asleep[me] && CHECK_MAY_BE_DUE -> asleep[me] = false; is_due = true }
     :: atomic { asleep[me] && SLEEP_MAY_END_EARLY -> asleep[me] = false }
     fi;
again:
     announced = 0
  od;
ok:
  atomic {
    // The payload of a value that rank 0 raised.
    assert(target[me] < FIRST_PLAIN || payload[w] >= target[me]);
    announced = 0;
    is_due = false;
    is_last = false;
    if
    :: target[me] < LAST -> target[me]++; goto wait
    :: else
    fi
  };
returns:
  atomic { announced = 0; is_due = false; is_last = false; ended++ }
}

init {
  atomic {
    byte i = 0;
    do
    :: i < WAITERS -> run waiter(i); i++
    :: else -> break
    od;
    run memory(0);
    run raiser();
#ifdef TWO_RAISERS
    run memory(1);
    run receiver();
#endif
#ifndef NO_CRASH
    run pidfd();
#endif
    i = 0
  }
}

#ifdef LIVENESS
ltl waits_end { <> (ended == WAITERS) }
#endif
