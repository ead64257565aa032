// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Includes what the transport needs of libfabric, whose macros `container_of` and `count_of` are
/// names of programs as well. Who wants these macros includes libfabric before peerbus.

#pragma push_macro("container_of")
#pragma push_macro("count_of")
#include <rdma/fabric.h>       // IWYU pragma: export
#include <rdma/fi_cm.h>        // IWYU pragma: export
#include <rdma/fi_domain.h>    // IWYU pragma: export
#include <rdma/fi_endpoint.h>  // IWYU pragma: export
#include <rdma/fi_eq.h>        // IWYU pragma: export
#include <rdma/fi_errno.h>     // IWYU pragma: export
#include <rdma/fi_rma.h>       // IWYU pragma: export
#pragma pop_macro("count_of")
#pragma pop_macro("container_of")
