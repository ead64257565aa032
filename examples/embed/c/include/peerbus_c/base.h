/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_C_BASE_H
#define PEERBUS_C_BASE_H

/**
 * @file
 * Version, error codes and error texts.
 */

#include <stddef.h>
#include <stdint.h>

/** Marks the functions that libpeerbus.so exports. */
#define PEERBUS_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/** The version of this header. Until 1.0 a new minor version may change the interface, and the
 * library's file name then changes with it (libpeerbus.so.0.1). */
enum { PEERBUS_C_MAJOR = 0, PEERBUS_C_MINOR = 1, PEERBUS_C_PATCH = 0 };

/** Returns the version of the library that runs: major x 65536 + minor x 256 + patch. Threads: any. */
PEERBUS_API uint32_t peerbus_version(void);

/** Lets all processes of this user read the private memory of this one, where Yama restricts that
 * (ptrace_scope 1, as on Ubuntu), so that large operands of collectives are copied once instead of
 * twice. They may trace it in other ways too. Before the communicator is made. Cost: a system call.
 * Returns 1, or 0 if the kernel knows no such restriction. Threads: any. */
PEERBUS_API int32_t peerbus_permit_private_reads(void);

/** Whether tokens for ranks of another host cross once for that host, and are handed on there. Over
 * memory of one host all ranks are near: PEERBUS_RELAY_ALWAYS is PEERBUS_UNSUPPORTED there. */
enum { PEERBUS_RELAY_NEVER = 0, PEERBUS_RELAY_ALWAYS = 1, PEERBUS_RELAY_AUTOMATIC = 2 };

/** The type in which the sums of a host cross between hosts with relay: rounded, or as they are for
 * twice the bytes. */
enum { PEERBUS_RELAY_SUMS_BF16 = 0, PEERBUS_RELAY_SUMS_F32 = 1 };

/** The result of a call. The numbers never change. */
typedef int32_t peerbus_code;

enum {
  PEERBUS_OK = 0,
  PEERBUS_INVALID_ARGUMENT = 1, /**< a value outside what the function accepts */
  PEERBUS_OUT_OF_RANGE = 2,     /**< bytes outside a window, a rank or signal that does not exist */
  PEERBUS_MISMATCH = 3,         /**< ranks were configured differently */
  PEERBUS_OUT_OF_MEMORY = 4,    /**< the requested memory is not available */
  PEERBUS_TIMED_OUT = 5,        /**< the time limit passed first */
  PEERBUS_PEER_DEAD = 6,        /**< a rank died or left before it had done its part */
  PEERBUS_POISONED = 7,         /**< an earlier failure left the ranks out of step */
  PEERBUS_REFUSED = 8,          /**< another rank refused its input; nothing happened */
  PEERBUS_UNSUPPORTED = 9,      /**< this machine or this version cannot do it */
  PEERBUS_SYSTEM = 10,          /**< a system call failed */
  PEERBUS_UNREACHABLE = 11,     /**< the connection to a rank broke */
  PEERBUS_VIEW_CHANGED = 12,    /**< ranks went on without others; resume what was made before */
  PEERBUS_INTERRUPTED = 64,     /**< the function given to `peerbus_comm_set_interrupt` said stop */
  PEERBUS_INTERNAL = 65         /**< a defect of the library; please report it */
};

/** Returns the meaning of `code` in a few words, such as "timed out". The text is static.
 * Threads: any. */
PEERBUS_API const char *peerbus_code_text(peerbus_code code);

/**
 * Returns what the latest failed call of this thread found wrong, or "" if none has failed. The text
 * states the given and the expected values. It is at most 2047 bytes long, and valid until the next
 * call of this thread fails. Threads: each has its own text.
 */
PEERBUS_API const char *peerbus_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
