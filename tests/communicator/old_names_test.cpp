// SPDX-License-Identifier: MIT
// ctest: unit
//
// The headers and names that docs/versions.md keeps until 0.2, as programs of 0.1 use them.
#include <concepts>
#include <cstddef>
#include <type_traits>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/meeting_options.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/groups_by_leader.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/exchange_window.hpp>
#include <peerbus/moe/expert_load.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/moe/two_level_exchange.hpp>
#include <peerbus/rank_group.hpp>
#include <peerbus/run.hpp>
#include <peerbus/transport/loopback.hpp>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace old_names_test {

using namespace peerbus;

static_assert(std::same_as<moe::exchange_window, any_window>);
static_assert(std::same_as<moe::exchange_window_over<loopback>, any_window_over<loopback>>);
static_assert(std::same_as<collective::page_road, collective::page_access>);
static_assert(std::same_as<collective::road_costs, collective::access_costs>);
static_assert(std::same_as<meeting_options, rendezvous_options>);
static_assert(std::same_as<membership_news, membership_source>);
static_assert(moe::road_name<loopback> == moe::path_name<loopback>);
static_assert(std::is_class_v<moe::expert_load>);
static_assert(
    std::same_as<decltype(&bootstrap::meeting_address), decltype(&bootstrap::rendezvous_address)>);

TEST_CASE("make_together does as on_all_ranks") {
  const int status = run<loopback>(2, [](auto& comm) {
    const auto made = make_together(comm, "a number", comm.default_deadline(),
                                    [&] { return comm.rank().index() + 1; });
    CHECK(made == comm.rank().index() + 1);
    return 0;
  });
  CHECK(status == 0);
}

}  // namespace old_names_test

#pragma GCC diagnostic pop
