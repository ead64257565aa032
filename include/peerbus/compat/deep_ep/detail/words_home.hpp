// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/core/align.hpp>
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
///
/// A batch brings words home from all ranks or from none. A rank that sends words announces the
/// number of the batch at all ranks, so that each of them finds out if the others differ, instead
/// of reading the words of an earlier batch.
template <transport Transport>
class words_home {
 public:
  /// Collective.
  words_home(communicator<Transport>& comm, std::size_t in_flight, std::size_t slots,
             std::size_t rows, std::size_t words, deadline until)
      : comm_{comm},
        words_{words},
        sets_{align_up(in_flight * comm.size() * sizeof(std::uint64_t), cache_line_bytes)},
        home_bytes_{slots * words * sizeof(float)},
        set_bytes_{home_bytes_ + (direct ? 0 : rows * words * sizeof(float))},
        memory_{comm.make_window(sets_ + in_flight * set_bytes_, 0, until)} {}

  /// Announces at all ranks that this rank sends words in batch `number`, whose set is `set`.
  /// Returns: as `window::put`.
  [[nodiscard]] errc announce(std::size_t set, std::uint64_t number) noexcept {
    const std::size_t at = announcement_at(set, comm_.rank());
    const auto local = memory_.local().subspan(at, sizeof number);
    std::memcpy(local.data(), &number, sizeof number);
    for (const rank_id peer : comm_.peers())
      if (const errc code = memory_.put(peer, at, local); code != errc::ok) return code;
    return errc::ok;
  }

  /// Requires that all ranks have announced batch `number`, or that none has; all of them have
  /// signalled its outputs. `words` is the argument that the words come from.
  /// Throws, on all ranks: `error` mismatch that names a rank with words and a rank without.
  void require_from_all_or_none(const argument& words, std::size_t set,
                                std::uint64_t number) const {
    std::optional<rank_id> with;
    std::optional<rank_id> without;
    for (const rank_id rank : comm_.ranks()) {
      std::uint64_t announced = 0;
      std::memcpy(&announced, memory_.local().data() + announcement_at(set, rank),
                  sizeof announced);
      std::optional<rank_id>& first = announced == number ? with : without;
      if (!first) first = rank;
    }
    if (with && without)
      words.refuse(errc::mismatch, "was given on ", *with, " but not on ", *without,
                   ", expected on all ranks or on none");
  }

  /// `words` of row `row` to slot `slot` of its home rank. Returns: as `window::put`.
  [[nodiscard]] errc send(std::size_t set, std::size_t row, rank_id home, std::size_t slot,
                          std::span<const float> words) noexcept {
    const std::size_t bytes = words_ * sizeof(float);
    const std::size_t at = set_at(set) + slot * bytes;
    if constexpr (direct) {
      std::memcpy(memory_.peer(home).data() + at, words.data(), bytes);
      return errc::ok;
    } else {
      const auto local = memory_.local();
      if (home == comm_.rank()) {
        std::memcpy(local.data() + at, words.data(), bytes);
        return errc::ok;
      }
      const auto staged = local.subspan(set_at(set) + home_bytes_ + row * bytes, bytes);
      std::memcpy(staged.data(), words.data(), bytes);
      return memory_.put(home, at, staged);
    }
  }

  /// What came home for a slot.
  [[nodiscard]] std::span<const float> at(std::size_t set, std::size_t slot) const noexcept {
    const std::byte* const place =
        memory_.local().data() + set_at(set) + slot * words_ * sizeof(float);
    return {reinterpret_cast<const float*>(place), words_};
  }

 private:
  static constexpr bool direct = direct_transport<Transport>;

  /// Where rank `from` announces batches of set `set`: in the same place at all ranks.
  [[nodiscard]] std::size_t announcement_at(std::size_t set, rank_id from) const noexcept {
    return (set * comm_.size() + from.index()) * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::size_t set_at(std::size_t set) const noexcept {
    return sets_ + set * set_bytes_;
  }

  communicator<Transport>& comm_;
  std::size_t words_;
  std::size_t sets_;  ///< start of the first set, after the announcements
  std::size_t home_bytes_;
  std::size_t set_bytes_;
  window<Transport> memory_;
};

}  // namespace peerbus::deep_ep::detail
