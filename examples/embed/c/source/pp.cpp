// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <peerbus/compat/deep_ep/pp_buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>

#include "instances.hpp"
#include "objects.hpp"

namespace deep_ep = peerbus::deep_ep;

struct peerbus_pp final : peerbus::c_library::object {
  peerbus_pp(std::shared_ptr<peerbus::c_library::group> of, const deep_ep::pp_config& sizes,
             peerbus::deadline until)
      : object{std::move(of)}, calls{members->comm, sizes, until} {}
  deep_ep::pp_buffer calls;
};

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_pp_create(peerbus_comm* comm, uint64_t num_max_tensor_bytes,
                               uint64_t num_max_inflight_tensors, int64_t timeout_ns,
                               peerbus_pp** pp) {
  return guarded([&] {
    require_result(pp, "pp");
    const auto& members = usable(comm, "communicator").members;
    const deep_ep::pp_config sizes{.num_max_tensor_bytes = num_max_tensor_bytes,
                                   .num_max_inflight_tensors = num_max_inflight_tensors};
    *pp = std::make_unique<peerbus_pp>(members, sizes, deadline_of(members->comm, timeout_ns))
              .release();
  });
}

void peerbus_pp_destroy(peerbus_pp** pp) { destroy(pp); }

peerbus_code peerbus_pp_send(peerbus_pp* pp, const void* tensor, uint64_t bytes, uint64_t peer,
                             int64_t timeout_ns) {
  return guarded([&] {
    usable(pp, "pp").calls.send(deep_ep::const_tensor{tensor, deep_ep::dtype::int8, {bytes}}, peer,
                                deadline_of(timeout_ns));
  });
}

peerbus_code peerbus_pp_recv(peerbus_pp* pp, void* tensor, uint64_t bytes, uint64_t peer,
                             int64_t timeout_ns) {
  return guarded([&] {
    usable(pp, "pp").calls.recv(deep_ep::tensor{tensor, deep_ep::dtype::int8, {bytes}}, peer,
                                deadline_of(timeout_ns));
  });
}

void* peerbus_pp_storage(const peerbus_pp* pp, uint64_t* bytes) {
  if (pp == nullptr || bytes == nullptr) return nullptr;
  const auto places = pp->calls.storage();
  *bytes = places.size();
  return places.data();
}
