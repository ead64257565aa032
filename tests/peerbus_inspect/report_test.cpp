// SPDX-License-Identifier: MIT
// What peerbus_inspect says of ranks that it does not see.
#include "report.hpp"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/observed_group.hpp>
#include <peerbus/core/rank.hpp>

namespace report_test {
namespace {

/// A group of five ranks, of which rank 1 is seen and waits for others.
peerbus_inspect::group_view seen_rank_1(const std::vector<std::string>& hosts) {
  peerbus_inspect::group_view group;
  group.size = 5;
  group.ranks.resize(1);
  group.ranks[0].rank = peerbus::rank_id{1};
  group.hosts = hosts;
  group.here = hosts[1];
  group.answer.found = peerbus_inspect::finding::elsewhere;
  group.answer.waits_for.resize(1);
  return group;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_CASE("ranks that are not seen are named with their hosts") {
  const std::vector groups{seen_rank_1({"10.0.0.2", "here", "10.0.0.3", "10.0.0.2", "here"})};
  const std::string text = peerbus_inspect::report_text(groups);
  CAPTURE(text);
  CHECK(
      text.starts_with("all ranks that are seen wait for others: "
                       "ranks 0, 3 on host 10.0.0.2; rank 2 on host 10.0.0.3; rank 4\n"));
  CHECK(has(text, "\n  not seen: ranks 0, 3; ask on host 10.0.0.2\n"));
  CHECK(has(text, "\n  not seen: rank 2; ask on host 10.0.0.3\n"));
  CHECK(has(text, "\n  not seen: rank 4; of a group that met over TCP, name all processes"));
  std::string flat;
  for (const char c : peerbus_inspect::report_json(groups, {}))
    if (c != ' ' && c != '\n') flat += c;
  CAPTURE(flat);
  CHECK(has(flat, R"("not_seen":[0,2,3,4],"elsewhere":[{"host":"10.0.0.2","ranks":[0,3]},)"
                  R"({"host":"10.0.0.3","ranks":[2]}])"));
}

TEST_CASE("ranks whose hosts are not known are taken for ranks of this host") {
  const std::vector groups{seen_rank_1({"", "", "", "", ""})};
  const std::string text = peerbus_inspect::report_text(groups);
  CAPTURE(text);
  CHECK(text.starts_with("all ranks that are seen wait for others: ranks 0, 2-4\n"));
  CHECK(has(text, "\n  not seen: ranks 0, 2-4; of a group that met over TCP, name all processes"));
  CHECK(has(peerbus_inspect::report_json(groups, {}), R"("elsewhere": [])"));
}

TEST_CASE("a host without a name and an address for others is said to be unknown") {
  const std::vector groups{seen_rank_1({"", "here", "here", "here", ""})};
  const std::string text = peerbus_inspect::report_text(groups);
  CAPTURE(text);
  CHECK(text.find("ranks 0, 4 on a host whose name is not known") != std::string::npos);
  CHECK(text.find("ask on a host whose name is not known\n") != std::string::npos);
  CHECK(peerbus_inspect::report_json(groups, {}).find(R"("host": null)") != std::string::npos);
}

TEST_CASE("a host's name that is no UTF-8 is no reason to say nothing") {
  const std::vector groups{seen_rank_1({"\xff", "here", "here", "here", "here"})};
  CHECK(has(peerbus_inspect::report_json(groups, {}), "\xef\xbf\xbd"));
}

}  // namespace
}  // namespace report_test
