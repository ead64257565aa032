// SPDX-License-Identifier: MIT
// Each name that docs/versions.md keeps until 0.2 warns, here as an error.
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/meeting_options.hpp>
#include <peerbus/bootstrap/membership_source.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/moe/exchange_window.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/rank_group.hpp>
#include <peerbus/transport/loopback.hpp>

#pragma GCC diagnostic error "-Wdeprecated-declarations"

#if PEERBUS_CASE == 0
void present(const peerbus::any_window& window, peerbus::collective::page_access access);
#endif

#if PEERBUS_CASE == 1
// case 1: expect "exchange_window.*deprecated"
void former(const peerbus::moe::exchange_window& window);
#endif

#if PEERBUS_CASE == 2
// case 2: expect "page_road.*deprecated"
void former(peerbus::collective::page_road road);
#endif

#if PEERBUS_CASE == 3
// case 3: expect "road_costs.*deprecated"
void former(const peerbus::collective::road_costs& costs);
#endif

#if PEERBUS_CASE == 4
// case 4: expect "road_name.*deprecated"
const auto former = peerbus::moe::road_name<peerbus::loopback>;
#endif

#if PEERBUS_CASE == 5
// case 5: expect "meeting_options.*deprecated"
void former(const peerbus::meeting_options& options);
#endif

#if PEERBUS_CASE == 6
// case 6: expect "membership_news.*deprecated"
void former(const peerbus::membership_news& source);
#endif

#if PEERBUS_CASE == 7
// case 7: expect "make_together.*deprecated"
int former(peerbus::rank_group& group) {
  return peerbus::make_together(group, "a number", group.default_deadline(), [] { return 1; });
}
#endif

#if PEERBUS_CASE == 8
// case 8: expect "meeting_address.*deprecated"
const std::string& former(const peerbus::bootstrap& boot) { return boot.meeting_address(); }
#endif
