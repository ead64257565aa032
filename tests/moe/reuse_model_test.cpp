// SPDX-License-Identifier: MIT
// ctest: tsan
//
// Model check of the claim in docs/memory_model.md that an exchange never overwrites what a peer
// still reads. Every place has one writer, so what it holds follows from how far its writer has
// come; a state is therefore one program counter per rank, and all of them can be visited.
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

namespace {

enum class act { write, read, raise, wait };

/// One step of a rank's program. Places and signals are named "kind.writer.reader[.generation]".
struct step {
  act what;
  std::string place;
  int epoch;
};

/// Which safeguard is left out, for the control runs that the checker must catch.
enum class broken { nothing, one_generation_of_counts, rows_without_counts, outputs_unannounced };

struct model {
  std::size_t ranks;
  std::string_view operations;  ///< 'd' dispatch, 'c' combine, 'D' and 'C': refused by rank 0
  broken fault = broken::nothing;
};

std::string name(std::string_view kind, std::size_t writer, std::size_t reader,
                 int generation = 0) {
  return std::string{kind} + '.' + std::to_string(writer) + '.' + std::to_string(reader) + '.' +
         std::to_string(generation);
}

/// The protocol of moe/exchange.hpp, one memory access at a time.
std::vector<step> program_of(std::size_t me, const model& m) {
  std::vector<step> program;
  const auto every_peer = [&](auto&& visit) {
    for (std::size_t distance = 1; distance < m.ranks; ++distance) visit((me + distance) % m.ranks);
  };
  int dispatches = 0;
  int combines = 0;
  int latest = 0;
  for (const char operation : m.operations) {
    const bool refused = operation == 'D' || operation == 'C';
    if (operation == 'd' || operation == 'D') {
      const int n = ++dispatches;
      const int generation = m.fault == broken::one_generation_of_counts ? 0 : n % 2;
      every_peer([&](std::size_t peer) {
        program.push_back({act::write, name("counts", me, peer, generation), n});
        program.push_back({act::raise, name("counts!", me, peer), n});
      });
      const auto take_counts = [&] {
        every_peer([&](std::size_t peer) {
          program.push_back({act::wait, name("counts!", peer, me), n});
        });
        every_peer([&](std::size_t peer) {
          program.push_back({act::read, name("counts", peer, me, generation), n});
        });
      };
      if (m.fault != broken::rows_without_counts) take_counts();
      if (refused) continue;
      every_peer([&](std::size_t peer) {
        program.push_back({act::write, name("rows", me, peer), n});
        program.push_back({act::raise, name("rows!", me, peer), n});
      });
      if (m.fault == broken::rows_without_counts) take_counts();
      every_peer(
          [&](std::size_t peer) { program.push_back({act::wait, name("rows!", peer, me), n}); });
      // The expert: reads its rows and leaves its outputs.
      every_peer(
          [&](std::size_t peer) { program.push_back({act::read, name("rows", peer, me), n}); });
      program.push_back({act::write, name("outputs", me, me), n});
      latest = n;
    } else {
      const int n = ++combines;
      if (refused && me == 0)
        every_peer([&](std::size_t peer) {
          program.push_back({act::write, name("refusal", me, peer, n % 2), n});
        });
      every_peer([&](std::size_t peer) {
        program.push_back({act::raise, name("outputs!", me, peer), n});
      });
      if (m.fault != broken::outputs_unannounced)
        every_peer([&](std::size_t peer) {
          program.push_back({act::wait, name("outputs!", peer, me), n});
        });
      if (refused) {
        if (me != 0) program.push_back({act::read, name("refusal", 0, me, n % 2), n});
        continue;
      }
      every_peer([&](std::size_t peer) {
        program.push_back({act::read, name("outputs", peer, peer), latest});
      });
    }
  }
  return program;
}

struct verdict {
  std::size_t states = 0;
  std::string wrong_read;
  bool stuck = false;
};

verdict explore(const model& m) {
  std::vector<std::vector<step>> programs;
  for (std::size_t r = 0; r < m.ranks; ++r) programs.push_back(program_of(r, m));

  // What a place holds, or a signal is, once its writer has come as far as the state says.
  const auto last_written = [&](const std::vector<std::size_t>& state, const std::string& place,
                                act how) {
    for (std::size_t r = 0; r < m.ranks; ++r)
      for (std::size_t i = state[r]; i-- > 0;)
        if (programs[r][i].what == how && programs[r][i].place == place)
          return programs[r][i].epoch;
    return 0;
  };

  verdict result;
  std::set<std::vector<std::size_t>> seen;
  std::vector<std::vector<std::size_t>> open{std::vector<std::size_t>(m.ranks, 0)};
  seen.insert(open.front());
  while (!open.empty() && result.wrong_read.empty()) {
    const auto state = open.back();
    open.pop_back();
    ++result.states;
    bool moved = false;
    bool ended = true;
    for (std::size_t r = 0; r < m.ranks; ++r) {
      if (state[r] == programs[r].size()) continue;
      ended = false;
      const step& next = programs[r][state[r]];
      if (next.what == act::wait && last_written(state, next.place, act::raise) < next.epoch)
        continue;
      if (next.what == act::read && last_written(state, next.place, act::write) != next.epoch)
        result.wrong_read = "rank " + std::to_string(r) + " reads " + next.place;
      moved = true;
      auto after = state;
      ++after[r];
      if (seen.insert(after).second) open.push_back(after);
    }
    result.stuck = result.stuck || (!moved && !ended);
  }
  return result;
}

void holds(std::size_t ranks, std::string_view operations) {
  CAPTURE(ranks);
  CAPTURE(operations);
  const verdict found = explore({ranks, operations});
  CHECK(found.wrong_read == "");
  CHECK_FALSE(found.stuck);
  CHECK(found.states > operations.size());
}

}  // namespace

TEST_CASE("no interleaving of two ranks lets an exchange overwrite what is still read") {
  for (const std::string_view operations :
       {"dcdcdc", "dddd", "ddcdc", "dccdcc", "DDDdc", "dDdcDcdc", "dCcdCCCc", "DdCcDDdCCc"})
    holds(2, operations);
}

TEST_CASE("no interleaving of three ranks does") {
  for (const std::string_view operations : {"dcdc", "ddd", "DDdc", "dCCc"}) holds(3, operations);
}

TEST_CASE("the checker sees what would go wrong without each safeguard") {
  // A second generation of counts: without it, a rank that saw a refusal posts over counts that a
  // slower one is about to read.
  CHECK(explore({2, "DDD", broken::one_generation_of_counts}).wrong_read != "");
  // Counts before rows: they tell the sender that its peer is done with the rows before.
  CHECK(explore({2, "dd", broken::rows_without_counts}).wrong_read != "");
  // Outputs are announced.
  CHECK(explore({2, "dc", broken::outputs_unannounced}).wrong_read != "");
}
