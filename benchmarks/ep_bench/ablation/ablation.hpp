// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

#include "ep_bench/ablation/basic_flow.hpp"
#include "ep_bench/ablation/fused_flow.hpp"
#include "ep_bench/ablation/landing.hpp"
#include "ep_bench/ablation/steps.hpp"
#include "ep_bench/check.hpp"
#include "ep_bench/experts.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/payload.hpp"
#include "ep_bench/progress.hpp"
#include "support/findings.hpp"
#include "support/kernel_copy.hpp"
#include "support/pages.hpp"
#include "support/samples.hpp"
#include "support/timed.hpp"

namespace ep_bench {

/// One rank's part of an ablation: checks every step, times all of them in turns, checks again.
/// Each round begins with another step, so that none always follows the same one.
template <class Transport>
class ablation {
 public:
  ablation(peerbus::communicator<Transport>& comm, const options& chosen)
      : comm_{&comm},
        chosen_{chosen},
        fused_{comm, chosen},
        basic_{comm, chosen, writes::through_kernel, buffers::per_call},
        direct_{comm, chosen, writes::direct, buffers::per_call},
        quantised_{comm, chosen, writes::direct, buffers::per_call},
        static_{comm, chosen, writes::direct, buffers::kept},
        truth_{chosen, comm.rank().index(), comm.size()},
        tokens_(chosen.tokens * chosen.hidden),
        combined_(chosen.tokens * chosen.hidden),
        experts_{chosen.hidden},
        check_bf16_{chosen, truth_, comm.rank().index()},
        check_int8_{chosen, truth_, comm.rank().index()},
        findings_{comm},
        samples_{comm, steps * ablation_series_count, chosen.iterations} {
    fill_tokens(payload{chosen.seed}, comm.rank().index(), chosen.hidden, tokens_.all());
  }

  [[nodiscard]] ablation_outcome run() {
    ablation_outcome result;
    bench::allow_kernel_copies();
    comm_->barrier();
    result.impossible = findings_.first_of_all(try_kernel_copies());
    if (!result.impossible.empty()) return result;
    result.wrong = findings_.first_of_all(check_everything());
    if (!result.wrong.empty()) return result;
    for (std::size_t i = 0; i < chosen_.warmup; ++i) round(0);
    progress shown{comm_->rank().index() == 0, chosen_.iterations};
    for (std::size_t i = 0; i < chosen_.iterations; ++i) {
      round(i);
      shown.at(i);
    }
    result.wrong = findings_.first_of_all(check_everything());
    result.samples = samples_.slowest(chosen_.iterations);
    return result;
  }

 private:
  static constexpr std::size_t steps = ablation_steps.size();
  using bf16 = peerbus::codec::bf16;
  using int8 = peerbus::codec::int8_per_token;

  [[nodiscard]] std::string try_kernel_copies() {
    const landing<Transport> target{*comm_, sizeof(std::uint64_t)};
    const std::uint64_t value = 0;
    std::string found;
    for (std::size_t r = 0; r < comm_->size() && found.empty(); ++r)
      if (const int code =
              bench::try_kernel_copy(target.process(r), target.address(r, 0),
                                     reinterpret_cast<const std::byte*>(&value), sizeof value);
          code != 0)
        found = peerbus::describe_errno(code);
    comm_->barrier();
    return found;
  }

  /// Calls `visit` with the flow of a step and the checker for its codec.
  template <class Visit>
  void with_step(std::size_t step, Visit&& visit) {
    switch (step) {
      case 0: return visit(basic_, check_bf16_);
      case 1: return visit(direct_, check_bf16_);
      case 2: return visit(quantised_, check_int8_);
      case 3: return visit(static_, check_int8_);
      default: return visit(fused_, check_int8_);
    }
  }

  void round(std::size_t i) {
    for (std::size_t turn = 0; turn < steps; ++turn) {
      const std::size_t step = (i + turn) % steps;
      with_step(step, [&](auto& flow, auto&) {
        tokens_.recall();
        decltype(&flow.dispatch(tokens_.all(), truth_.mine())) arrived = nullptr;
        const double there =
            bench::timed(*comm_, [&] { arrived = &flow.dispatch(tokens_.all(), truth_.mine()); });
        experts_.run(*arrived);
        const double back =
            bench::timed(*comm_, [&] { flow.combine(truth_.mine(), combined_.all()); });
        samples_.set(index(step, ablation_series::dispatch), i, there);
        samples_.set(index(step, ablation_series::combine), i, back);
        samples_.set(index(step, ablation_series::sum), i, there + back);
      });
    }
  }

  [[nodiscard]] std::string check_everything() {
    std::string found;
    for (std::size_t step = 0; step < steps; ++step)
      with_step(step, [&](auto& flow, auto& check) {
        std::fill(combined_.all().begin(), combined_.all().end(), peerbus::bf16::from_bits(0xffff));
        const auto& arrived = flow.dispatch(tokens_.all(), truth_.mine());
        std::string wrong = check.received(arrived);
        experts_.run(arrived);
        flow.combine(truth_.mine(), combined_.all());
        if (wrong.empty()) wrong = check.combined(combined_.all());
        if (found.empty() && !wrong.empty())
          found = peerbus::concat(ablation_steps[step].name, ": ", wrong);
      });
    return found;
  }

  peerbus::communicator<Transport>* comm_;
  options chosen_;
  fused_flow<Transport, int8> fused_;  // First, as it refuses what is too large.
  basic_flow<Transport, bf16> basic_;
  basic_flow<Transport, bf16> direct_;
  basic_flow<Transport, int8> quantised_;
  basic_flow<Transport, int8> static_;
  oracle truth_;
  bench::pages<peerbus::bf16> tokens_;
  bench::pages<peerbus::bf16> combined_;
  expert_work experts_;
  checker<bf16> check_bf16_;
  checker<int8> check_int8_;
  bench::shared_findings<Transport> findings_;
  bench::sample_store<Transport> samples_;
};

}  // namespace ep_bench
