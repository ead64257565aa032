// SPDX-License-Identifier: MIT
//
// Model of how the members of a running group take in a newcomer. It follows
//   communicator/admission.ipp            admit: meet, make, all_have_made, confirm
//   bootstrap/detail/rendezvous_host.hpp  how the host waits for all, and welcomes or refuses all
//   bootstrap/join_running.{hpp,ipp}      the newcomer's side
//
// Who runs. Members 0 to MEMBERS - 1, of which 0 listens, and one newcomer, which waits. All know where to meet.
// They call there, where the host waits for them; it welcomes all, or refuses all if one has ended. The
// welcomed make what they need in one allgather of the new group, and any may fail to. Then the members
// gather what all have made, and take the new group if all could. Who takes it calls `await_admission`, an
// allgather of the new group, and goes on whatever that brings. The newcomer is a member once it has completed
// both allgathers; otherwise it calls again. Up to CRASHES processes die before any step, and others learn of
// it later, each at a time of its own. Up to TIMEOUTS deadlines pass, each in any wait: the process gives up what
// it waited for. A member that does so in the gather has given by then; its `admit` throws timed_out, and it
// takes neither group.
//
// Taken as given: the members' gather is the one of gather.pml, so that all that come to its end have
// everything or none has. Here whichever comes to an end first says which.
//
// Proved:
//  - All members that come to an end decide the same: the new group, or the old one, or that a member is gone.
//    Those whose deadline passes in the gather decide nothing.
//  - A newcomer that is a member is one of a group that the members took, and no member keeps the old one.
//  - Nobody waits forever: there is no state in which somebody waits and nothing moves.
//
// Not proved: the same for two newcomers, who are welcomed or refused together.

#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef CRASHES
#define CRASHES 1 // with more, a process that waits in vain could die instead
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1
#endif
#define ALL (MEMBERS + 1) // the newcomer is the last
#define NEW MEMBERS

#define UNKNOWN 0
#define WELCOME 1
#define REFUSED 2

bool crashed[ALL];
bool ended[ALL * ALL];   // [observer, process]: seen by the observer
bool called[ALL];        // at the place where all meet
byte answer[ALL];        // of the host: welcome, or refused
bool left[ALL];          // the new group: given up, or its process has ended
bool gave[2 * ALL];      // in the two allgathers of the new group
bool gave_old[MEMBERS];  // in the gather of the members
bool could[MEMBERS];     // what it gave there: whether it has made what it needs
bool old_failed;         // some member has found that another gives no more
bool old_ended;          // some member has everything
bool took_new;           // decided so
bool kept_old;
bool joined;
byte deaths;
byte timeouts;

#define DIES atomic { deaths < CRASHES -> deaths++; crashed[me] = true; left[me] = true; goto gone }
#define TIMES_OUT atomic { timeouts < TIMEOUTS -> timeouts++ }
#define ENDED(p) ended[me * ALL + (p)]

// One allgather of the new group: a connection that ends is seen by those who still wait.
inline all_gather(k, failed) {
  if
  :: gave[k * ALL + me] = true
  :: DIES
  fi;
  p = 0;
  do
  :: p == ALL -> break
  :: p < ALL && p == me -> p++
  :: p < ALL && p != me ->
    if
    :: atomic { gave[k * ALL + p] -> p++ }
    :: atomic { left[p] && !gave[k * ALL + p] -> failed = true; break }
    :: atomic { left[p] && gave[k * ALL + p] -> failed = true; break } // the host died before it told all
    :: TIMES_OUT -> failed = true; break
    :: DIES
    fi
  od
}

// The members decide together, by the gather that gather.pml models.
inline decide() {
  could[me] = !failed;
  if
  :: gave_old[me] = true
  :: DIES
  fi;
  p = 0;
  do
  :: p == MEMBERS -> break
  :: p < MEMBERS && gave_old[p] -> p++
  :: p < MEMBERS && !gave_old[p] ->
    if
    :: atomic { gave_old[p] -> p++ }
    :: atomic { ENDED(p) && !gave_old[p] -> assert(!old_ended); old_failed = true; goto gives_up }
    :: atomic { old_failed -> goto gives_up }
#ifdef BROKEN_DEADLINE_KEEPS // It goes on with the old group, and the others do not know that.
    :: TIMES_OUT -> failed = true; goto decided
#else
    :: TIMES_OUT -> goto waited_in_vain
#endif
    :: DIES
    fi
  od;
  atomic {
    assert(!old_failed);
    old_ended = true;
    p = 0;
    do
    :: p < MEMBERS && could[p] -> p++
    :: p < MEMBERS && !could[p] -> failed = true; break
    :: p == MEMBERS -> break
    od
  }
}

proctype member(byte me) {
  byte p = 0;
  bool failed = false;

  // Meet.
  if
  :: me != 0 ->
    if
    :: called[me] = true
    :: DIES
    fi;
    if
    :: answer[me] == WELCOME
    :: answer[me] == REFUSED -> failed = true
    :: ENDED(0) -> failed = true
    :: TIMES_OUT -> failed = true
    :: DIES
    fi
  :: me == 0 ->
    // Waits for the others.
    p = 1;
    do
    :: p == ALL -> break
    :: p < ALL ->
      if
      :: atomic { called[p] -> p++ }
#ifndef BROKEN_WAITS_FOR_THE_DEAD
      :: atomic { ENDED(p) -> failed = true; p++ }
      :: TIMES_OUT -> failed = true; break // It refuses all.
#endif
      :: DIES
      fi
    od;
    // Answers one after the other.
    p = 1;
    do
    :: p == ALL -> break
    :: p < ALL ->
      if
      :: atomic { answer[p] = (failed -> REFUSED : WELCOME); p++ }
      :: DIES
      fi
    od
  fi;

  // Make.
  if
  :: !failed ->
    all_gather(0, failed);
    if
    :: true
    :: failed = true // it has no memory, for example
    fi
  :: else
  fi;
  if
  :: failed -> left[me] = true // no one else waits for what it would make
  :: else
  fi;

#ifndef BROKEN_EACH_FOR_ITSELF
  decide();
#endif
#ifdef BROKEN_DEADLINE_KEEPS
decided:
#endif
  if
  :: atomic { failed -> assert(!took_new); assert(!joined); kept_old = true; left[me] = true; goto gone }
  :: atomic { !failed -> assert(!kept_old); took_new = true }
  :: DIES
  fi;
  failed = false;
  all_gather(1, failed);
  goto gone;
gives_up:
  atomic { left[me] = true; assert(!took_new && !kept_old && !joined); goto gone };
waited_in_vain:
  atomic { left[me] = true; assert(!joined) };
gone:
  skip
}

proctype newcomer(byte me) {
  byte p = 0;
  bool failed = false;

  if
  :: called[me] = true
  :: DIES
  fi;
  if
  :: answer[me] == WELCOME
  :: answer[me] == REFUSED -> goto again
  :: ENDED(0) -> goto again
  :: TIMES_OUT -> goto again
  :: DIES
  fi;
  all_gather(0, failed);
  if
  :: failed -> goto again
  :: else
  fi;
#ifndef BROKEN_NO_CONFIRMATION
  all_gather(1, failed);
  if
  :: failed -> goto again
  :: else
  fi;
#endif
  atomic { assert(!kept_old); assert(took_new); joined = true; goto gone };
again:
  left[me] = true;
gone:
  skip
}

// The kernel tells an observer of a death.
proctype told_of_death(byte me; byte p) {
end:
  atomic { crashed[p] -> ENDED(p) = true }
}

init {
  atomic {
    byte r = 0;
    byte q = 0;
    run newcomer(NEW);
    do
    :: r < ALL ->
      if
      :: r < MEMBERS -> run member(r)
      :: else
      fi;
      q = 0;
      do
      :: q < ALL ->
        if
        :: q != r -> run told_of_death(r, q)
        :: else
        fi;
        q++
      :: else -> break
      od;
      r++
    :: else -> break
    od
  }
}
