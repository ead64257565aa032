// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "deep_ep/options.hpp"
#include "deep_ep/pair.hpp"

namespace deep_ep_bench {

inline constexpr side_names relay_names{{"without relay", "with relay"}, "never_"};

/// Times DeepEP's names without and with relay over pretended hosts that TCP connects: low latency
/// with bf16 or fp8, or the normal calls. Throws: `peerbus::error` unsupported if the program was
/// built without `fabric`.
outcome measure_relay(peerbus::bootstrap& boot, const options& chosen);

}  // namespace deep_ep_bench
