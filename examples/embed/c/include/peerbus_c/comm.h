/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_COMM_H
#define PEERBUS_C_COMM_H

/** @file Communicators: how ranks meet, their numbers, and barriers. */

#include <peerbus_c/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A group of ranks that share windows, exchanges and teams. */
typedef struct peerbus_comm peerbus_comm;

/** Options of a communicator, equal on all ranks. NULL stands for all defaults. */
typedef struct peerbus_comm_options {
  uint32_t struct_bytes;   /**< sizeof(peerbus_comm_options) */
  uint32_t reserved;       /**< 0 */
  int64_t timeout_ns;      /**< limit of calls that are given none; 0: 30 s */
  int64_t meet_timeout_ns; /**< limit for all ranks to come; 0: 30 s */
} peerbus_comm_options;

/** The place where the ranks of a group meet, on one host, and the caller's number among them. */
typedef struct peerbus_place {
  uint32_t struct_bytes; /**< sizeof(peerbus_place) */
  uint32_t port;         /**< number of the rendezvous point; 0: 29500. No port is opened */
  uint64_t rank;         /**< of the caller, below `size` */
  uint64_t size;         /**< number of ranks, at least 1 */
  const char *address;   /**< part of the rendezvous point's name; NULL: 127.0.0.1 */
  const char *job;       /**< keeps ranks of another job away; NULL: none */
} peerbus_place;

/** Returns 1 if a launcher (torchrun, mpirun, srun, a script) has started this process as a rank,
 * otherwise 0. Threads: any, as long as none changes the environment. */
PEERBUS_API int32_t peerbus_launched(void);

/**
 * Collective: makes a communicator of the processes that a launcher started on this host, and sets
 * `*comm`. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT give the place, or the variables of Open
 * MPI, PMI or Slurm (docs/bootstrap.md). The caller destroys `*comm`.
 * Errors: PEERBUS_INVALID_ARGUMENT names a variable that is missing or wrong, PEERBUS_TIMED_OUT
 * names the ranks that did not come. Also PEERBUS_MISMATCH, PEERBUS_PEER_DEAD, PEERBUS_UNSUPPORTED
 * (ranks on other hosts), PEERBUS_SYSTEM. `*comm` is then NULL.
 */
PEERBUS_API peerbus_code peerbus_comm_from_environment(const peerbus_comm_options *options,
                                                       peerbus_comm **comm);

/** Collective: makes a communicator of the processes that meet at `place`. Contract as
 * `peerbus_comm_from_environment`. */
PEERBUS_API peerbus_code peerbus_comm_at(const peerbus_place *place,
                                         const peerbus_comm_options *options, peerbus_comm **comm);

/**
 * Collective over `parent`: makes a communicator of `count` of its ranks, which become ranks 0, 1,
 * ... in the order of `ranks`. All ranks of `parent` call, each with the list of its own group. The
 * lists of different groups do not overlap. A rank that needs no group passes itself alone. A limit
 * of 0 in `options`, or NULL, stands for that of `parent`.
 * Errors: PEERBUS_INVALID_ARGUMENT (an empty list, a rank named twice, a list without the caller),
 * PEERBUS_MISMATCH (different lists), and those of `peerbus_comm_from_environment`.
 */
PEERBUS_API peerbus_code peerbus_comm_subgroup(peerbus_comm *parent, const uint64_t *ranks,
                                               uint64_t count, const peerbus_comm_options *options,
                                               peerbus_comm **comm);

/** The program of one rank. Returns its exit status, 0 to 255. `comm` is valid until it returns, and
 * must not be destroyed. All that was made from it must be destroyed before it returns. */
typedef int32_t (*peerbus_rank_function)(peerbus_comm *comm, void *context);

/**
 * Calls `body(comm, context)` in `ranks` threads of this process, each of which is a rank, and sets
 * `*status` to the greatest exit status. A rank that leaves windows or exchanges behind, or fails to
 * make its communicator, counts as 1 and says so on stderr.
 * Errors: PEERBUS_INVALID_ARGUMENT if `ranks` is 0, PEERBUS_SYSTEM if not all could be started.
 */
PEERBUS_API peerbus_code peerbus_run_threads(uint64_t ranks, peerbus_rank_function body,
                                             void *context, const peerbus_comm_options *options,
                                             int32_t *status);

/**
 * Forks `ranks` processes that call `body(comm, context)`, waits for them, and sets `*status` to the
 * greatest exit status. A process that was killed counts as 128 + the signal. No process outlives
 * the call. Call it while this process has one thread.
 * Errors: as `peerbus_run_threads`.
 */
PEERBUS_API peerbus_code peerbus_run_processes(uint64_t ranks, peerbus_rank_function body,
                                               void *context, const peerbus_comm_options *options,
                                               int32_t *status);

/**
 * Destroys `*comm` and sets it to NULL. Not collective. This rank leaves the group when all
 * that was made from it is destroyed too. Does nothing if `comm` or `*comm` is NULL.
 * Errors: PEERBUS_INVALID_ARGUMENT for the communicator of a `peerbus_rank_function`.
 */
PEERBUS_API peerbus_code peerbus_comm_destroy(peerbus_comm **comm);

/** Returns the number of the caller, or 0 if `comm` is NULL. Threads: any. */
PEERBUS_API uint64_t peerbus_comm_rank(const peerbus_comm *comm);
/** Returns the number of ranks, or 0 if `comm` is NULL. Threads: any. */
PEERBUS_API uint64_t peerbus_comm_size(const peerbus_comm *comm);

/**
 * Collective: returns after all ranks have called it. Everything that a rank wrote before is visible
 * to all ranks after. Cost: ceil(log2 size) signals.
 * Errors: PEERBUS_TIMED_OUT and PEERBUS_PEER_DEAD, which poison the communicator, PEERBUS_POISONED.
 */
PEERBUS_API peerbus_code peerbus_comm_barrier(peerbus_comm *comm, int64_t timeout_ns);

/** Returns other than 0 to end the wait of the calling thread. */
typedef int32_t (*peerbus_interrupt_function)(void *context);

/**
 * Makes every wait of this communicator call `interrupt(context)` about 20 times a second, in the
 * thread that waits. If it returns other than 0, the call that waits fails with PEERBUS_INTERRUPTED.
 * Except for `peerbus_window_wait`, that leaves the ranks out of step: the communicator is then
 * poisoned. NULL removes the function. Making communicators, windows and exchanges does not call it.
 * The function may call the library. With the objects of the call that waits, it may only destroy
 * them. If the function forks, the call fails in the child with
 * PEERBUS_INVALID_ARGUMENT. For languages that handle signals between calls.
 * Threads: not while a call waits.
 * Errors: PEERBUS_INVALID_ARGUMENT if `comm` is NULL.
 */
PEERBUS_API peerbus_code peerbus_comm_set_interrupt(peerbus_comm *comm,
                                                    peerbus_interrupt_function interrupt,
                                                    void *context);

/** The functions of CPython that let its handlers of signals run while a call waits. */
typedef struct peerbus_python {
  uint32_t struct_bytes;          /**< sizeof(peerbus_python) */
  uint32_t reserved;              /**< 0 */
  uint64_t thread;                /**< threading.main_thread().ident: the handlers run there */
  int32_t (*ensure_gil)(void);    /**< PyGILState_Ensure */
  void (*release_gil)(int32_t);   /**< PyGILState_Release */
  int32_t (*check_signals)(void); /**< PyErr_CheckSignals */
  void (*fetch)(void **type, void **value, void **traceback); /**< PyErr_Fetch */
  void **raised; /**< three pointers, which `fetch` sets to what a handler has raised */
} peerbus_python;

/**
 * Lets CPython's handlers of signals run about 20 times a second in every wait of this communicator
 * in the thread `python->thread`. If a handler raises, `raised` is set, and the call that waits ends
 * as with `peerbus_comm_set_interrupt`, whose function this replaces. Handlers may do what that may.
 * Waits of other threads never enter Python: they do not disturb the interpreter when it ends.
 * `*python` is copied. What it points to must stay until the process ends.
 * Threads: not while a call waits.
 * Errors: PEERBUS_INVALID_ARGUMENT if an argument, or a pointer in `*python`, is NULL.
 */
PEERBUS_API peerbus_code peerbus_comm_set_python(peerbus_comm *comm, const peerbus_python *python);

#ifdef __cplusplus
}
#endif

#endif
