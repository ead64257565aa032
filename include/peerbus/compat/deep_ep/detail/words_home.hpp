// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::deep_ep::detail {

/// A few floats per row that go home beside the outputs of an exchange: into slots [token, copy] of
/// a window of their own, which are used as the exchange uses its batch sets. What `send` wrote is
/// there once the exchange has signalled the outputs of that batch, as signals follow all puts to
/// that peer; it may be written again when the set's outputs may (docs/memory_model.md).
template <transport Transport>
class words_home {
 public:
  /// Collective.
  words_home(communicator<Transport>& comm, std::size_t in_flight, std::size_t slots,
             std::size_t rows, std::size_t words, deadline until)
      : comm_{comm},
        words_{words},
        home_bytes_{slots * words * sizeof(float)},
        set_bytes_{home_bytes_ + (direct ? 0 : rows * words * sizeof(float))},
        memory_{comm.make_window(in_flight * set_bytes_, 0, until)} {}

  /// `words` of row `row` to slot `slot` of its home rank. Returns: as `window::put`.
  [[nodiscard]] errc send(std::size_t set, std::size_t row, rank_id home, std::size_t slot,
                          std::span<const float> words) noexcept {
    const std::size_t bytes = words_ * sizeof(float);
    const std::size_t at = set * set_bytes_ + slot * bytes;
    if constexpr (direct) {
      std::memcpy(memory_.peer(home).data() + at, words.data(), bytes);
      return errc::ok;
    } else {
      const auto local = memory_.local();
      if (home == comm_.rank()) {
        std::memcpy(local.data() + at, words.data(), bytes);
        return errc::ok;
      }
      const auto staged = local.subspan(set * set_bytes_ + home_bytes_ + row * bytes, bytes);
      std::memcpy(staged.data(), words.data(), bytes);
      return memory_.put(home, at, staged);
    }
  }

  /// What came home for a slot.
  [[nodiscard]] std::span<const float> at(std::size_t set, std::size_t slot) const noexcept {
    const std::byte* const place =
        memory_.local().data() + set * set_bytes_ + slot * words_ * sizeof(float);
    return {reinterpret_cast<const float*>(place), words_};
  }

 private:
  static constexpr bool direct = direct_transport<Transport>;

  communicator<Transport>& comm_;
  std::size_t words_;
  std::size_t home_bytes_;
  std::size_t set_bytes_;
  window<Transport> memory_;
};

}  // namespace peerbus::deep_ep::detail
