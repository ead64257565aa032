// SPDX-License-Identifier: MIT
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace put_bench::ucx {

inline void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw peerbus::error{peerbus::errc::system,
                         peerbus::concat(what, ": ", ::ucs_status_string(status))};
}

/// A pointer that the C function `Free` takes back.
template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T* what) const noexcept {
    Free(what);
  }
};

/// Memory that UCX allocates for being written to by peers.
class exposed_memory {
 public:
  exposed_memory(ucp_context_h context, std::size_t bytes) : context_{context} {
    ucp_mem_map_params_t wanted{};
    wanted.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    wanted.length = bytes;
    wanted.flags = UCP_MEM_MAP_ALLOCATE;
    check(::ucp_mem_map(context, &wanted, &handle_), "ucp_mem_map");
    ucp_mem_attr_t given{};
    given.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(::ucp_mem_query(handle_, &given), "ucp_mem_query");
    data_ = static_cast<std::byte*>(given.address);
    std::memset(data_, 0, bytes);
  }
  exposed_memory(const exposed_memory&) = delete;
  exposed_memory& operator=(const exposed_memory&) = delete;
  ~exposed_memory() { ::ucp_mem_unmap(context_, handle_); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  /// What a peer needs, besides the address, to write here.
  [[nodiscard]] std::vector<std::byte> key() const {
    void* packed = nullptr;
    std::size_t bytes = 0;
    check(::ucp_rkey_pack(context_, handle_, &packed, &bytes), "ucp_rkey_pack");
    const std::unique_ptr<void, freed_by<::ucp_rkey_buffer_release>> owned{packed};
    const auto* const first = static_cast<const std::byte*>(packed);
    return {first, first + bytes};
  }

 private:
  ucp_context_h context_;
  ucp_mem_h handle_{};
  std::byte* data_ = nullptr;
};

/// One of two ranks, with memory that the other writes to by one-sided verbs.
class endpoint {
 public:
  /// `transports`: in UCX's words, such as "posix". Collective.
  /// Throws: `peerbus::error` system with what UCX says.
  endpoint(peerbus::bootstrap& boot, const std::string& transports, std::size_t bytes)
      : context_{make_context(transports)},
        worker_{make_worker(context_.get())},
        memory_{context_.get(), bytes} {
    const auto theirs = swap(boot, to_bytes(memory_.data()), "the address of the memory");
    std::memcpy(&peer_memory_, theirs.data(), sizeof peer_memory_);
    endpoint_.reset(make_endpoint(worker_.get(), swap(boot, worker_address(), "the worker")));
    const auto key = swap(boot, memory_.key(), "the key of the memory");
    ucp_rkey_h unpacked = nullptr;
    check(::ucp_ep_rkey_unpack(endpoint_.get(), key.data(), &unpacked), "ucp_ep_rkey_unpack");
    key_.reset(unpacked);
  }

  [[nodiscard]] const std::byte* local() const noexcept { return memory_.data(); }

  /// Writes `from` to the peer's memory. Afterwards `from` may change.
  void put(std::span<const std::byte> from, std::size_t offset) {
    ucp_request_param_t plain{};
    void* const request = ::ucp_put_nbx(endpoint_.get(), from.data(), from.size(),
                                        peer_memory_ + offset, key_.get(), &plain);
    if (request == nullptr) return;  // Done at once, as over shared memory.
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_put_nbx");
    while (::ucp_request_check_status(request) == UCS_INPROGRESS) progress();
    const ucs_status_t status = ::ucp_request_check_status(request);
    ::ucp_request_free(request);
    check(status, "ucp_put_nbx");
  }

  /// Later puts become visible after earlier ones.
  void fence() { check(::ucp_worker_fence(worker_.get()), "ucp_worker_fence"); }

  void progress() noexcept { ::ucp_worker_progress(worker_.get()); }

 private:
  static ucp_context_h make_context(const std::string& transports) {
    ucp_config_t* config = nullptr;
    check(::ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    const std::unique_ptr<ucp_config_t, freed_by<::ucp_config_release>> owned{config};
    check(::ucp_config_modify(config, "TLS", transports.c_str()), "choosing the transports");
    ucp_params_t wanted{};
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES;
    wanted.features = UCP_FEATURE_RMA;
    ucp_context_h context = nullptr;
    check(::ucp_init(&wanted, config, &context), "ucp_init");
    return context;
  }
  static ucp_worker_h make_worker(ucp_context_h context) {
    ucp_worker_params_t wanted{};
    wanted.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    wanted.thread_mode = UCS_THREAD_MODE_SINGLE;
    ucp_worker_h worker = nullptr;
    check(::ucp_worker_create(context, &wanted, &worker), "ucp_worker_create");
    return worker;
  }
  static ucp_ep_h make_endpoint(ucp_worker_h worker, const std::vector<std::byte>& address) {
    ucp_ep_params_t wanted{};
    wanted.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    wanted.address = reinterpret_cast<const ucp_address_t*>(address.data());
    ucp_ep_h made = nullptr;
    check(::ucp_ep_create(worker, &wanted, &made), "ucp_ep_create");
    return made;
  }
  [[nodiscard]] std::vector<std::byte> worker_address() const {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(::ucp_worker_get_address(worker_.get(), &address, &bytes), "ucp_worker_get_address");
    const auto* const first = reinterpret_cast<const std::byte*>(address);
    std::vector<std::byte> result{first, first + bytes};
    ::ucp_worker_release_address(worker_.get(), address);
    return result;
  }
  static std::vector<std::byte> to_bytes(const std::byte* address) {
    const auto number = reinterpret_cast<std::uint64_t>(address);
    std::vector<std::byte> result(sizeof number);
    std::memcpy(result.data(), &number, sizeof number);
    return result;
  }
  /// Returns: what the other rank gives.
  static std::vector<std::byte> swap(peerbus::bootstrap& boot, std::vector<std::byte> mine,
                                     const char* what) {
    auto all = boot.allgather({std::move(mine), {}},
                              peerbus::deadline::after(std::chrono::seconds{30}), what);
    return std::move(all[1 - boot.rank().index()].bytes);
  }

  // Each needs those before it until its end.
  std::unique_ptr<ucp_context, freed_by<::ucp_cleanup>> context_;
  std::unique_ptr<ucp_worker, freed_by<::ucp_worker_destroy>> worker_;
  exposed_memory memory_;
  std::unique_ptr<ucp_ep, freed_by<::ucp_ep_destroy>> endpoint_;
  std::unique_ptr<ucp_rkey, freed_by<::ucp_rkey_destroy>> key_;
  std::uint64_t peer_memory_ = 0;
};

}  // namespace put_bench::ucx
