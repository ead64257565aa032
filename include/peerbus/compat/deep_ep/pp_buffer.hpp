// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/agree_on.hpp>
#include <peerbus/compat/deep_ep/detail/one_sided_window.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// The sizes of a `pp_buffer`, equal on all ranks.
struct pp_config {
  std::size_t num_max_tensor_bytes = 0;  ///< the largest tensor
  /// The largest number of tensors that may be in flight from one rank to a neighbour.
  std::size_t num_max_inflight_tensors = 0;
};

/// A connection to the next and the previous rank of a ring that carries tensors, as DeepEP's
/// PPBuffer. Tensors between two ranks arrive in the order in which they were sent. In a group of
/// two ranks, each rank is both neighbours of the other. A single rank sends to itself.
///
/// A rank has `num_max_inflight_tensors` places for the tensors of each neighbour. Signals 0 and 1
/// count the tensors that have arrived from the previous and from the next rank. Signals 2 and 3
/// count the tensors of this rank that the previous and the next rank have taken.
///
/// Threads: one call at a time.
class pp_buffer {
 public:
  /// Allocates the memory. Collective. `comm` must outlive the buffer.
  /// Throws, on all ranks: `error` invalid_argument on the ranks whose sizes are bad and refused on
  /// the others; mismatch if sizes differ between ranks; or as `communicator::make_window`.
  template <transport Transport>
  pp_buffer(communicator<Transport>& comm, const pp_config& sizes,
            std::optional<deadline> until = std::nullopt)
      : sizes_{sizes},
        window_{made(detail::window_maker{comm}, sizes, until.value_or(comm.default_deadline()))} {
    const std::size_t rank = group().rank().index();
    neighbours_ = {rank_id{(rank + group().size() - 1) % group().size()},
                   rank_id{(rank + 1) % group().size()}};
  }

  /// Sends a tensor without gaps, of any type, to a neighbour. `t` may be reused on return. Waits
  /// only until the neighbour has received the tensor sent num_max_inflight_tensors before.
  /// Cost: copies the tensor once, and raises a signal. Bytes for a rank that stores do not reach
  /// are put from the copy.
  /// Throws: `error` invalid_argument if `t` is bad; the `recv` of the neighbour then throws
  /// refused. invalid_argument if `dst_rank_idx` is no neighbour; the neighbours then notice
  /// nothing. timed_out, after which the call may be repeated; peer_dead; unreachable, which
  /// poisons the communicator.
  void send(const const_tensor& t, std::size_t dst_rank_idx,
            std::optional<deadline> until = std::nullopt) {
    constexpr std::string_view call = "pp_send";
    const deadline end = until.value_or(group().default_deadline());
    const side neighbour = side_of({call, "dst_rank_idx"}, dst_rank_idx);
    // A rank that is both neighbours is the next one here.
    const side direction = neighbours_[next] == rank_id{dst_rank_idx} ? next : neighbour;
    try {
      check_tensor(call, t);
    } catch (const error& why) {
      const std::size_t length = std::min(why.text().size(), sizes_.num_max_tensor_bytes);
      push(call, direction, {.bytes = length, .is_refusal = 1},
           std::as_bytes(std::span{why.text()}.first(length)), end);
      throw;
    }
    push(call, direction, {.bytes = t.bytes(), .is_refusal = 0},
         {static_cast<const std::byte*>(t.data()), t.bytes()}, end);
  }

  /// Receives the next tensor that a neighbour sends into `t`, which must have no gaps.
  /// Cost: copies the tensor once, and raises a signal.
  /// Throws: `error` mismatch if the neighbour's tensor has another size; the next `recv` may then
  /// take that tensor. refused if the neighbour's `send` has refused its tensor, which counts as
  /// received. invalid_argument for bad arguments, on this rank alone. timed_out, after which the
  /// call may be repeated; peer_dead; unreachable, which poisons the communicator.
  void recv(const tensor& t, std::size_t src_rank_idx,
            std::optional<deadline> until = std::nullopt) {
    constexpr std::string_view call = "pp_recv";
    const deadline end = until.value_or(group().default_deadline());
    const side from = side_of({call, "src_rank_idx"}, src_rank_idx);
    check_tensor(call, t);
    const rank_id peer = neighbours_[from];
    const std::uint64_t number = received_[from] + 1;
    window_.wait(call, peer, from, number, end);
    const std::byte* const place = window_.local() + place_of(from, number);
    head header;
    std::memcpy(&header, place, sizeof header);
    const auto taken = [&] {
      received_[from] = number;
      window_.signal(call, peer, 3 - from, number);
    };
    if (header.is_refusal != 0) {
      const std::string_view why{reinterpret_cast<const char*>(place + head_bytes), header.bytes};
      const error refused{errc::refused, detail::concat(call, ": ", peer, " sent nothing: ", why)};
      taken();
      throw error{refused};
    }
    if (header.bytes != t.bytes())
      throw error{errc::mismatch, detail::concat(call, ": ", peer, " sent ", header.bytes,
                                                 " bytes, the tensor has ", t.bytes())};
    peerbus::detail::copy_bytes(static_cast<std::byte*>(t.data()), place + head_bytes,
                                header.bytes);
    taken();
  }

  /// Returns the memory in which the tensors of the neighbours arrive.
  [[nodiscard]] std::span<std::byte> storage() const noexcept {
    return {window_.local(), 2 * sizes_.num_max_inflight_tensors * place_bytes(sizes_)};
  }

 private:
  /// The neighbours as indices of arrays and numbers of signals.
  enum side : std::size_t { previous, next };
  /// The header of a tensor, which lies in front of it in a cache line of its own.
  struct head {
    std::uint64_t bytes = 0;
    std::uint64_t is_refusal = 0;  ///< if not 0, the bytes are the text of an error
  };
  static constexpr std::size_t head_bytes = cache_line_bytes;

  [[nodiscard]] rank_group& group() const noexcept { return window_.group(); }
  [[nodiscard]] static std::size_t place_bytes(const pp_config& sizes) noexcept {
    return head_bytes + align_up(sizes.num_max_tensor_bytes, cache_line_bytes);
  }
  [[nodiscard]] static detail::one_sided_window made(const detail::window_maker& make_window,
                                                     const pp_config& sizes, deadline until) {
    constexpr std::string_view call = "pp_set_config";
    constexpr std::size_t most_bytes = std::size_t{1} << 40U;
    constexpr std::size_t most_tensors = std::size_t{1} << 16U;
    detail::agree_on(make_window.group(), call, "the configuration", until, [&] {
      const detail::argument bytes{call, "num_max_tensor_bytes"};
      bytes.require(sizes.num_max_tensor_bytes >= 1 && sizes.num_max_tensor_bytes <= most_bytes,
                    "is ", sizes.num_max_tensor_bytes, ", expected 1 to ", most_bytes);
      const detail::argument tensors{call, "num_max_inflight_tensors"};
      tensors.require(
          sizes.num_max_inflight_tensors >= 1 && sizes.num_max_inflight_tensors <= most_tensors,
          "is ", sizes.num_max_inflight_tensors, ", expected 1 to ", most_tensors);
      return detail::concat(sizes.num_max_inflight_tensors, " tensors of ",
                            sizes.num_max_tensor_bytes, " bytes");
    });
    // Bytes for ranks that stores do not reach leave from as many places behind those of arrivals.
    const std::size_t places = (make_window.is_direct() ? 2 : 4) * sizes.num_max_inflight_tensors;
    return make_window(places * place_bytes(sizes), 4, until);
  }

  [[nodiscard]] side side_of(const detail::argument& what, std::size_t peer) const {
    what.require(peer == neighbours_[previous].index() || peer == neighbours_[next].index(), "is ",
                 peer, ", expected the previous or the next rank of the ring, ",
                 neighbours_[previous].index(), " or ", neighbours_[next].index());
    return peer == neighbours_[previous].index() ? previous : next;
  }
  void check_tensor(std::string_view call, const const_tensor& t) const {
    const detail::argument what{call, "t"};
    what.require(t && t.contiguous(), "is ", t, ", expected a tensor without gaps");
    what.require(t.elements() == 0 || t.data() != nullptr, "is ", t, " at null");
    what.require(t.bytes() <= sizes_.num_max_tensor_bytes, "has ", t.bytes(),
                 " bytes, expected at most the ", sizes_.num_max_tensor_bytes, " of pp_set_config");
  }
  /// Returns the offset, in bytes, of the place for tensor `number` from neighbour `from`.
  [[nodiscard]] std::size_t place_of(side from, std::uint64_t number) const noexcept {
    const std::size_t most = sizes_.num_max_inflight_tensors;
    return (from * most + (number - 1) % most) * place_bytes(sizes_);
  }

  void push(std::string_view call, side direction, const head& first,
            std::span<const std::byte> bytes, deadline until) {
    const rank_id peer = neighbours_[direction];
    const std::size_t most = sizes_.num_max_inflight_tensors;
    const std::uint64_t number = sent_[direction] + 1;
    // The neighbour has then also received what left from the place that this tensor leaves from.
    if (number > most) window_.wait(call, peer, 2 + direction, number - most, until);
    group().require_healthy(call);
    const side arrives_from = direction == next ? previous : next;
    const std::size_t place = place_of(arrives_from, number);
    const std::size_t leaving = 2 * most * place_bytes(sizes_) + place_of(direction, number);
    window_.store(call, peer, place, std::as_bytes(std::span{&first, 1}), leaving);
    window_.store(call, peer, place + head_bytes, bytes, leaving + head_bytes);
    window_.signal(call, peer, arrives_from, number);
    sent_[direction] = number;
  }

  pp_config sizes_;
  detail::one_sided_window window_;
  std::array<rank_id, 2> neighbours_{rank_id{0}, rank_id{0}};
  std::array<std::uint64_t, 2> sent_{};
  std::array<std::uint64_t, 2> received_{};
};

}  // namespace peerbus::deep_ep
