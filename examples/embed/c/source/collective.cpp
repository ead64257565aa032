// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/log_choices.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

#include "collective_request.hpp"

namespace peerbus::c_library {

namespace {

/// Returns the algorithm with a number of C's interface.
collective::algorithm algorithm_of(std::int32_t number) {
  const auto all = static_cast<std::int32_t>(collective::algorithm_names.size());
  require(number >= 0 && number < all,
          concat("an algorithm of ", number, ", expected 0 to ", all - 1));
  return static_cast<collective::algorithm>(number);
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.
using peerbus::collective::operation_kind;

peerbus_code peerbus_team_create(peerbus_comm* comm, const peerbus_team_options* options,
                                 int64_t timeout_ns, peerbus_team** team) {
  return guarded([&] {
    require_result(team, "team");
    const auto& members = usable(comm, "communicator").members;
    // Its ranks would not be those of the communicator.
    members->comm.require_healthy("team_create");
    const auto given =
        read_options(options, "options", offsetof(peerbus_team_options, window_bytes));
    peerbus::collective::team_options wanted;
    if (given.scratch_bytes != 0) wanted.scratch_bytes = given.scratch_bytes;
    if (given.one_shot_bytes != 0) wanted.one_shot_bytes = given.one_shot_bytes;
    if (given.window_bytes != 0) wanted.window_bytes = given.window_bytes;
    const peerbus::deadline until = deadline_of(members->comm, timeout_ns);
    const auto objection = peerbus::objection_of("a table of costs", [&] {
      wanted.algorithm = algorithm_of(given.algorithm);
      if (given.costs_file != nullptr) wanted.costs = peerbus::cost_table::load(given.costs_file);
    });
    wanted.may_reorder = given.may_reorder != 0;
    // Tells the other ranks, and throws. It has the name of the agreement by which a team is made.
    if (objection) members->comm.agree("collective::team", {}, until, objection);
    auto made = std::make_unique<peerbus_team>(members, wanted, until);
    if (members->log()) log_choices(made->ranks, members->log());
    *team = made.release();
  });
}

peerbus_code peerbus_team_in_window(peerbus_team* team, peerbus_window* window,
                                    peerbus_team** in_window) {
  return guarded([&] {
    require_result(in_window, "in_window");
    const peerbus_team& of = shared(team, "team");
    const peerbus_window& memory = shared(window, "window");
    require(of.members == memory.members,
            "in_window: the window is of another communicator than the team; expected the same");
    *in_window = std::make_unique<peerbus_team>(of, memory.kept).release();
  });
}

peerbus_code peerbus_team_in_halves(peerbus_team* team, peerbus_team** in_halves) {
  return guarded([&] {
    require_result(in_halves, "in_halves");
    *in_halves = peerbus_team::for_halves(shared(team, "team")).release();
  });
}

peerbus_code peerbus_team_finish(peerbus_team* team, int64_t timeout_ns) {
  return guarded([&] { usable(team, "team").half.finish(deadline_of(timeout_ns)); });
}

peerbus_code peerbus_team_algorithm(peerbus_team* team, int32_t operation, uint64_t bytes,
                                    uint32_t may_reorder, int32_t* algorithm) {
  return guarded([&] {
    using peerbus::collective::choice_of;
    require(algorithm != nullptr, "algorithm is NULL");
    static_assert(static_cast<int>(choice_of::reduce_scatter) == PEERBUS_OF_REDUCE_SCATTER &&
                  static_cast<int>(choice_of::broadcast) == PEERBUS_OF_BROADCAST);
    require(
        operation >= PEERBUS_OF_ALL_REDUCE && operation <= PEERBUS_OF_BROADCAST,
        peerbus::concat("an operation of ", operation, ", expected 0 to ", PEERBUS_OF_BROADCAST));
    const auto& ranks = shared(team, "team").ranks;
    *algorithm = static_cast<std::int32_t>(
        ranks.algorithm_of(static_cast<choice_of>(operation), bytes, may_reorder != 0));
  });
}

peerbus_code peerbus_team_resume(peerbus_team* team, int64_t timeout_ns) {
  return guarded([&] { usable(team, "team").ranks.resume(deadline_of(timeout_ns)); });
}

uint64_t peerbus_team_rank(const peerbus_team* team) {
  return team == nullptr ? 0 : team->ranks.rank().index();
}

uint64_t peerbus_team_size(const peerbus_team* team) {
  return team == nullptr ? 0 : team->ranks.size();
}

void peerbus_team_destroy(peerbus_team** team) { destroy(team); }

peerbus_code peerbus_broadcast(peerbus_team* team, void* data, uint64_t count, peerbus_dtype dtype,
                               uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "broadcast", dtype, timeout_ns};
    asked.input(data, count);
    asked.output(data, count);
    asked.root(rank_of(root));
    asked.carry_out(operation_kind::broadcast);
  });
}

peerbus_code peerbus_gather(peerbus_team* team, const void* input, void* output, uint64_t count,
                            peerbus_dtype dtype, uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "gather", dtype, timeout_ns};
    const peerbus::rank_id to = rank_of(root);
    asked.input(input, count);
    if (to == asked.team().rank()) asked.output(output, count, asked.size());
    asked.root(to);
    asked.carry_out(operation_kind::gather);
  });
}

peerbus_code peerbus_gather_v(peerbus_team* team, const void* input, uint64_t count, void* output,
                              const uint64_t* counts, const uint64_t* displacements,
                              peerbus_dtype dtype, uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "gather_v", dtype, timeout_ns};
    const peerbus::rank_id to = rank_of(root);
    asked.input(input, count);
    peerbus::collective::part_layout parts;
    if (to == asked.team().rank()) {
      std::uint64_t end = 0;
      parts = asked.parts(counts, displacements, "counts", &end);
      asked.output(output, end);
    }
    asked.root(to);
    asked.parts_are(parts);
    asked.carry_out(operation_kind::gather_v);
  });
}

peerbus_code peerbus_scatter(peerbus_team* team, const void* input, void* output, uint64_t count,
                             peerbus_dtype dtype, uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "scatter", dtype, timeout_ns};
    const peerbus::rank_id from = rank_of(root);
    if (from == asked.team().rank()) asked.input(input, count, asked.size());
    asked.output(output, count);
    asked.root(from);
    asked.carry_out(operation_kind::scatter);
  });
}

peerbus_code peerbus_scatter_v(peerbus_team* team, const void* input, const uint64_t* counts,
                               const uint64_t* displacements, void* output, uint64_t count,
                               peerbus_dtype dtype, uint64_t root, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "scatter_v", dtype, timeout_ns};
    const peerbus::rank_id from = rank_of(root);
    peerbus::collective::part_layout parts;
    if (from == asked.team().rank()) {
      std::uint64_t end = 0;
      parts = asked.parts(counts, displacements, "counts", &end);
      asked.input(input, end);
    }
    asked.output(output, count);
    asked.root(from);
    asked.parts_are(parts);
    asked.carry_out(operation_kind::scatter_v);
  });
}

peerbus_code peerbus_all_gather(peerbus_team* team, const void* input, void* output, uint64_t count,
                                peerbus_dtype dtype, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "all_gather", dtype, timeout_ns};
    asked.input(input, count);
    asked.output(output, count, asked.size());
    asked.carry_out(operation_kind::all_gather);
  });
}

peerbus_code peerbus_all_gather_v(peerbus_team* team, const void* input, void* output,
                                  const uint64_t* counts, const uint64_t* displacements,
                                  peerbus_dtype dtype, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "all_gather_v", dtype, timeout_ns};
    std::uint64_t end = 0;
    const auto parts = asked.parts(counts, displacements, "counts", &end);
    asked.input(input, counts[asked.team().rank().index()]);
    asked.output(output, end);
    asked.parts_are(parts);
    asked.carry_out(operation_kind::all_gather_v);
  });
}

peerbus_code peerbus_all_to_all(peerbus_team* team, const void* input, void* output, uint64_t count,
                                peerbus_dtype dtype, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "all_to_all", dtype, timeout_ns};
    asked.input(input, count, asked.size());
    asked.output(output, count, asked.size());
    asked.carry_out(operation_kind::all_to_all);
  });
}

peerbus_code peerbus_all_to_all_v(peerbus_team* team, const void* input,
                                  const uint64_t* sent_counts, const uint64_t* sent_displacements,
                                  void* output, const uint64_t* received_counts,
                                  const uint64_t* received_displacements, peerbus_dtype dtype,
                                  int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "all_to_all_v", dtype, timeout_ns};
    std::uint64_t end = 0;
    const auto sent = asked.parts(sent_counts, sent_displacements, "sent_counts", &end);
    asked.input(input, end);
    const auto received =
        asked.parts(received_counts, received_displacements, "received_counts", &end);
    asked.output(output, end);
    asked.parts_are(sent, received);
    asked.carry_out(operation_kind::all_to_all_v);
  });
}

peerbus_code peerbus_reduce(peerbus_team* team, const void* input, void* output, uint64_t count,
                            peerbus_dtype dtype, peerbus_reduction reduction, uint64_t root,
                            int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "reduce", dtype, timeout_ns};
    const peerbus::rank_id to = rank_of(root);
    asked.input(input, count);
    if (to == asked.team().rank()) asked.output(output, count);
    asked.by(reduction);
    asked.root(to);
    asked.carry_out(operation_kind::reduce);
  });
}

peerbus_code peerbus_all_reduce(peerbus_team* team, const void* input, void* output, uint64_t count,
                                peerbus_dtype dtype, peerbus_reduction reduction,
                                int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "all_reduce", dtype, timeout_ns};
    asked.input(input, count);
    asked.output(output, count);
    asked.by(reduction);
    asked.carry_out(operation_kind::all_reduce);
  });
}

peerbus_code peerbus_all_reduce_add(peerbus_team* team, const void* input, const void* residual,
                                    void* output, uint64_t count, peerbus_dtype dtype,
                                    int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "all_reduce_add", dtype, timeout_ns};
    asked.input(input, count);
    asked.residual(residual, count);
    asked.output(output, count);
    asked.by(PEERBUS_SUM);
    asked.carry_out(operation_kind::all_reduce_add);
  });
}

peerbus_code peerbus_reduce_scatter(peerbus_team* team, const void* input, void* output,
                                    uint64_t count, peerbus_dtype dtype,
                                    peerbus_reduction reduction, int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "reduce_scatter", dtype, timeout_ns};
    asked.input(input, count, asked.size());
    asked.output(output, count);
    asked.by(reduction);
    asked.carry_out(operation_kind::reduce_scatter);
  });
}

peerbus_code peerbus_reduce_scatter_v(peerbus_team* team, const void* input, const uint64_t* counts,
                                      const uint64_t* displacements, void* output,
                                      peerbus_dtype dtype, peerbus_reduction reduction,
                                      int64_t timeout_ns) {
  return guarded([&] {
    collective_request asked{team, "reduce_scatter_v", dtype, timeout_ns};
    std::uint64_t end = 0;
    const auto parts = asked.parts(counts, displacements, "counts", &end);
    asked.input(input, end);
    asked.output(output, counts[asked.team().rank().index()]);
    asked.by(reduction);
    asked.parts_are(parts);
    asked.carry_out(operation_kind::reduce_scatter_v);
  });
}
