// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/replica_choice.hpp>

#include "erased_exchange.hpp"
#include "exchange_input.hpp"
#include "objects.hpp"

struct peerbus_expert_weights final : peerbus::c_library::object {
  peerbus_expert_weights(std::shared_ptr<peerbus::c_library::group> of,
                         const peerbus::moe::expert_map& placement,
                         peerbus::moe::expert_tensors shape, peerbus::deadline until)
      : object{std::move(of)},
        tensors{shape.bytes.size()},
        moved{members->comm, placement, std::move(shape), until} {}
  std::size_t tensors;  ///< of an expert
  peerbus::moe::expert_weights moved;
};

namespace peerbus::c_library {

namespace {

/// The exchanges of a commit, as one to which `moe::expert_weights` gives the new map.
class exchanges_together {
 public:
  exchanges_together(std::span<peerbus_exchange* const> exchanges,
                     const peerbus_replica_choice* replicas)
      : replicas_{replicas} {
    require(!exchanges.empty(), "count is 0, expected an exchange, which decides for all ranks");
    calls_.reserve(exchanges.size());
    for (peerbus_exchange* const exchange : exchanges)
      calls_.push_back(usable(exchange, "exchange").calls.get());
  }

  /// Gives each exchange the map with the choice of C, which each reads and refuses by itself.
  void install_experts(std::span<const std::uint32_t> physical_to_logical,
                       const moe::replica_choice& /*choice*/, deadline until) {
    for (erased_exchange* const exchange : calls_)
      exchange->install_experts(physical_to_logical, replicas_, until);
  }

 private:
  const peerbus_replica_choice* replicas_;
  std::vector<erased_exchange*> calls_;
};

moe::expert_tensors read_tensors(const peerbus_expert_tensors* given) {
  const auto read = read_struct(given, "tensors");
  require(read.bytes != nullptr || read.tensors == 0, "tensors.bytes is NULL");
  moe::expert_tensors shape;
  shape.bytes.assign(read.bytes, read.bytes + read.tensors);
  if (read.spare != 0) shape.spare = read.spare;
  if (read.slice != 0) shape.slice = read.slice;
  return shape;
}

moe::expert_weights& moved_of(peerbus_expert_weights* weights) {
  return usable(weights, "expert weights").moved;
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_expert_weights_create(peerbus_comm* comm, peerbus_exchange* exchange,
                                           const peerbus_expert_tensors* tensors,
                                           int64_t timeout_ns, peerbus_expert_weights** weights) {
  return guarded([&] {
    require_result(weights, "weights");
    const auto& members = usable(comm, "communicator").members;
    const auto& placement = usable(exchange, "exchange").calls->experts();
    peerbus::moe::expert_tensors shape;
    call_or_refuse([&] { shape = read_tensors(tensors); }, [&] { shape.bytes.clear(); },
                   [&] {
                     *weights = std::make_unique<peerbus_expert_weights>(
                                    members, placement, std::move(shape),
                                    deadline_of(members->comm, timeout_ns))
                                    .release();
                   });
  });
}

void peerbus_expert_weights_destroy(peerbus_expert_weights** weights) { destroy(weights); }

peerbus_code peerbus_expert_weights_tensor(peerbus_expert_weights* weights, uint64_t expert,
                                           uint64_t tensor, void** data) {
  return guarded([&] {
    auto& moved = shared(weights, "expert weights").moved;
    require(data != nullptr, "data is NULL");
    const std::size_t experts = moved.experts().count(weights->members->comm.rank());
    if (expert >= experts || tensor >= weights->tensors)
      throw peerbus::error{peerbus::errc::invalid_argument,
                           peerbus::concat("tensor ", tensor, " of local expert ", expert,
                                           " given, expected one of ", weights->tensors,
                                           " tensors of one of ", experts, " experts")};
    *data = moved.tensor(expert, tensor).data();
  });
}

peerbus_code peerbus_expert_weights_experts(peerbus_expert_weights* weights,
                                            uint32_t* physical_to_logical,
                                            uint64_t physical_experts) {
  return guarded([&] {
    const auto& experts = shared(weights, "expert weights").moved.experts();
    require(physical_to_logical != nullptr, "physical_to_logical is NULL");
    require_places(experts, physical_experts);
    for (std::size_t place = 0; place < physical_experts; ++place)
      physical_to_logical[place] = experts.logical(place);
  });
}

peerbus_code peerbus_expert_weights_begin(peerbus_expert_weights* weights, const uint32_t* wanted,
                                          uint64_t physical_experts, int64_t timeout_ns,
                                          uint64_t* rounds) {
  return guarded([&] {
    const std::size_t planned = moved_of(weights).begin(
        {wanted, wanted == nullptr ? 0 : physical_experts}, deadline_of(timeout_ns));
    if (rounds != nullptr) *rounds = planned;
  });
}

peerbus_code peerbus_expert_weights_advance(peerbus_expert_weights* weights, uint64_t bytes,
                                            int32_t* all_sent) {
  return guarded([&] {
    const bool is_sent = moved_of(weights).advance(bytes);
    if (all_sent != nullptr) *all_sent = is_sent ? 1 : 0;
  });
}

peerbus_code peerbus_expert_weights_commit(peerbus_expert_weights* weights,
                                           peerbus_exchange* const* exchanges, uint64_t count,
                                           const peerbus_replica_choice* replicas,
                                           int32_t* is_over) {
  return guarded([&] {
    auto& moved = moved_of(weights);
    exchanges_together all{{exchanges, exchanges == nullptr ? 0 : count}, replicas};
    const bool ended = moved.commit({}, all);
    if (is_over != nullptr) *is_over = ended ? 1 : 0;
  });
}

int32_t peerbus_expert_weights_is_moving(const peerbus_expert_weights* weights) {
  return weights != nullptr && weights->moved.is_moving() ? 1 : 0;
}

peerbus_code peerbus_expert_weights_abandon(peerbus_expert_weights* weights, int64_t timeout_ns) {
  return guarded([&] { moved_of(weights).abandon(deadline_of(timeout_ns)); });
}
