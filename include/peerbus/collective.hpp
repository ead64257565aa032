// SPDX-License-Identifier: MIT
#pragma once

/// Includes all collective operations. Each also has a header of its own.

#include <peerbus/collective/all_gather.hpp>        // IWYU pragma: export
#include <peerbus/collective/all_gather_coded.hpp>  // IWYU pragma: export
#include <peerbus/collective/all_gather_v.hpp>      // IWYU pragma: export
#include <peerbus/collective/all_reduce.hpp>        // IWYU pragma: export
#include <peerbus/collective/all_reduce_add.hpp>    // IWYU pragma: export
#include <peerbus/collective/all_to_all.hpp>        // IWYU pragma: export
#include <peerbus/collective/all_to_all_v.hpp>      // IWYU pragma: export
#include <peerbus/collective/broadcast.hpp>         // IWYU pragma: export
#include <peerbus/collective/channels.hpp>          // IWYU pragma: export
#include <peerbus/collective/gather.hpp>            // IWYU pragma: export
#include <peerbus/collective/gather_v.hpp>          // IWYU pragma: export
#include <peerbus/collective/in_window.hpp>         // IWYU pragma: export
#include <peerbus/collective/part_layout.hpp>       // IWYU pragma: export
#include <peerbus/collective/pending.hpp>           // IWYU pragma: export
#include <peerbus/collective/pending_messages.hpp>  // IWYU pragma: export
#include <peerbus/collective/reduce.hpp>            // IWYU pragma: export
#include <peerbus/collective/reduce_scatter.hpp>    // IWYU pragma: export
#include <peerbus/collective/reduce_scatter_v.hpp>  // IWYU pragma: export
#include <peerbus/collective/reduction.hpp>         // IWYU pragma: export
#include <peerbus/collective/request.hpp>           // IWYU pragma: export
#include <peerbus/collective/run_request.hpp>       // IWYU pragma: export
#include <peerbus/collective/scatter.hpp>           // IWYU pragma: export
#include <peerbus/collective/scatter_v.hpp>         // IWYU pragma: export
#include <peerbus/collective/send_recv.hpp>         // IWYU pragma: export
#include <peerbus/collective/team.hpp>              // IWYU pragma: export
#include <peerbus/collective/transfer.hpp>          // IWYU pragma: export
