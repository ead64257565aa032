// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

#include "deep_ep/options.hpp"
#include "ep_bench/gate.hpp"
#include "support/findings.hpp"
#include "support/pages.hpp"
#include "support/samples.hpp"
#include "support/timed.hpp"

namespace deep_ep_bench {

using peerbus::bf16;

/// One rank's tokens, and the routing that both sides are given.
struct rank_input {
  rank_input(const options& chosen, std::size_t rank)
      : count{chosen.payload.tokens},
        hidden{chosen.payload.hidden},
        top_k{chosen.payload.top_k},
        tokens{count * hidden},
        weights{} {
    const auto choice = ep_bench::gate{chosen.payload, chosen.payload.ranks}.choose(rank);
    experts.assign(choice.experts.begin(), choice.experts.end());
    weights = choice.weights;
    // Quarters of -2 to 2, exact in bf16, and different for every token and channel.
    for (std::size_t i = 0; i < tokens.all().size(); ++i) {
      const std::uint64_t mixed = (i + rank * 1'000'003 + 1) * 0x9e3779b97f4a7c15U;
      tokens.all()[i] = bf16{static_cast<float>(mixed >> 59U) * 0.25F - 2.0F};
    }
  }

  std::size_t count;
  std::size_t hidden;
  std::size_t top_k;
  bench::pages<bf16> tokens;          ///< [count, hidden]
  std::vector<std::int64_t> experts;  ///< [count, top_k]
  std::vector<float> weights;         ///< [count, top_k]
};

/// Brings the outputs of a rank, which lie in memory of its own, to where combine reads them.
class own_outputs {
 public:
  /// `unused`: combine has them already, so that there are none to bring.
  own_outputs(peerbus::rank_id rank, std::size_t tokens, std::size_t copies, bool unused)
      : rank_{rank}, copies_{copies}, outputs_(unused ? 0 : tokens * copies) {}

  /// Copies the output of a row to its home rank, if that is another one.
  template <class Rows>
  void place(const Rows& rows, std::size_t i, const bf16* output) noexcept {
    const auto origin = rows.origin(i);
    if (origin.rank == rank_)
      outputs_[origin.token * copies_ + origin.slot] = output;
    else
      std::memcpy(rows.output(i).data(), output, rows.output(i).size_bytes());
  }
  /// Returns what the combine reads where it lies, as `combine_terms::own`.
  [[nodiscard]] std::span<const bf16* const> outputs() const noexcept { return outputs_; }

 private:
  peerbus::rank_id rank_;
  std::size_t copies_;
  std::vector<const bf16*> outputs_;
};

/// Which of the two is timed.
enum class side : std::size_t { first = 0, second = 1 };
inline constexpr std::array sides{side::first, side::second};

/// What the sides are called, in words and in the names of the first one's figures.
struct side_names {
  std::array<const char*, 2> words;
  const char* first_key;
};

/// What a run found out. Times, in microseconds and of the slowest rank, are there on rank 0 only.
struct outcome {
  std::string wrong;  ///< what the check found; empty if all was right
  std::array<std::vector<double>, 2> dispatch;
  std::array<std::vector<double>, 2> combine;
  std::vector<double>
      second_combine;  ///< of DeepEP's names, by the same handle; empty if not asked
};

/// Two sides over the same memory: both are timed in turns. A side has `dispatch()`,
/// `run_experts()`, `combine()` and `sums()`.
template <class Memory, class First, class Second>
class two_sides {
 public:
  /// `roundings`: how many roundings more the sums of the second side have, as relay adds some.
  template <class Transport>
  two_sides(peerbus::communicator<Transport>& comm, const options& chosen, const rank_input& input,
            int roundings = 0)
      : memory_{comm.size(), chosen, input},
        first_{comm, chosen, memory_},
        second_{comm, chosen, memory_},
        roundings_{roundings} {}

  void dispatch(side which) { which == side::first ? first_.dispatch() : second_.dispatch(); }
  void run_experts(side which) {
    which == side::first ? first_.run_experts() : second_.run_experts();
  }
  void combine(side which) { which == side::first ? first_.combine() : second_.combine(); }
  /// Returns what is wrong with what the last combine gave.
  [[nodiscard]] std::string wrong(side which) {
    return which == side::first ? memory_.wrong(first_.sums(), 0)
                                : memory_.wrong(second_.sums(), roundings_);
  }

 private:
  Memory memory_;
  First first_;
  Second second_;
  int roundings_;
};

/// Times both sides in turns, each iteration one or the other first by turns, so that what disturbs
/// one disturbs the other. `names` are those of the sides.
template <class Sides, class Transport>
outcome measure(peerbus::communicator<Transport>& comm, const options& chosen,
                const side_names& names, int roundings = 0) {
  const rank_input input{chosen, comm.rank().index()};
  Sides subject{comm, chosen, input, roundings};
  const std::size_t iterations = chosen.payload.iterations;
  bench::sample_store<Transport> samples{comm, 5, iterations};
  bench::shared_findings<Transport> findings{comm};
  const auto iterate = [&](side which, std::size_t i, bool keep) {
    input.tokens.recall();
    const double there = bench::timed(comm, [&] { subject.dispatch(which); });
    subject.run_experts(which);
    const double back = bench::timed(comm, [&] { subject.combine(which); });
    const bool again = chosen.twice && which == side::second;
    const double second = again ? bench::timed(comm, [&] { subject.combine(which); }) : 0;
    if (!keep) return;
    samples.set(2 * static_cast<std::size_t>(which), i, there);
    samples.set(2 * static_cast<std::size_t>(which) + 1, i, back);
    if (again) samples.set(4, i, second);
  };
  const auto check = [&] {
    std::string found;
    for (const side which : sides) {
      iterate(which, 0, false);
      if (const std::string text = subject.wrong(which); found.empty() && !text.empty())
        found = std::string{names.words[static_cast<std::size_t>(which)]} + ": " + text;
    }
    return findings.first_of_all(found);
  };
  const std::vector<side> timed_sides =
      chosen.alone ? std::vector{side::second} : std::vector(sides.begin(), sides.end());
  outcome result;
  result.wrong = check();
  if (!result.wrong.empty()) return result;
  for (std::size_t i = 0; i < chosen.payload.warmup; ++i)
    for (const side which : timed_sides) iterate(which, 0, false);
  for (std::size_t i = 0; i < iterations; ++i)
    for (std::size_t s = 0; s < timed_sides.size(); ++s)
      iterate(timed_sides[(i + s) % timed_sides.size()], i, true);
  result.wrong = check();
  const auto slowest = samples.slowest(iterations);
  for (std::size_t s = 0; s < 2; ++s) {
    result.dispatch[s] = slowest[2 * s];
    result.combine[s] = slowest[2 * s + 1];
  }
  if (chosen.twice) result.second_combine = slowest[4];
  return result;
}

/// Compares bit by bit, or, if sums were rounded `roundings` times more, within that many steps of
/// bf16. Returns: the first difference, in words, or nothing.
inline std::string first_difference(std::span<const bf16> given, std::span<const bf16> expected,
                                    std::size_t hidden, int roundings) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (given[i].bits == expected[i].bits) continue;
    const double found = static_cast<double>(static_cast<float>(given[i]));
    const double wanted = static_cast<double>(static_cast<float>(expected[i]));
    // Partial sums may be greater than the sum; tokens are at most 2.
    if (std::abs(found - wanted) <= roundings * std::max(std::abs(wanted), 4.0) / 128) continue;
    return peerbus::concat("token ", i / hidden, ", channel ", i % hidden, " is ", found,
                           ", expected ", wanted);
  }
  return {};
}

}  // namespace deep_ep_bench
