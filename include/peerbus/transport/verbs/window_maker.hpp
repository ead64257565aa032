// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/memory_hook.hpp>
#include <peerbus/transport/verbs/append_bytes.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus::detail::rdma {

/// Makes windows, and frees the memory of those that every rank has released. Peers may reach for a
/// part until then.
class window_maker {
 public:
  explicit window_maker(network& net) : net_{&net} {}

  /// Collective. Throws, on all ranks: `error` out_of_memory, mismatch, system; or as
  /// `bootstrap::allgather`.
  window_part& make(bootstrap& boot, window_shape shape, const memory_hook& on_memory,
                    deadline until) {
    // A part can be found before any peer knows of it: the first signal to it may be here before
    // the answers of all ranks are.
    window_part* part = nullptr;
    std::optional<error> objection = objection_to(shape);
    bootstrap::contribution own;
    try {
      if (!objection) part = &net_->windows().insert(allocate(shape, on_memory));
      if (part != nullptr) own.bytes = describe(*part, until);
    } catch (const error& problem) {
      objection = problem;
    } catch (const std::bad_alloc&) {
      objection = error{errc::out_of_memory, "window: no memory for the list of its parts"};
    }
    std::vector<bootstrap::contribution> all;
    try {
      all = gather_or_refuse(boot, "window", std::move(own), objection, until);
      adopt(*part, all);
    } catch (...) {
      if (part != nullptr) forget(*part);
      throw;
    }
    net_->windows().commit(part->number);
    free_released(all);
    return *part;
  }

 private:
  /// Describes a rank's part to the others. The numbers of the windows that the rank has released
  /// since it made the last one follow.
  struct offer {
    std::uint64_t bytes = 0;
    std::uint64_t signals = 0;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint32_t number = 0;
  };

  std::unique_ptr<window_part> allocate(window_shape shape, const memory_hook& on_memory) {
    const auto number = net_->windows().next_number();
    if (!number)
      throw error{errc::out_of_memory, concat("verbs: ", window_table::capacity,
                                              " windows exist, expected fewer at a time")};
    auto part = std::make_unique<window_part>();
    part->number = *number;
    part->shape = shape;
    // One byte at least: an empty mapping does not exist.
    part->data = mapping::anonymous(shape.bytes + 1);
    part->signals = mapping::anonymous(shape.signals * sizeof(signal_word) + 1);
    if (on_memory) on_memory({part->data.data(), part->data.size()});
    if (shape.bytes != 0)
      part->registration =
          register_memory(net_->own().domain(), net_->own().port(), part->data, shape.bytes,
                          net_->own().options().relaxed_ordering, "a window");
    part->parts.resize(net_->size());
    return part;
  }

  std::vector<std::byte> describe(const window_part& part, deadline until) {
    std::vector<std::byte> told;
    append_bytes(told, offer{part.shape.bytes, part.shape.signals, part.address(),
                             part.registration ? part.registration->rkey : 0, part.number});
    std::vector<std::uint32_t> released;
    for (const auto& kept : net_->windows().parts())
      // order: acquire; pairs with the release in the window's destructor.
      if (!kept->reported && kept->released.load(std::memory_order_acquire))
        released.push_back(kept->number);
    // Nothing that this rank has sent from or to them may be in flight any more. If it is, because
    // a peer is slow, the next window will tell.
    const deadline soon = deadline::after(std::chrono::seconds{1});
    if (!released.empty() && net_->settle(until.when() < soon.when() ? until : soon))
      for (const std::uint32_t number : released) append_bytes(told, number);
    return told;
  }

  void adopt(window_part& part, const std::vector<bootstrap::contribution>& all) const {
    std::optional<offer> first;
    for (const rank_id peer : all_ranks{all.size()}) {
      const auto& told = all[peer.index()].bytes;
      offer theirs;
      if (told.size() < sizeof theirs)
        throw agreed_error{errc::mismatch, concat("window: ", peer, " described it by ",
                                                  told.size(), " bytes, expected ", sizeof theirs)};
      std::memcpy(&theirs, told.data(), sizeof theirs);
      if (!first) first = theirs;
      if (theirs.bytes != first->bytes || theirs.signals != first->signals ||
          theirs.number != first->number)
        throw agreed_error{
            errc::mismatch,
            concat("window: ", rank_id{0}, " has number ", first->number, " of ", first->bytes,
                   " bytes and ", first->signals, " signals, but ", peer, " number ", theirs.number,
                   " of ", theirs.bytes, " and ", theirs.signals)};
      part.parts[peer.index()] = {theirs.address, theirs.key};
    }
  }

  void free_released(const std::vector<bootstrap::contribution>& all) {
    for (const rank_id peer : all_ranks{all.size()}) {
      const auto& told = all[peer.index()].bytes;
      for (std::size_t offset = sizeof(offer); offset + sizeof(std::uint32_t) <= told.size();
           offset += sizeof(std::uint32_t)) {
        std::uint32_t number = 0;
        std::memcpy(&number, told.data() + offset, sizeof number);
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
    net_->arriving().exclude_arrivals([&] { removed = net_->windows().remove(part); });
  }

  network* net_;
  std::map<std::uint32_t, std::size_t> releases_;  ///< number of ranks that have released a window
};

}  // namespace peerbus::detail::rdma
