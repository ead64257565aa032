// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
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
#include <peerbus/transport/verbs/endpoint.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus::detail::rdma {

/// Makes windows, and frees the memory of those that every rank has released: peers may reach for a
/// part until then.
class window_maker {
 public:
  explicit window_maker(endpoint& network) : net_{&network} {}

  /// Collective. Throws, on all ranks: `error` out_of_memory, mismatch, system; or as
  /// `bootstrap::allgather`.
  window_part* make(bootstrap& boot, window_shape shape, const memory_hook& on_memory,
                    deadline until) {
    std::unique_ptr<window_part> part;
    std::optional<error> objection = objection_to(shape);
    bootstrap::contribution mine;
    try {
      if (!objection) part = allocate(shape, on_memory);
      mine.bytes = describe(part.get(), until);
    } catch (const error& problem) {
      objection = problem;
    } catch (const std::bad_alloc&) {
      objection = error{errc::out_of_memory, "window: no memory for the list of its parts"};
    }
    if (objection) part.reset();
    // Before any peer can know it: its first signal may be here before the others' answers are.
    if (part) net_->windows_.insert(*part);
    std::vector<bootstrap::contribution> all;
    try {
      all = gather_or_refuse(boot, "window", std::move(mine), objection, until);
      adopt(*part, all);
    } catch (...) {
      if (part) forget(*part);
      throw;
    }
    net_->windows_.commit(part->number);
    net_->parts_.push_back(std::move(part));
    window_part* const made = net_->parts_.back().get();
    free_released(all);
    return made;
  }

 private:
  /// What a rank tells of its part, followed by the numbers of windows that it has released since.
  struct offer {
    std::uint64_t bytes = 0;
    std::uint64_t signals = 0;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint32_t number = 0;
  };

  std::unique_ptr<window_part> allocate(window_shape shape, const memory_hook& on_memory) {
    const auto number = net_->windows_.next_number();
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
      part->registration = register_memory(net_->domain_, net_->port_, part->data, shape.bytes,
                                           net_->options_.relaxed_ordering, "a window");
    part->parts.resize(net_->size());
    return part;
  }

  std::vector<std::byte> describe(const window_part* part, deadline until) {
    std::vector<std::byte> said;
    if (part == nullptr) return said;
    append_bytes(said, offer{part->shape.bytes, part->shape.signals, part->address(),
                             part->registration ? part->registration->rkey : 0, part->number});
    std::vector<std::uint32_t> released;
    for (const auto& one : net_->parts_)
      // order: acquire; pairs with the release in the window's destructor.
      if (!one->reported && one->released.load(std::memory_order_acquire))
        released.push_back(one->number);
    // Nothing that this rank has sent from or to them may be on its way any more. If it is, because
    // a peer is slow, the next window will tell.
    const deadline soon = deadline::after(std::chrono::seconds{1});
    if (!released.empty() && net_->settle(until.when() < soon.when() ? until : soon))
      for (const std::uint32_t number : released) append_bytes(said, number);
    return said;
  }

  void adopt(window_part& part, const std::vector<bootstrap::contribution>& all) const {
    std::optional<offer> first;
    for (const rank_id peer : all_ranks{all.size()}) {
      const auto& said = all[peer.index()].bytes;
      offer theirs;
      if (said.size() < sizeof theirs)
        throw agreed_error{errc::mismatch, concat("window: ", peer, " described it by ",
                                                  said.size(), " bytes, expected ", sizeof theirs)};
      std::memcpy(&theirs, said.data(), sizeof theirs);
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
      const auto& said = all[peer.index()].bytes;
      for (std::size_t at = sizeof(offer); at + sizeof(std::uint32_t) <= said.size();
           at += sizeof(std::uint32_t)) {
        std::uint32_t number = 0;
        std::memcpy(&number, said.data() + at, sizeof number);
        window_part* const part = net_->windows_.find(number);
        if (part == nullptr) continue;
        part->reported = part->reported || peer == net_->rank();
        if (++releases_[number] < net_->size()) continue;
        releases_.erase(number);
        forget(*part);
        std::erase_if(net_->parts_, [part](const auto& one) { return one.get() == part; });
      }
    }
  }

  void forget(const window_part& part) {
    const std::lock_guard nobody_looks{net_->looking()};
    net_->windows_.remove(part);
  }

  endpoint* net_;
  std::map<std::uint32_t, std::size_t> releases_;  ///< how many ranks have released which window
};

}  // namespace peerbus::detail::rdma
