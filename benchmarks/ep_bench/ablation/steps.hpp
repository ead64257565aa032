// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "support/samples.hpp"

namespace ep_bench {

/// One way to do dispatch and combine; each has all that those before it have.
struct ablation_step {
  const char* name;
  const char* what;
};

inline constexpr std::array<ablation_step, 5> ablation_steps{{
    {"basic flow",
     "three collectives (counts, tokens, results), each complete before the next: bf16 rows packed "
     "into a send buffer, copied to the other rank by process_vm_writev, grouped by expert there; "
     "buffers allocated and freed, and their addresses exchanged, in every call"},
    {"+ direct writes",
     "rows are packed by plain stores to where they arrive, in a window that all ranks map: no "
     "copy through the kernel, no send buffer"},
    {"+ early quantisation", "tokens become int8 with a scale per token before they are sent"},
    {"+ static buffers",
     "the other buffers too are allocated once, and all addresses known beforehand"},
    {"+ one fused operation",
     "peerbus::moe::exchange: each row is written once, to its final place, and summed from where "
     "its expert left it"},
}};

/// What is timed of each step; the table of samples has them step by step.
enum class ablation_series : std::size_t { dispatch, combine, sum };
inline constexpr std::size_t ablation_series_count = 3;

constexpr std::size_t index(std::size_t step, ablation_series which) noexcept {
  return step * ablation_series_count + static_cast<std::size_t>(which);
}

/// What an ablation found out. Samples are there on rank 0 only.
struct ablation_outcome {
  std::string impossible;  ///< why the machine cannot do the basic flow; empty if it can
  std::string wrong;       ///< what the check found; empty if all was right
  bench::sample_table samples;
};

}  // namespace ep_bench
