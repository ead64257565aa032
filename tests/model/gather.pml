// SPDX-License-Identifier: MIT
//
// Model of a gather among the ranks of a view, by which they decide together, as `admission::admit`
// does whether they take in others. It follows
//   communicator/view_agreement.ipp  gather, gives_no_more, write
//   bootstrap/membership.ipp         state, and the pidfd that tells of a death
//
// Who runs. Each rank gives, and then takes what each of the others has given, one after the other. It
// fails if one of them has not given and gives no more: because its process has ended, or because it has
// begun to agree on the next view, as it knows of a death. A rank that knows of a death may do that
// before it gives. Up to CRASHES ranks die before any step. The others learn of it later, each at a
// time of its own.
//
// Memory. A contribution and the word that tells of it are one step; the memory outlives its rank.
//
// Proved:
//  - Either all ranks that come to an end have everything, or none has. So ranks that decide by what all
//    have given decide the same, whoever dies meanwhile.
//  - Nobody waits forever: there is no state in which a rank waits and nothing moves.
//
// Not proved: the same where deadlines pass. A rank that gives up while the others wait for it in vain
// is told apart by name, not by this.

#ifndef RANKS
#define RANKS 3
#endif
#ifndef CRASHES
#define CRASHES 1 // fewer than all but one, as a rank that waits could else die instead
#endif

bool gave[RANKS];
bool knows_more[RANKS]; // its board names a rank that the view has
bool crashed[RANKS];
bool ended[RANKS * RANKS]; // [observer, rank]: seen by the observer
byte deaths;
bool somebody_has_all;
bool somebody_failed;

#define ENDED(p) ended[me * RANKS + (p)]
// For up to 4 ranks.
#define ANY_ENDED (ENDED((me + 1) % RANKS) || ENDED((me + 2) % RANKS) || ENDED((me + 3) % RANKS))

#define DIES atomic { deaths < CRASHES -> deaths++; crashed[me] = true; goto gone }

#ifdef BROKEN_ANY_DEATH // It fails as soon as any rank has ended.
#define HOPELESS(p) ANY_ENDED
#else
#ifdef BROKEN_DEATHS_ONLY // It does not see who gives no more.
#define HOPELESS(p) ENDED(p)
#else
#define HOPELESS(p) (ENDED(p) || knows_more[p])
#endif
#endif

proctype rank(byte me) {
  byte p = 0;

  if
  :: gave[me] = true
  :: ANY_ENDED -> goto fails // in the operation before
  :: DIES
  fi;
  do
  :: p == RANKS -> break
  :: p < RANKS && p == me -> p++
  :: p < RANKS && p != me ->
    if
    :: atomic { gave[p] -> p++ }
    :: DIES
    :: HOPELESS(p) ->
#ifdef BROKEN_NO_SECOND_LOOK // It may have given between the first look and its end.
      goto fails
#else
      if
      :: gave[p] -> p++
      :: else -> goto fails
      fi
#endif
    fi
  od;
  if
  :: atomic { assert(!somebody_failed); somebody_has_all = true; goto gone }
  :: DIES
  fi;
fails:
  if
  :: atomic { knows_more[me] = true; assert(!somebody_has_all); somebody_failed = true }
  :: DIES
  fi;
gone:
  skip
}

// The kernel tells an observer of a death.
proctype pidfd(byte me; byte p) {
end:
  atomic { crashed[p] -> ENDED(p) = true }
}

init {
  atomic {
    byte r = 0;
    byte q = 0;
    do
    :: r < RANKS ->
      run rank(r);
      q = 0;
      do
      :: q < RANKS ->
        if
        :: q != r -> run pidfd(r, q)
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
