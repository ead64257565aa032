// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/memory_hook.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::registered {

/// Makes windows, and frees the memory of windows that every rank has released. Peers may access a
/// part until then.
///
/// `Network` is a rank's end of a network of requests: it has `name` for errors, the table
/// `windows()`, `register_window(memory)`, `settle(until)`, and `exclude_arrivals(change)`.
template <class Network>
class window_maker {
  using window_part = typename Network::window_part;
  using remote_key = typename window_part::remote_key;

 public:
  explicit window_maker(Network& net) : net_{&net} {}

  /// Makes a window of `shape`, and calls `on_memory` for its data. Collective.
  /// Throws, on all ranks: `error` out_of_memory, mismatch, system; or as `bootstrap::allgather`.
  window_part& make(bootstrap& boot, window_shape shape, const memory_hook& on_memory,
                    deadline until) {
    return publish(
        boot, objection_to(shape), [&] { return part_of(allocate(shape, on_memory)); }, until);
  }
  /// Makes a window of `memory`. Collective.
  /// Throws: as `make`, and `error` invalid_argument, on all ranks, if a rank's memory is missing
  /// or misaligned.
  window_part& adopt(bootstrap& boot, window_memory memory, deadline until) {
    return publish(boot, objection_to(memory), [&] { return part_of(std::move(memory)); }, until);
  }
  /// Compares the shape of the window that this rank is about to make with the other ranks' shapes.
  /// Collective. A network that exists only once all ranks want it needs this before it is made.
  /// Throws, on all ranks: `error` mismatch; or as `bootstrap::allgather`.
  static void compare(bootstrap& boot, window_shape shape, deadline until) {
    bootstrap::contribution own;
    const offer wanted{shape.bytes, shape.signals, 0, {}, 0, class_of(shape)};
    append_bytes(own.bytes, &wanted, sizeof wanted);
    static_cast<void>(
        offers_in(gather_or_refuse(boot, "window", std::move(own), std::nullopt, until)));
  }

 private:
  template <class MakePart>
  window_part& publish(bootstrap& boot, std::optional<error> objection, MakePart&& make_part,
                       deadline until) {
    // A part can be found before any peer knows of it: the first signal to it may be here before
    // the answers of all ranks are.
    window_part* part = nullptr;
    bootstrap::contribution own;
    if (!objection)
      objection = objection_of("a window's list of parts", [&] {
        part = &net_->windows().insert(make_part());
        own.bytes = describe(*part, until);
      });
    std::vector<bootstrap::contribution> all;
    try {
      all = gather_or_refuse(boot, "window", std::move(own), objection, until);
      register_peers(*part, all);
    } catch (...) {
      if (part != nullptr) forget(*part);
      throw;
    }
    net_->windows().commit(part->number);
    free_released(all);
    return *part;
  }

  /// The description of a rank's part for the other ranks. The numbers of the windows that the rank
  /// has released since it made the previous window follow it.
  struct offer {
    std::uint64_t bytes = 0;
    std::uint64_t signals = 0;
    std::uint64_t address = 0;
    remote_key key{};
    std::uint64_t number = 0;
    std::uint64_t traffic = 0;
  };
  static std::uint64_t class_of(window_shape shape) noexcept {
    return static_cast<std::uint64_t>(shape.traffic);
  }

  static window_memory allocate(window_shape shape, const memory_hook& on_memory) {
    struct mappings {
      mapping data, signals;
    };
    // One byte at least: an empty mapping does not exist.
    const auto made = std::make_shared<const mappings>(
        mappings{mapping::anonymous(shape.bytes + 1),
                 mapping::anonymous(shape.signals * sizeof(signal_word) + 1)});
    if (on_memory) on_memory({made->data.data(), made->data.size()});
    // Fresh mapped memory is all zero, which is the value representation of a fresh signal_word.
    auto* const words = peerbus::detail::placed<signal_word>(made->signals.data());
    return {{made->data.data(), shape.bytes}, {words, shape.signals}, made, shape.traffic};
  }

  std::unique_ptr<window_part> part_of(window_memory memory) {
    const auto number = net_->windows().next_number();
    if (!number)
      throw error{errc::out_of_memory, concat(Network::name, ": ", net_->windows().capacity,
                                              " windows exist, expected fewer at a time")};
    auto part = std::make_unique<window_part>();
    part->number = *number;
    part->shape = {memory.data.size(), memory.signals.size(), memory.traffic};
    part->memory = std::move(memory);
    if (part->shape.bytes != 0) part->registration = net_->register_window(part->memory.data);
    part->parts.resize(net_->size());
    return part;
  }

  std::vector<std::byte> describe(const window_part& part, deadline until) {
    std::vector<std::byte> own_bytes;
    offer own{part.shape.bytes, part.shape.signals, 0, {}, part.number, class_of(part.shape)};
    if (part.registration) {
      own.address = part.registration.address(part.memory.data);
      own.key = part.registration.remote_key();
    }
    append_bytes(own_bytes, &own, sizeof own);
    std::vector<std::uint32_t> released;
    for (const auto& kept : net_->windows().parts())
      // order: acquire; pairs with the release in the window's destructor.
      if (!kept->reported && kept->released.load(std::memory_order_acquire))
        released.push_back(kept->number);
    // Nothing that this rank has sent from or to them may be in flight any more. If it is, because
    // a peer is slow, the next window will tell.
    const deadline soon = deadline::after(std::chrono::seconds{1});
    if (!released.empty() && net_->settle(until.when() < soon.when() ? until : soon))
      for (const std::uint32_t number : released) append_bytes(own_bytes, &number, sizeof number);
    return own_bytes;
  }

  /// Returns the offers of all ranks.
  /// Throws: `agreed_error` mismatch if the offers differ or are too short.
  static std::vector<offer> offers_in(const std::vector<bootstrap::contribution>& all) {
    std::vector<offer> offers(all.size());
    for (const rank_id peer : all_ranks{all.size()}) {
      const auto& peer_bytes = all[peer.index()].bytes;
      offer& theirs = offers[peer.index()];
      if (peer_bytes.size() < sizeof theirs)
        throw agreed_error{errc::mismatch,
                           concat("window: ", peer, " described it by ", peer_bytes.size(),
                                  " bytes, expected ", sizeof theirs)};
      std::memcpy(&theirs, peer_bytes.data(), sizeof theirs);
      const offer& first = offers.front();
      if (theirs.traffic != first.traffic)
        throw agreed_error{errc::mismatch,
                           concat("window: ", rank_id{0}, " makes it for ", name(first), ", but ",
                                  peer, " for ", name(theirs), " traffic")};
      if (theirs.bytes != first.bytes || theirs.signals != first.signals ||
          theirs.number != first.number)
        throw agreed_error{
            errc::mismatch,
            concat("window: ", rank_id{0}, " has number ", first.number, " of ", first.bytes,
                   " bytes and ", first.signals, " signals, but ", peer, " number ", theirs.number,
                   " of ", theirs.bytes, " and ", theirs.signals)};
    }
    return offers;
  }
  static std::string_view name(const offer& peer_offer) noexcept {
    return name_of(static_cast<traffic_class>(peer_offer.traffic));
  }

  /// Notes the addresses and keys of the peers' parts.
  void register_peers(window_part& part, const std::vector<bootstrap::contribution>& all) const {
    const std::vector<offer> offers = offers_in(all);
    for (std::size_t i = 0; i < offers.size(); ++i)
      part.parts[i] = {offers[i].address, offers[i].key};
  }

  void free_released(const std::vector<bootstrap::contribution>& all) {
    for (const rank_id peer : all_ranks{all.size()}) {
      const auto& peer_bytes = all[peer.index()].bytes;
      for (std::size_t offset = sizeof(offer); offset + sizeof(std::uint32_t) <= peer_bytes.size();
           offset += sizeof(std::uint32_t)) {
        std::uint32_t number = 0;
        std::memcpy(&number, peer_bytes.data() + offset, sizeof number);
        window_part* const part = net_->windows().find(number);
        if (part == nullptr) continue;
        part->reported = part->reported || peer == net_->rank();
        if (++releases_[number] < net_->size()) continue;
        releases_.erase(number);
        forget(*part);
      }
    }
  }

  void forget(const window_part& part) {
    std::unique_ptr<window_part> removed;
    net_->exclude_arrivals([&]() noexcept { removed = net_->windows().remove(part); });
  }

  Network* net_;
  std::map<std::uint32_t, std::size_t> releases_;  ///< number of ranks that have released a window
};

}  // namespace peerbus::detail::registered
