// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>

#include "common/clock.hpp"
#include "ep_bench/check.hpp"
#include "ep_bench/experts.hpp"
#include "ep_bench/findings.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/outcome.hpp"
#include "ep_bench/pages.hpp"
#include "ep_bench/payload.hpp"
#include "ep_bench/plain_copy.hpp"
#include "ep_bench/progress.hpp"
#include "ep_bench/samples.hpp"
#include "ep_bench/signal_floor.hpp"

namespace ep_bench {

/// One rank's part of a run: check, warm up, time, check again.
///
/// An iteration is the operations and then the plain copies, so that drift of the machine meets
/// both alike. Both run in the same surroundings: their sources have just been read, a barrier lets
/// all ranks start together, and the experts write all outputs anew before they are fetched.
template <class Transport, class Codec>
class measurement {
 public:
  measurement(peerbus::communicator<Transport>& comm, const options& chosen, bool crowded)
      : comm_{&comm},
        chosen_{chosen},
        moe_{comm,
             {.experts = chosen.experts,
              .hidden = chosen.hidden,
              .top_k = chosen.top_k,
              .max_tokens = chosen.tokens}},
        truth_{chosen, comm.rank().index(), comm.size()},
        tokens_(chosen.tokens * chosen.hidden),
        combined_(chosen.tokens * chosen.hidden),
        experts_{chosen.hidden},
        check_{chosen, truth_, comm.rank().index()},
        plain_{moe_, chosen, truth_, comm.rank().index()},
        findings_{comm},
        samples_{comm, chosen.iterations},
        signals_{comm, signal_blocks, crowded} {
    const payload content{chosen.seed};
    std::vector<std::int8_t> codes(chosen.hidden);
    for (std::size_t t = 0; t < chosen.tokens; ++t) {
      const float unit = content.fill(comm.rank().index(), t, codes);
      as_bf16(codes, unit, std::as_writable_bytes(tokens_.all()).data() + t * chosen.hidden * 2);
    }
  }

  [[nodiscard]] outcome run() {
    outcome result;
    const std::size_t rows = chosen_.tokens * chosen_.top_k;
    result.dispatch_bytes =
        rows * peerbus::moe::dispatch_bytes_per_row(
                   {Codec::row_bytes(chosen_.hidden), Codec::scale_bytes(chosen_.hidden)});
    result.combine_bytes = rows * peerbus::moe::combine_bytes_per_row(chosen_.hidden);

    result.wrong = findings_.first_of_all(check_everything());
    if (!result.wrong.empty()) return result;
    for (std::size_t i = 0; i < chosen_.warmup; ++i) iterate(0);
    progress shown{comm_->rank().index() == 0, chosen_.iterations};
    const std::size_t between = std::max<std::size_t>(chosen_.iterations / signal_blocks, 1);
    for (std::size_t i = 0; i < chosen_.iterations; ++i) {
      if (i % between == 0 && i / between < signal_blocks) signals_.measure_block();
      iterate(i);
      shown.at(i);
    }
    result.wrong = findings_.first_of_all(check_everything());
    result.samples = samples_.slowest();
    result.signal_one_way_ns = signals_.one_way_ns();
    return result;
  }

 private:
  static constexpr std::size_t signal_blocks = 32;

  [[nodiscard]] peerbus::moe::routing route() const noexcept {
    return {truth_.mine().experts, truth_.mine().weights};
  }

  /// The time of `operation` on this rank, from a barrier that lets all ranks start together. The
  /// barrier after it keeps ranks that are done from taking the cores that others still need.
  template <class Operation>
  double timed(Operation&& operation) {
    comm_->barrier();
    const auto start = bench::clock::now();
    operation();
    const double spent = bench::microseconds(bench::clock::now() - start);
    comm_->barrier();
    return spent;
  }

  void iterate(std::size_t i) {
    std::optional<peerbus::moe::received<Codec>> received;
    tokens_.recall();
    const double dispatch = timed([&] { received = moe_.dispatch(tokens_.all(), route()); });
    experts_.run(*received);
    const double combine = timed([&] { moe_.combine(*received, combined_.all()); });

    plain_.recall();
    const double plain_dispatch = timed([&] { plain_.dispatch(); });
    experts_.run(*received);
    const double plain_combine = timed([&] { plain_.combine(); });

    samples_.set(series::dispatch, i, dispatch);
    samples_.set(series::combine, i, combine);
    samples_.set(series::pair, i, dispatch + combine);
    samples_.set(series::plain_dispatch, i, plain_dispatch);
    samples_.set(series::plain_combine, i, plain_combine);
  }

  /// Operations and plain copies alike: a floor that moves other bytes would be none. Every rank
  /// goes through all of it, whatever it finds.
  [[nodiscard]] std::string check_everything() {
    std::fill(combined_.all().begin(), combined_.all().end(), peerbus::bf16::from_bits(0xffff));
    const auto received = moe_.dispatch(tokens_.all(), route());
    std::string found = check_.received(received);
    const auto note = [&found](const std::string& text) {
      if (found.empty()) found = text;
    };
    experts_.run(received);
    moe_.combine(received, combined_.all());
    note(check_.combined(combined_.all()));
    comm_->barrier();
    note(plain_.check_outputs(check_));
    plain_.spoil();
    comm_->barrier();
    plain_.dispatch();
    comm_->barrier();
    if (const auto text = check_.received(received); !text.empty()) note("plain copy: " + text);
    comm_->barrier();
    return found;
  }

  peerbus::communicator<Transport>* comm_;
  options chosen_;
  peerbus::moe::exchange<Transport, Codec> moe_;  // First, as it refuses what is too large.
  oracle truth_;
  pages<peerbus::bf16> tokens_;
  pages<peerbus::bf16> combined_;
  expert_work experts_;
  checker<Codec> check_;
  plain_copy<Transport, Codec> plain_;
  shared_findings<Transport> findings_;
  sample_store<Transport> samples_;
  signal_floor<Transport> signals_;
};

}  // namespace ep_bench
