// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/host_identity.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

namespace detail {

/// A rank of a group some of whose ranks are not there.
class partial_bootstrap final : public bootstrap {
 public:
  /// Makes the result of `with_vacancies`, whose arguments have been checked.
  partial_bootstrap(std::unique_ptr<bootstrap> met, const std::vector<rank_id>& ranks_of_met,
                    std::size_t capacity, deadline until) {
    // One contribution carries one descriptor, and the first rank has two to give.
    contribution page;
    if (met->rank().index() == 0) page.fd = state_page::make_file(capacity);
    auto pages = met->allgather(std::move(page), until, "page of a group with vacancies");
    const auto states = state_page::open(capacity, pages[0].fd);
    auto given = met->allgather({{}, open_pidfd(::getpid())}, until, "processes of the ranks");
    std::vector<unique_fd> processes(capacity);
    std::vector<bool> is_there(capacity);
    for (std::size_t i = 0; i < ranks_of_met.size(); ++i) {
      is_there[ranks_of_met[i].index()] = true;
      if (i != met->rank().index()) processes[ranks_of_met[i].index()] = std::move(given[i].fd);
    }
    set_members(std::make_shared<membership>(ranks_of_met[met->rank().index()], capacity,
                                             states.words(), states.memory(), std::move(processes),
                                             states.lines()));
    std::vector<rank_id> near_ranks;
    for (const rank_id rank : all_ranks{capacity}) {
      near_ranks.push_back(rank);
      if (!is_there[rank.index()]) members()->exclude(rank);
    }
    set_neighbours(std::move(near_ranks), met->ranks_here(), met->cores_here());
    set_idle(met->idle());
    go_on_with(ranks_of_met, std::move(met));
  }
  partial_bootstrap(const partial_bootstrap&) = delete;
  partial_bootstrap& operator=(const partial_bootstrap&) = delete;
  ~partial_bootstrap() override { members()->announce_end(exceptions_before_); }

  [[nodiscard]] address_space addresses() const noexcept override {
    return address_space::separate;
  }
  [[nodiscard]] bool can_go_on() const noexcept override { return true; }
  [[nodiscard]] std::vector<contribution> allgather(contribution own_part, deadline until,
                                                    std::string_view doing) override {
    refuse_child(*members(), doing);
    return allgather_of_the_rest(std::move(own_part), until, doing);
  }

 private:
  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& ranks,
                                                         rank_id /*member*/,
                                                         deadline until) override {
    return subgroup_of_the_rest(ranks, until);
  }

  int exceptions_before_ = std::uncaught_exceptions();
};

/// Returns what is wrong with the arguments of `with_vacancies`.
PEERBUS_INLINE std::optional<error> objection_to_numbers(const bootstrap& met,
                                                         const std::vector<rank_id>& ranks_of_met,
                                                         std::size_t capacity) {
  if (met.addresses() == address_space::shared || (!met.passes_descriptors() && !met.messages()))
    return error{errc::unsupported,
                 "with_vacancies: the ranks are threads or on several hosts, expected processes of "
                 "one host or ranks that met over TCP as a mesh (PEERBUS_MESH)"};
  if (ranks_of_met.size() != met.size())
    return error{errc::invalid_argument,
                 concat("with_vacancies: ", ranks_of_met.size(),
                        " numbers given, expected one for each of ", met.size(), " ranks")};
  std::vector<bool> is_taken(capacity);
  for (const rank_id number : ranks_of_met) {
    if (number.index() >= capacity || is_taken[number.index()])
      return error{errc::invalid_argument,
                   concat("with_vacancies: ", describe_ranks(ranks_of_met),
                          " given, expected numbers below ", capacity, ", each once")};
    is_taken[number.index()] = true;
  }
  return std::nullopt;
}

/// Gives slots to the ranks of `met`, which share no memory, and numbers the ranks in the order of
/// their slots.
PEERBUS_INLINE std::unique_ptr<bootstrap> in_order_of_slots(std::unique_ptr<bootstrap> met,
                                                            std::vector<rank_id> slots,
                                                            std::size_t capacity, deadline until) {
  std::vector<rank_id> order;
  order.reserve(met->size());
  for (const rank_id rank : all_ranks{met->size()}) order.push_back(rank);
  std::sort(order.begin(), order.end(),
            [&](rank_id a, rank_id b) { return slots[a.index()] < slots[b.index()]; });
  if (!std::is_sorted(order.begin(), order.end())) {
    const auto share = [&](std::span<const std::byte> own) {
      const auto given = met->allgather({{own.begin(), own.end()}, {}}, until, "order of slots");
      std::vector<std::byte> all;
      for (const rank_id rank : order) {
        const auto& bytes = given[rank.index()].bytes;
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
      return all;
    };
    const auto place = std::find(order.begin(), order.end(), met->rank()) - order.begin();
    met = met->meet_again(order, rank_id{static_cast<std::size_t>(place)}, share, until);
    std::sort(slots.begin(), slots.end());
  }
  met->set_slots(std::move(slots), capacity);
  return met;
}

}  // namespace detail

PEERBUS_INLINE std::unique_ptr<bootstrap> with_vacancies(std::unique_ptr<bootstrap> met,
                                                         const std::vector<rank_id>& ranks_of_met,
                                                         std::size_t capacity, deadline until) {
  const std::array values{declared{"the capacity", capacity},
                          declared{"the numbers", detail::describe_ranks(ranks_of_met)}};
  agree(*met, "with_vacancies", values, until,
        detail::objection_to_numbers(*met, ranks_of_met, capacity));
  if (met->messages())
    return detail::in_order_of_slots(std::move(met), ranks_of_met, capacity, until);
  return std::make_unique<detail::partial_bootstrap>(std::move(met), ranks_of_met, capacity, until);
}

}  // namespace peerbus
