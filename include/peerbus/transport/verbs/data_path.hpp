// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/registered/data_path.hpp>
#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/registered/signal_wait.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/turn.hpp>

namespace peerbus::detail::rdma {

/// The data path of `verbs`. Puts are noted in a chain of requests per queue pair, which is posted
/// under one doorbell by the next `signal`, `flush`, `quiet` or `progress` to that peer, or once it
/// is long enough. A signal is a completion at the peer, of an RDMA WRITE with immediate data or of
/// a SEND, which is what the InfiniBand specification makes puts visible by; see
/// docs/memory_model.md. `verbs` adds how windows are made. Semantics: the numbered list at
/// `transport`.
class data_path : public registered::data_path<network, turn> {
 public:
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    // All ranks' devices have atomics, or none: `connect` compares them.
    return {.any_local_memory = false, .fetch_add = net()->own().has_atomics()};
  }

  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    const auto part = own(memory);
    if (!part.holds(peer, offset, sizeof addend)) return errc::out_of_range;
    if (offset % sizeof addend != 0) return errc::invalid_argument;
    if (!net()->own().has_atomics()) return errc::unsupported;
    // To this rank itself as well: a device's atomics are atomic among themselves only.
    link& to = net()->to(peer);
    std::optional<std::size_t> entry;
    const auto taken = [&]() noexcept { return (entry = to.results().take()).has_value(); };
    if (const errc code = net()->stall(to, taken); code != errc::ok) return code;
    const std::size_t result = net()->own().map().scratch(peer) + net()->own().map().result(*entry);
    const errc code = add_and_wait(to, net()->own().registered(0, result, sizeof before),
                                   part.place(peer, offset), addend);
    if (code != errc::ok) return code;  // The device may still write there: the entry is lost.
    std::memcpy(&before, net()->own().memory(result), sizeof before);
    to.results().give_back(*entry);
    return errc::ok;
  }

  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    if (!own(memory).has(awaited.value_or(net()->rank()), id)) return errc::out_of_range;
    return registered::wait_for(*net(), memory.part().signal(id), value, until, awaited,
                                [this](rank_id peer) noexcept { probe(peer); });
  }

  [[nodiscard]] errc flush(rank_id peer) noexcept {
    if (peer.index() >= net()->size()) return errc::out_of_range;
    link& to = net()->to(peer);
    for (std::size_t q = 0; q < to.pairs().size(); ++q) {
      if (const errc code = turn{*net(), to}.post(q); code != errc::ok) return code;
      const registered::request_count& count = to.counts()[q];
      if (const errc code = complete(to, count, count.posted()); code != errc::ok) return code;
    }
    return errc::ok;
  }
  [[nodiscard]] errc quiet() noexcept {
    for (const rank_id peer : all_ranks{net()->size()})
      if (const errc code = turn{*net(), net()->to(peer)}.prove_writes(); code != errc::ok)
        return code;
    for (const rank_id peer : all_ranks{net()->size()})
      if (const errc code = flush(peer); code != errc::ok) return code;
    return errc::ok;
  }
  [[nodiscard]] errc progress() noexcept {
    for (const rank_id peer : all_ranks{net()->size()}) {
      link& to = net()->to(peer);
      auto mine = turn::take_free(*net(), to);  // A thread that has its turn posts what it notes.
      for (std::size_t q = 0; mine && q < to.pairs().size(); ++q)
        if (const errc code = mine->post(q); code != errc::ok) return code;
    }
    net()->arriving().look();
    return errc::ok;
  }

  [[nodiscard]] int arrival_fd() const noexcept { return net()->own().wake_descriptor(); }
  [[nodiscard]] bool arm() noexcept { return net()->arriving().arm(); }
  void disarm() noexcept { net()->arriving().disarm(); }
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept {
    return registered::look_after(*net(), awaited, [this](rank_id peer) noexcept { probe(peer); });
  }

  /// "rxe0 port 1 GID 1", or several of these, by ", ".
  [[nodiscard]] std::string describe_port() const {
    std::string text;
    for (const auto& each : net()->own().rails())
      text += concat(text.empty() ? "" : ", ", each->port().describe());
    return text;
  }
  /// Returns the number of bytes that this rank has sent by each of `verbs_options::devices`, in
  /// their order. Empty if the rank has one device, for which nothing is counted.
  [[nodiscard]] std::vector<std::uint64_t> bytes_by_device() const {
    std::vector<std::uint64_t> bytes;
    if (net()->own().rails().size() > 1)
      for (const auto& each : net()->own().rails()) bytes.push_back(each->load().sent());
    return bytes;
  }
  /// The queue pair itself, for tools and tests.
  [[nodiscard]] ibv_qp* queue_pair(rank_id peer, std::size_t number = 0) const noexcept {
    return net()->to(peer).pairs()[number].get();
  }

 protected:
  using registered::data_path<network, turn>::data_path;

 private:
  /// Lets the devices ask whether `peer` can still be reached.
  void probe(rank_id peer) noexcept {
    if (auto mine = turn::take_free(*net(), net()->to(peer))) mine->probe();
  }

  [[nodiscard]] errc add_and_wait(link& to, const local_bytes& result, const remote_place& word,
                                  std::uint64_t addend) noexcept {
    std::uint32_t posted = 0;
    {
      turn mine{*net(), to};
      if (const errc code = mine.add(result, word, addend); code != errc::ok) return code;
      posted = to.counts()[0].posted();
    }
    return complete(to, to.counts()[0], posted);
  }
  [[nodiscard]] errc complete(link& to, const registered::request_count& count,
                              std::uint32_t posted) noexcept {
    return net()->stall(to, [&]() noexcept { return count.completed_up_to(posted); });
  }
};

}  // namespace peerbus::detail::rdma
