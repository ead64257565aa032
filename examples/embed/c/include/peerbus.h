/* SPDX-License-Identifier: MIT */
#ifndef PEERBUS_H
#define PEERBUS_H

/**
 * @file
 * peerbus for C11 and for languages that bind to C. docs/c.md explains it by examples.
 *
 * Conventions:
 *
 * - A function that can fail returns a `peerbus_code`, and `peerbus_last_error` then has a sentence
 *   about it for the calling thread. No C++ exception leaves the library, nothing is printed, and
 *   nothing aborts.
 * - Objects are opaque. `peerbus_..._destroy` takes the address of the handle and sets the handle to
 *   NULL, so that a second call has no effect. Objects may be destroyed in any order: an object
 *   keeps what it was made from alive. Other copies of a destroyed handle must not be used.
 * - Structures begin with `struct_bytes`, which the caller sets to their size. Later versions only
 *   add members at the end. A member that is 0 or NULL has its default, so that
 *   `peerbus_dispatch_args args = {.struct_bytes = sizeof args}` is a good start.
 * - Arrays are [rows, columns] in row-major order without gaps. bf16 and fp8 values are passed as
 *   `void *`, because C has no type for them: two bytes and one byte each.
 * - A time limit is in nanoseconds. 0 is the default of the communicator, and a negative number
 *   means no limit.
 *
 * Threads: any thread may use any object, and different objects may be used at the same time. One
 * call at a time uses one object, except where a function says otherwise; a second call fails with
 * PEERBUS_INVALID_ARGUMENT. Collective calls of a communicator are made by one thread at a time.
 *
 * Forks: in a child process that `fork` made, every object of the parent is unusable. Calls return
 * PEERBUS_INVALID_ARGUMENT, and destroying only forgets the handle. The other ranks do not notice
 * the child. A child that replaces itself by exec keeps nothing open.
 */

#include <peerbus_c/base.h>
#include <peerbus_c/channels.h>
#include <peerbus_c/collective.h>
#include <peerbus_c/comm.h>
#include <peerbus_c/deep_ep.h>
#include <peerbus_c/ep_buffer.h>
#include <peerbus_c/eplb.h>
#include <peerbus_c/exchange.h>
#include <peerbus_c/expert_weights.h>
#include <peerbus_c/pp.h>
#include <peerbus_c/profile.h>
#include <peerbus_c/received.h>
#include <peerbus_c/team.h>
#include <peerbus_c/tensor.h>
#include <peerbus_c/window.h>

#endif
