// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/exchange.hpp>

#include "ep_bench/ablation/call_buffer.hpp"
#include "ep_bench/ablation/grouped_rows.hpp"
#include "ep_bench/ablation/landing.hpp"
#include "ep_bench/ablation/routed_order.hpp"
#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"
#include "support/copy_encoder.hpp"
#include "support/kernel_copy.hpp"
#include "support/pages.hpp"

namespace ep_bench {

/// How rows get into the receive buffer of another rank.
enum class writes {
  /// Packed into a send buffer, then one process_vm_writev per rank into a buffer of this call.
  through_kernel,
  /// Packed by plain stores to where they arrive, in a window.
  direct
};

/// Dispatch and combine as three separate collectives, the way that Huawei's paper "Serving Large
/// Language Models on Huawei CloudMatrix384" (arXiv 2506.12708, section on FusedDispatch and
/// FusedCombine) describes what it starts from: all-to-all of counts, all-to-all of tokens, and
/// back; each one complete on all ranks before the next begins. Rows are packed by destination,
/// grouped by expert where they arrive, packed again on the way back, and summed at home.
///
/// The arithmetic is the library's own kernels and codecs, so that the flow alone differs.
template <class Transport, class Codec>
class basic_flow {
 public:
  /// Collective. `kind` is of all buffers but windows; writing through the kernel goes with buffers
  /// of the call only.
  basic_flow(peerbus::communicator<Transport>& comm, const options& chosen, writes how,
             buffers kind)
      : comm_{&comm},
        how_{how},
        kind_{kind},
        ranks_{comm.size()},
        me_{comm.rank().index()},
        hidden_{chosen.hidden},
        encoder_{chosen.hidden},
        top_k_{chosen.top_k},
        first_expert_{peerbus::moe::expert_placement{chosen.experts, ranks_}.first(comm.rank())},
        local_experts_{peerbus::moe::expert_placement{chosen.experts, ranks_}.count(comm.rank())},
        most_experts_{peerbus::moe::expert_placement{chosen.experts, ranks_}.most()},
        most_rows_{chosen.tokens * std::min(chosen.top_k, most_experts_)},
        order_{chosen.experts, ranks_, chosen.tokens * chosen.top_k},
        control_{comm, ranks_ * (note_bytes() + sizeof(bench::far_address))},
        returns_at_{how == writes::direct ? ranks_ * message_bytes(most_rows_) : 0},
        window_{comm, how == writes::direct
                          ? returns_at_ + chosen.tokens * chosen.top_k * output_bytes()
                          : 0},
        note_(note_bytes() / sizeof(std::uint32_t)),
        send_{buffers::per_call, 0},
        receive_{buffers::per_call, 0},
        grouped_{kind, ranks_ * message_bytes(most_rows_) + peerbus::cache_line_bytes},
        outputs_(ranks_ * most_rows_ * chosen.hidden),
        sources_(ranks_),
        targets_(ranks_) {
    arrived_.experts().reserve(local_experts_);
  }

  /// Collective. The result is valid until `combine`.
  [[nodiscard]] const arrivals<Codec>& dispatch(std::span<const peerbus::bf16> tokens,
                                                const gate::choice& route) {
    order_.sort(route.experts);
    exchange_counts();
    const std::size_t bytes = place_arrivals();
    if (how_ == writes::through_kernel) receive_.take(bytes);
    find_targets([&](std::size_t rank) { return sources_[rank].offset; },
                 [&](std::size_t) { return me_ * message_bytes(most_rows_); });
    for (std::size_t r = 0; r < ranks_; ++r) targets_[r].rows = order_.rows(r);
    send_rows(tokens, route);
    comm_->barrier();
    group();
    receive_.give_back();
    return arrived_;
  }

  /// Collective. Weighted sum of what lies in the outputs of the latest `dispatch`, in slot order.
  void combine(const gate::choice& route, std::span<peerbus::bf16> out) {
    grouped_.give_back();
    if (how_ == writes::through_kernel) receive_.take(route.experts.size() * output_bytes());
    find_targets(
        [&](std::size_t rank) { return returns_at_ + order_.first(rank) * output_bytes(); },
        [&](std::size_t rank) {
          return returns_at_ + sources_[rank].first_at_home * output_bytes();
        });
    for (std::size_t r = 0; r < ranks_; ++r) targets_[r].rows = sources_[r].rows;
    send_outputs();
    comm_->barrier();
    sum(route, out);
    receive_.give_back();
  }

 private:
  struct source {
    std::size_t rows;
    std::size_t offset;         ///< of its message in the receive buffer
    std::size_t first_at_home;  ///< position, at that rank, of its first row that came here
    std::size_t next = 0;       ///< row, while walking through the message
  };
  struct target {
    bench::far_address address;  ///< of the message, in the address space of that rank
    std::size_t rows;
    std::byte* place;  ///< where this rank packs it
  };

  [[nodiscard]] std::size_t row_bytes() const noexcept { return Codec::row_bytes(hidden_); }
  [[nodiscard]] std::size_t scale_bytes() const noexcept { return Codec::scale_bytes(hidden_); }
  [[nodiscard]] std::size_t output_bytes() const noexcept {
    return hidden_ * sizeof(peerbus::bf16);
  }
  /// A message is all rows, then all scales.
  [[nodiscard]] std::size_t message_bytes(std::size_t rows) const noexcept {
    return peerbus::align_up(rows * (row_bytes() + scale_bytes()), peerbus::cache_line_bytes);
  }
  /// What a rank tells another: the position of its first row for it, and the rows by expert.
  [[nodiscard]] std::size_t note_bytes() const noexcept {
    return peerbus::align_up((1 + most_experts_) * sizeof(std::uint32_t),
                             peerbus::cache_line_bytes);
  }
  /// Byte `offset` of where this rank receives.
  [[nodiscard]] std::byte* received(std::size_t offset) const noexcept {
    return how_ == writes::direct ? window_.local(offset) : receive_.data() + offset;
  }

  /// The others from the next rank round, so that not all write to the same one at once.
  template <class Visit>
  void for_each_other(Visit&& visit) const {
    for (std::size_t step = 1; step < ranks_; ++step) visit((me_ + step) % ranks_);
  }

  // --- small messages --------------------------------------------------------------------------

  [[nodiscard]] const std::uint32_t* note_of(std::size_t rank) const noexcept {
    return reinterpret_cast<const std::uint32_t*>(control_.local(rank * note_bytes()));
  }

  void exchange_counts() {
    for_each_rank([&](std::size_t rank) {
      const auto counts = order_.counts(rank);
      note_[0] = static_cast<std::uint32_t>(order_.first(rank));
      std::copy(counts.begin(), counts.end(), note_.begin() + 1);
      write_control(rank, me_ * note_bytes(),
                    std::as_bytes(std::span{note_}.first(1 + counts.size())));
    });
    comm_->barrier();
  }

  /// Where this rank's messages go. `mine(r)` is the offset of what comes here from rank r, which a
  /// buffer of this call has to make known; `theirs(r)` is the offset at rank r of what goes there,
  /// which all know where buffers are kept.
  template <class Mine, class Theirs>
  void find_targets(Mine&& mine, Theirs&& theirs) {
    if (kind_ == buffers::kept) {
      for (std::size_t r = 0; r < ranks_; ++r) targets_[r].address = window_.address(r, theirs(r));
      return;
    }
    for_each_rank([&](std::size_t rank) {
      const auto here = reinterpret_cast<bench::far_address>(received(mine(rank)));
      write_control(rank, told_at(me_), std::as_bytes(std::span{&here, 1}));
    });
    comm_->barrier();
    for (std::size_t r = 0; r < ranks_; ++r)
      std::memcpy(&targets_[r].address, control_.local(told_at(r)), sizeof(bench::far_address));
  }
  [[nodiscard]] std::size_t told_at(std::size_t rank) const noexcept {
    return ranks_ * note_bytes() + rank * sizeof(bench::far_address);
  }

  template <class Visit>
  void for_each_rank(Visit&& visit) const {
    visit(me_);
    for_each_other(visit);
  }

  void write_control(std::size_t rank, std::size_t offset, std::span<const std::byte> bytes) {
    if (how_ == writes::through_kernel && rank != me_)
      bench::kernel_copy(control_.process(rank), control_.address(rank, offset), bytes.data(),
                         bytes.size());
    else
      std::memcpy(control_.near(rank, control_.address(rank, offset)), bytes.data(), bytes.size());
  }

  // --- tokens ----------------------------------------------------------------------------------

  /// Returns: bytes of all messages that come here.
  std::size_t place_arrivals() noexcept {
    std::size_t bytes = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::uint32_t* const note = note_of(r);
      std::size_t rows = 0;
      for (std::size_t e = 0; e < local_experts_; ++e) rows += note[1 + e];
      sources_[r] = {rows, kind_ == buffers::kept ? r * message_bytes(most_rows_) : bytes, note[0]};
      bytes += message_bytes(rows);
    }
    return bytes;
  }

  void send_rows(std::span<const peerbus::bf16> tokens, const gate::choice& route) {
    const auto bytes_for = [&](std::size_t rows) { return rows * (row_bytes() + scale_bytes()); };
    choose_places(bytes_for);
    std::byte* rows[peerbus::moe::max_top_k];
    std::byte* scales[peerbus::moe::max_top_k];
    const std::int32_t* expert = route.experts.data();
    for (std::size_t t = 0; t * hidden_ < tokens.size(); ++t) {
      for (std::size_t k = 0; k < top_k_; ++k, ++expert) {
        const std::size_t owner = order_.owner(*expert);
        const target& to = targets_[owner];
        const std::size_t row = order_.position(t * top_k_ + k) - order_.first(owner);
        rows[k] = to.place + row * row_bytes();
        scales[k] = to.place + to.rows * row_bytes() + row * scale_bytes();
      }
      encoder_.encode(tokens.subspan(t * hidden_, hidden_), {rows, top_k_}, {scales, top_k_});
    }
    send_packed(bytes_for);
  }

  /// From (source, expert) to (expert, source).
  void group() {
    std::size_t total = 0;
    for (const source& from : sources_) total += from.rows;
    const std::size_t scales_at = peerbus::align_up(total * row_bytes(), peerbus::cache_line_bytes);
    std::byte* const rows = grouped_.take(scales_at + total * scale_bytes());
    std::byte* const scales = rows + scales_at;
    for (source& from : sources_) from.next = 0;
    std::size_t done = 0;
    arrived_.experts().clear();
    for (std::size_t e = 0; e < local_experts_; ++e) {
      const std::size_t begin = done;
      for (std::size_t r = 0; r < ranks_; ++r) {
        source& from = sources_[r];
        const std::size_t count = note_of(r)[1 + e];
        const std::byte* const message = received(from.offset);
        std::memcpy(rows + done * row_bytes(), message + from.next * row_bytes(),
                    count * row_bytes());
        std::memcpy(scales + done * scale_bytes(),
                    message + from.rows * row_bytes() + from.next * scale_bytes(),
                    count * scale_bytes());
        from.next += count;
        done += count;
      }
      arrived_.experts().emplace_back(
          first_expert_ + e, hidden_, done - begin,
          typename grouped_rows<Codec>::memory{rows + begin * row_bytes(),
                                               scales + begin * scale_bytes(),
                                               outputs_.all().data() + begin * hidden_});
    }
  }

  // --- results ---------------------------------------------------------------------------------

  /// From (expert, source) to (source, expert), and home.
  void send_outputs() {
    const auto bytes_for = [&](std::size_t rows) { return rows * output_bytes(); };
    choose_places(bytes_for);
    const auto* output = reinterpret_cast<const std::byte*>(outputs_.all().data());
    for (source& from : sources_) from.next = 0;
    for (std::size_t e = 0; e < local_experts_; ++e)
      for (std::size_t r = 0; r < ranks_; ++r) {
        const std::size_t bytes = note_of(r)[1 + e] * output_bytes();
        std::memcpy(targets_[r].place + sources_[r].next * output_bytes(), output, bytes);
        sources_[r].next += note_of(r)[1 + e];
        output += bytes;
      }
    send_packed(bytes_for);
  }

  void sum(const gate::choice& route, std::span<peerbus::bf16> out) const noexcept {
    const auto& kernels = peerbus::kernel::best();
    const auto* const arrived = reinterpret_cast<const peerbus::bf16*>(received(returns_at_));
    const peerbus::bf16* rows[peerbus::moe::max_top_k];
    for (std::size_t t = 0; t * hidden_ < out.size(); ++t) {
      for (std::size_t k = 0; k < top_k_; ++k)
        rows[k] = arrived + order_.position(t * top_k_ + k) * hidden_;
      kernels.weighted_sum(rows, route.weights.data() + t * top_k_, top_k_, hidden_,
                           out.data() + t * hidden_);
    }
  }

  // --- large messages --------------------------------------------------------------------------

  /// Where the message for each rank is packed: in the send buffer, or where it arrives.
  template <class BytesFor>
  void choose_places(BytesFor&& bytes_for) {
    if (how_ == writes::direct) {
      for (std::size_t r = 0; r < ranks_; ++r)
        targets_[r].place = window_.near(r, targets_[r].address);
      return;
    }
    std::size_t bytes = 0;
    for (const target& to : targets_) bytes += in_send_buffer(bytes_for(to.rows));
    std::byte* place = send_.take(bytes);
    for (target& to : targets_) {
      to.place = place;
      place += in_send_buffer(bytes_for(to.rows));
    }
  }
  static std::size_t in_send_buffer(std::size_t bytes) noexcept {
    return peerbus::align_up(bytes, peerbus::cache_line_bytes);
  }

  template <class BytesFor>
  void send_packed(BytesFor&& bytes_for) {
    if (how_ == writes::direct) return;
    for_each_rank([&](std::size_t rank) {
      const target& to = targets_[rank];
      // Nobody would ask the kernel to copy within a process.
      if (rank == me_)
        std::memcpy(reinterpret_cast<std::byte*>(to.address),  // NOLINT(performance-no-int-to-ptr)
                    to.place, bytes_for(to.rows));
      else
        bench::kernel_copy(control_.process(rank), to.address, to.place, bytes_for(to.rows));
    });
    send_.give_back();
  }

  peerbus::communicator<Transport>* comm_;
  writes how_;
  buffers kind_;
  std::size_t ranks_;
  std::size_t me_;
  std::size_t hidden_;
  bench::copy_encoder<Codec> encoder_;
  std::size_t top_k_;
  std::size_t first_expert_;
  std::size_t local_experts_;
  std::size_t most_experts_;
  std::size_t most_rows_;  ///< from one rank to another
  routed_order order_;
  landing<Transport> control_;
  std::size_t returns_at_;  ///< start of what combine receives, behind what dispatch does
  landing<Transport> window_;
  std::vector<std::uint32_t> note_;
  call_buffer send_;
  call_buffer receive_;
  call_buffer grouped_;
  // Of the experts, not of the communication: kept in any case.
  bench::pages<peerbus::bf16> outputs_;
  std::vector<source> sources_;
  std::vector<target> targets_;
  arrivals<Codec> arrived_;
};

}  // namespace ep_bench
