// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Includes libfabric without its macros `container_of` and `count_of`, which programs also use as
/// names. To keep these macros, include libfabric before peerbus.

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
