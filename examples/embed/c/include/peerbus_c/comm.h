/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_COMM_H
#define PEERBUS_C_COMM_H

/**
 * @file
 * Communicators: how ranks meet, their numbers, and barriers.
 */

#include <peerbus_c/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A group of ranks that share windows, exchanges and teams. When one is made, it reads two variables of
 * the environment, which each rank has for itself. A wrong value is refused on all ranks.
 *
 * PEERBUS_LOG=info or debug: the communicator and its exchanges write to stderr what they choose when they
 * are made, as `peerbus[3] info: protocol: ...` for rank 3.
 *
 * PEERBUS_METRICS=/some/path/{rank}.prom: the communicator counts the operations, bytes, waits and
 * refusals of this rank, those of its subgroups included, and writes them to that file in the text form
 * of Prometheus. It replaces the file when it is made and destroyed, and when a call of the rank begins and
 * the last file is a second old. A rank keeps its number, its file and the numbers of views in the
 * communicator that peerbus_comm_survivors makes. Two other communicators with one file overwrite each
 * other's. Cost: two clock reads and some atomic additions for each operation and wait; once a second a
 * small file.
 */
typedef struct peerbus_comm peerbus_comm;

/** What the memory of peers is. */
enum {
  PEERBUS_AUTOMATIC_TRANSPORT = 0, /**< shared memory if all ranks share a host, otherwise planes */
  PEERBUS_UNIFIED_BUS = 1,         /**< shared memory between all ranks, which share a host */
  PEERBUS_PLANES = 2,              /**< shared memory within a host, libfabric between hosts */
  PEERBUS_PLANES_VERBS = 3,        /**< shared memory within a host, RDMA verbs between hosts */
  PEERBUS_FABRIC = 4,              /**< libfabric between all ranks */
  PEERBUS_VERBS = 5                /**< RDMA verbs between all ranks */
};

/** Options of a communicator, equal on all ranks. NULL stands for all defaults. */
typedef struct peerbus_comm_options {
  uint32_t struct_bytes;   /**< sizeof(peerbus_comm_options) */
  uint32_t reserved;       /**< 0 */
  int64_t timeout_ns;      /**< limit of calls that are given none; 0: 30 s */
  int64_t meet_timeout_ns; /**< limit for all ranks to come; 0: 30 s */
  int32_t transport;       /**< PEERBUS_AUTOMATIC_TRANSPORT and so on; not for threads */
  uint32_t reserved_too;   /**< 0 */
  const char *provider;    /**< of libfabric, as `fi_info -l` lists them; NULL: tcp */
  /** The network interface of libfabric's provider or the RDMA device of this rank; NULL: that over
   * which the ranks met, or the first that fits. May differ between ranks. */
  const char *device;
} peerbus_comm_options;

/** The place where the ranks of a group meet, and the caller's number among them. Without a `secret`
 * all ranks are on one host, and the address is but a part of a name. With one they may be on any
 * hosts: rank 0 listens at the port of the address while they meet. */
typedef struct peerbus_place {
  uint32_t struct_bytes; /**< sizeof(peerbus_place) */
  uint32_t port;         /**< number of the rendezvous point; 0: 29500 */
  uint64_t rank;         /**< of the caller, below `size` */
  uint64_t size;         /**< number of ranks, at least 1 */
  const char *address;   /**< of the host of rank 0, by which all ranks reach it; NULL: 127.0.0.1 */
  const char *job;       /**< keeps ranks of another job away; NULL: none */
  const char *secret;    /**< the same on all ranks, 16 bytes or more that nobody can guess; or NULL */
  /** Name of this rank's host, if there is a secret. NULL: PEERBUS_HOST if that is set, or else the
   * kernel tells hosts apart. */
  const char *host;
} peerbus_place;

/** Gives `bytes` bytes of each rank, equally many, to all ranks: those of rank r go to byte `r * bytes`
 * of `all`. Returns 0, or anything else if that failed. It must end by itself if a rank is gone. */
typedef int32_t (*peerbus_all_gather_function)(void *context, const void *own, void *all,
                                               uint64_t bytes);

/** Ranks that something else connects already, such as MPI or a store, and that meet by it. */
typedef struct peerbus_meeting {
  uint32_t struct_bytes;                  /**< sizeof(peerbus_meeting) */
  uint32_t reserved;                      /**< 0 */
  uint64_t rank;                          /**< of the caller, below `size` */
  uint64_t size;                          /**< number of ranks, at least 1 */
  peerbus_all_gather_function all_gather; /**< called twice, by the calling thread */
  void *context;                          /**< for `all_gather` */
  /** Address of the host of rank 0, by which all ranks reach it. Rank 0's counts. NULL: the host's
   * name. Not needed if all ranks are on one host. */
  const char *address;
  const char *host; /**< name of this rank's host; NULL: as for `peerbus_place` */
} peerbus_meeting;

/** Returns 1 if a launcher (torchrun, mpirun, srun, a script) has started this process as a rank,
 * otherwise 0. Threads: any, as long as none changes the environment. */
PEERBUS_API int32_t peerbus_launched(void);

/**
 * Collective: makes a communicator of the processes that a launcher started, and sets
 * `*comm`. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT give the place, or the variables of Open
 * MPI, PMI or Slurm (docs/bootstrap.md). The ranks meet over TCP if PEERBUS_SECRET,
 * PEERBUS_SECRET_FILE or PEERBUS_HOST is set, or if the launcher tells of other hosts; otherwise they
 * are on one host. The caller destroys `*comm`.
 *
 * What lies on a network is in libraries of its own beside libpeerbus.so, which are loaded when they
 * are needed: libpeerbus_tcp.so (OpenSSL), libpeerbus_fabric.so (libfabric), libpeerbus_verbs.so
 * (libibverbs).
 * Errors: PEERBUS_INVALID_ARGUMENT names a variable that is missing or wrong, PEERBUS_TIMED_OUT
 * names the ranks that did not come. Also PEERBUS_MISMATCH (other options on another rank),
 * PEERBUS_PEER_DEAD, PEERBUS_UNSUPPORTED (a transport that does not reach all ranks, a library that
 * a rank cannot load), PEERBUS_SYSTEM. `*comm` is then NULL. All ranks fail alike, except that a rank
 * that lacks libpeerbus_tcp.so has no way to tell the others, which time out.
 */
PEERBUS_API peerbus_code peerbus_comm_from_environment(const peerbus_comm_options *options,
                                                       peerbus_comm **comm);

/** Collective: makes a communicator of the processes that meet at `place`. Contract as
 * `peerbus_comm_from_environment`. */
PEERBUS_API peerbus_code peerbus_comm_at(const peerbus_place *place,
                                         const peerbus_comm_options *options, peerbus_comm **comm);

/** Collective: makes a communicator of the processes that `meeting` connects. What it carries are the
 * names of hosts, the place where rank 0 waits and a fresh secret. `meeting` is not needed afterwards.
 * Contract as `peerbus_comm_from_environment`; PEERBUS_SYSTEM also if `all_gather` fails. */
PEERBUS_API peerbus_code peerbus_comm_over(const peerbus_meeting *meeting,
                                           const peerbus_comm_options *options,
                                           peerbus_comm **comm);

/**
 * Collective over `parent`: makes a communicator of `count` of its ranks, which become ranks 0, 1,
 * ... in the order of `ranks`. All ranks of `parent` call, each with the list of its own group. The
 * lists of different groups do not overlap. A rank that needs no group passes itself alone. A limit
 * of 0 in `options`, or NULL, stands for that of `parent`, and so does the automatic transport.
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
/** Returns 1 if the memory of `rank` loads and stores like the caller's own, as that of the caller
 * does, or 0 if not, if there is no such rank or if `comm` is NULL. Threads: any. */
PEERBUS_API int32_t peerbus_comm_is_near(const peerbus_comm *comm, uint64_t rank);
/** Returns the name of the transport of `comm`: "loopback", "unified_bus", "planes", "planes_verbs",
 * "fabric" or "verbs", or "" if `comm` is NULL. Threads: any. */
PEERBUS_API const char *peerbus_comm_transport(const peerbus_comm *comm);

/**
 * Collective: returns after all ranks have called it. Everything that a rank wrote before is visible
 * to all ranks after. Cost: ceil(log2 size) signals.
 * Errors: PEERBUS_TIMED_OUT and PEERBUS_PEER_DEAD, which poison the communicator, PEERBUS_POISONED.
 */
PEERBUS_API peerbus_code peerbus_comm_barrier(peerbus_comm *comm, int64_t timeout_ns);

/**
 * Collective: starts to record what this rank does, in a ring of the latest `events` events of each thread
 * (0: 8192). Call it before exchanges are made. PEERBUS_TRACE=DIRECTORY in the environment of all ranks does
 * this for every communicator, and writes a file there when it is destroyed, for which a rank then waits for
 * the others, up to 10 seconds: destroy communicators in the same order on all ranks. A communicator that is
 * poisoned does not wait, and leaves a file of each rank.
 * Cost: 64 bytes of memory for each event of 8 threads, and less than 2 % of the time of 128 tokens.
 * Errors: PEERBUS_INVALID_ARGUMENT if it has started, PEERBUS_TIMED_OUT, PEERBUS_PEER_DEAD.
 */
PEERBUS_API peerbus_code peerbus_comm_start_trace(peerbus_comm *comm, uint64_t events,
                                                  int64_t timeout_ns);
/**
 * Collective: writes the recorded events of all ranks to the file `path` of rank 0, in the JSON format of
 * Chrome's trace viewer, which ui.perfetto.dev opens.
 * Errors: PEERBUS_INVALID_ARGUMENT if nothing is recorded. PEERBUS_TIMED_OUT and PEERBUS_PEER_DEAD if ranks
 * do not come; each rank that calls then has a file of its own, `path` with ".rank" and its number behind.
 * PEERBUS_SYSTEM if a file cannot be written.
 */
PEERBUS_API peerbus_code peerbus_comm_write_trace(peerbus_comm *comm, const char *path,
                                                  int64_t timeout_ns);

/**
 * Goes on without the ranks that have died or left since. The living ranks call it when a call has
 * returned PEERBUS_PEER_DEAD, and agree on the next view, in which ranks keep their numbers; also if more
 * die meanwhile. No other call with `comm`, or what was made from it, is under way. If no rank is gone,
 * nothing happens.
 *
 * Afterwards the barrier, windows, and exchanges, teams and channels that are resumed
 * (`peerbus_exchange_resume`, `peerbus_team_resume`, `peerbus_channels_resume`) work, and windows and
 * exchanges can be made. Low-latency calls of buffers with `enable_shrink` go on by themselves. Other
 * buffers, and teams and channels that are not resumed, return PEERBUS_VIEW_CHANGED: make them anew with
 * `peerbus_comm_survivors`.
 *
 * Between hosts, ranks of a mesh (`peerbus_comm_with_vacancies` with a secret, PEERBUS_MESH) agree by
 * messages. Of `comm` and what was made from it, `peerbus_comm_survivors` alone works then. Ranks out of
 * reach may live: without them only more than half of the ranks go on, or half of them with the first.
 * Errors: PEERBUS_UNSUPPORTED unless all ranks share the memory of one host or are a mesh;
 * PEERBUS_TIMED_OUT names a living rank that did not call; PEERBUS_VIEW_CHANGED if the others went on
 * without this rank; PEERBUS_UNREACHABLE if too few are left.
 */
PEERBUS_API peerbus_code peerbus_comm_continue(peerbus_comm *comm, int64_t timeout_ns);
/**
 * Goes on as `peerbus_comm_continue` without the `count` ranks `evicted` too, who may live, be stopped or
 * out of reach. Their processes are ended as by `kill -9` if all ranks share the memory of one host. Else
 * they get errors, and PEERBUS_VIEW_CHANGED from `peerbus_comm_continue`; who names one that is out of
 * reach must know that it does not go on. Of ranks that name each other at most one side goes on: more than half of
 * the view, or half with its first rank; fewer when those that they name have learned it, or ended. All
 * others call this, or that once a call of theirs has failed, again while the view stays as it is.
 * Errors: PEERBUS_INVALID_ARGUMENT if `evicted` names the caller or no rank; as `peerbus_comm_continue`.
 */
PEERBUS_API peerbus_code peerbus_comm_continue_without(peerbus_comm *comm, const uint64_t *evicted,
                                                       uint64_t count, int64_t timeout_ns);
/** Returns the number of the view, 0 while no rank is gone, or 0 if `comm` is NULL. */
PEERBUS_API uint64_t peerbus_comm_view(const peerbus_comm *comm);
/** Returns 1 if `rank` takes part in operations, otherwise, or if `comm` is NULL, 0. */
PEERBUS_API int32_t peerbus_comm_is_member(const peerbus_comm *comm, uint64_t rank);
/** Returns what is known of `rank` now: 0 if it runs, 1 if it has left, 2 if it has died or failed, or
 * -1 if there is no such rank. This changes by itself, and does not change who takes part.
 * Threads: any. */
PEERBUS_API int32_t peerbus_comm_rank_state(const peerbus_comm *comm, uint64_t rank);

/** What a rank was last seen doing: its latest wait for other ranks. */
typedef struct peerbus_last_seen {
  uint32_t struct_bytes; /**< sizeof(peerbus_last_seen) */
  /** 1 if the rest is known; 0 if the rank has not waited yet, or shares no memory with the caller, as
   * on another host. Names are then "", and numbers 0. */
  int32_t is_known;
  int32_t is_over;       /**< 1 if what it waited for has come */
  uint32_t reserved;     /**< 0 */
  const char *operation; /**< a literal, such as "dispatch", "barrier" or "all_reduce" */
  const char *phase;     /**< a literal: "counts", "rows", "outputs", "weights", or "" if it has none */
  uint64_t number;       /**< of the operation, as in errors; 0 if it has none */
  int64_t since_ns;      /**< how long ago the wait began; exact to a few milliseconds */
  int64_t heard_ns;      /**< how long ago the rank was last heard; the same */
} peerbus_last_seen;

/**
 * Says what `rank` was last seen doing. A rank is heard when it begins a wait, and every few
 * milliseconds while that goes on: one that computes, is stopped or is stuck elsewhere is not. This
 * changes by itself, and changes no result. Threads: any.
 * Errors: PEERBUS_INVALID_ARGUMENT if there is no such rank.
 */
PEERBUS_API peerbus_code peerbus_comm_last_seen(const peerbus_comm *comm, uint64_t rank,
                                                peerbus_last_seen *seen);
/**
 * Collective among the ranks of the view: makes a communicator of them, which become ranks 0, 1, ... in
 * their order. All of them that live get it, or all get an error and have `parent` as it was: on
 * PEERBUS_PEER_DEAD they go on by `peerbus_comm_continue`, and call this again. A limit of 0 in `options`,
 * or NULL, stands for that of `parent`.
 * Errors: as `peerbus_comm_continue` and `peerbus_comm_from_environment`.
 */
PEERBUS_API peerbus_code peerbus_comm_survivors(peerbus_comm *parent,
                                                const peerbus_comm_options *options,
                                                peerbus_comm **comm);

/**
 * Collective among `count` processes of one host that meet at `place`: makes a communicator of
 * `place->size` ranks, of which only those in `ranks`, in ascending order, are there. The others count
 * as gone, and may come by `peerbus_comm_join`.
 * With `place->secret` the processes may be on any hosts and meet over TCP as a mesh. The communicator then
 * has `count` ranks, numbered in the order of `ranks`, and `place->size` slots.
 * Errors: PEERBUS_INVALID_ARGUMENT (numbers that are not ascending, not below the size or without the
 * caller's); as `peerbus_comm_at`.
 */
PEERBUS_API peerbus_code peerbus_comm_with_vacancies(const peerbus_place *place,
                                                     const uint64_t *ranks, uint64_t count,
                                                     const peerbus_comm_options *options,
                                                     peerbus_comm **comm);
/**
 * If processes wait in `peerbus_comm_join` at `place`, makes a communicator of the ranks of the view and of
 * them. Collective among the ranks of the view, between two operations, with the same `place`, whose rank
 * and size do not count. Ranks keep their numbers. `*comm` is NULL if nobody waits, or if those who
 * wait could not be taken in; `peerbus_comm_refusal` then says why. `parent` stays as it is, and is
 * destroyed when it is not needed any more. Windows, exchanges and so on are made anew.
 * Ranks of a mesh, by `peerbus_comm_with_vacancies` with a secret or PEERBUS_MESH, listen at the port of
 * `place` on the host of their lowest rank. They are numbered anew, in the order of their slots. Their
 * transport has to be another than unified_bus, which the automatic one is if all are on one host.
 * A rank that forks after its first call keeps others from listening at the place while the child lives.
 * Cost: if nobody waits, a signal and a wait for each rank.
 * Errors: PEERBUS_PEER_DEAD and PEERBUS_TIMED_OUT if a rank of the view dies or does not call;
 * PEERBUS_UNSUPPORTED unless all ranks share the memory of one host or are a mesh; PEERBUS_INVALID_ARGUMENT.
 */
PEERBUS_API peerbus_code peerbus_comm_admit(peerbus_comm *parent, const peerbus_place *place,
                                            const peerbus_comm_options *options,
                                            peerbus_comm **comm);
/** Returns why the latest `peerbus_comm_admit` of `comm` took in nobody who waited, or "". Valid until the
 * next one. */
PEERBUS_API const char *peerbus_comm_refusal(const peerbus_comm *comm);
/**
 * Makes this process rank `place->rank` of a running group, in place of one that is gone or was never there,
 * and sets `*comm` to its communicator. Waits until the group takes it in by `peerbus_comm_admit`.
 * Prepare what takes long before. If the ranks met over TCP, `place` has their secret, and as `address` the
 * hosts where their lowest rank may be, with commas between them; `place->rank` is the slot.
 * Errors: PEERBUS_MISMATCH with the reason if the group refuses it (the rank is there, two claim it, another
 * size, other options); PEERBUS_TIMED_OUT; as `peerbus_comm_at`.
 */
PEERBUS_API peerbus_code peerbus_comm_join(const peerbus_place *place,
                                           const peerbus_comm_options *options,
                                           peerbus_comm **comm);

/**
 * Does at once what this rank has to do for peers of other hosts: whoever gets from it, or waits until it
 * takes what was put, waits until it makes a call. For ranks that wait for something else for long, such as
 * another library's barrier. With shared memory there is nothing to do.
 * Errors: PEERBUS_UNREACHABLE and PEERBUS_SYSTEM.
 */
PEERBUS_API peerbus_code peerbus_comm_progress(peerbus_comm *comm);

/** Returns other than 0 to end the wait of the calling thread. */
typedef int32_t (*peerbus_interrupt_function)(void *context);

/**
 * Makes every wait of this communicator call `interrupt(context)` about 20 times a second, in the
 * thread that waits. If it returns other than 0, the call that waits fails with PEERBUS_INTERRUPTED.
 * Except for `peerbus_window_wait`, that leaves the ranks out of step: the communicator is then
 * poisoned. NULL removes the function. Making communicators, windows and exchanges does not call it.
 * The function may call the library. With the objects of the call that waits, it may only destroy
 * them. If the function forks, the call fails in the child with
 * PEERBUS_INVALID_ARGUMENT. Between hosts, a call that waits until a peer takes what was put to it (a
 * flush, a barrier after puts) does not call it meanwhile. For languages that handle signals between calls.
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
