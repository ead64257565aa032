// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail {

/// The kinds of messages between two ranks.
enum class message_kind : std::uint8_t { put, get, got, add, added };

/// The payload of a message besides its signal.
struct sim_cargo {
  std::size_t bytes = 0;            ///< size on the wire, with that of a signal
  std::size_t requests = 0;         ///< number of pieces of puts, or of rows stored or loaded
  std::size_t asked = 0;            ///< number of bytes that a get reads
  std::byte* target = nullptr;      ///< target of a get; base of a put's offsets
  std::vector<put_piece> pieces;    ///< pieces of a put; source of a get
  std::vector<std::byte> carried;   ///< the bytes that were read at the source
  std::uint64_t* result = nullptr;  ///< target of `before` of `fetch_add`
  bool* done = nullptr;             ///< set when an answer has arrived
};

/// A message from rank `from`: a put, a signal or both; or a request and its answer. Most messages
/// are signals alone, and millions of them are under way at once.
struct sim_message {
  message_kind kind = message_kind::put;
  bool has_signal = false;  ///< whether the message raises `word` to `value`
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t epoch = 0;  ///< epoch of the pair of ranks
  std::uint64_t* word = nullptr;
  std::uint64_t value = 0;            ///< value of the signal, or the addend
  std::shared_ptr<const void> owner;  ///< keeps the memory that the pointers point to
  std::unique_ptr<sim_cargo> cargo;   ///< payload; null for a signal alone

  /// Returns whether the message has bytes that must arrive before a later signal.
  [[nodiscard]] bool is_put() const noexcept {
    return kind == message_kind::put && cargo != nullptr;
  }
  /// Returns the message's size on the wire in bytes, or the number of requests that carry it.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return cargo == nullptr ? sizeof value : cargo->bytes;
  }
  [[nodiscard]] std::size_t requests() const noexcept {
    return cargo == nullptr ? 1 : std::max<std::size_t>(cargo->requests, 1);
  }
};

/// A pool of numbered messages, whose addresses never change.
class message_pool {
 public:
  [[nodiscard]] sim_message& operator[](std::uint32_t number) noexcept {
    return (*chunks_[number / chunk_size])[number % chunk_size];
  }
  /// Returns the number of an empty message, with a cargo if it `has_cargo`.
  [[nodiscard]] std::uint32_t fresh(bool has_cargo);
  /// Takes message `number` back.
  void release(std::uint32_t number);

 private:
  static constexpr std::size_t chunk_size = 4096;
  std::vector<std::unique_ptr<std::array<sim_message, chunk_size>>> chunks_;
  std::vector<std::uint32_t> free_;
  std::vector<std::unique_ptr<sim_cargo>> free_cargos_;  ///< unused cargos, whose vectors keep
                                                         ///< their memory
};

inline std::uint32_t message_pool::fresh(bool has_cargo) {
  if (free_.empty()) {
    const auto first = static_cast<std::uint32_t>(chunks_.size() * chunk_size);
    chunks_.push_back(std::make_unique<std::array<sim_message, chunk_size>>());
    free_.reserve(chunks_.size() * chunk_size);
    for (std::uint32_t i = chunk_size; i-- > 0;) free_.push_back(first + i);
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  if (!has_cargo) return number;
  if (free_cargos_.empty()) free_cargos_.push_back(std::make_unique<sim_cargo>());
  (*this)[number].cargo = std::move(free_cargos_.back());
  free_cargos_.pop_back();
  return number;
}

inline void message_pool::release(std::uint32_t number) {
  sim_message& used = (*this)[number];
  if (used.cargo) {
    auto pieces = std::move(used.cargo->pieces);
    auto carried = std::move(used.cargo->carried);
    *used.cargo = {};
    pieces.clear();
    carried.clear();
    used.cargo->pieces = std::move(pieces);
    used.cargo->carried = std::move(carried);
    free_cargos_.push_back(std::move(used.cargo));
  }
  used = {};
  free_.push_back(number);
}

}  // namespace peerbus::detail
