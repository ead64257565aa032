// SPDX-License-Identifier: MIT
// ctest: timeout=400
//
// Any call of one rank into libibverbs fails, once, while ranks connect over verbs and put to each
// other. Each rank must end, in time, with right data or with an error, keep nothing open, and be
// able to connect again on the same bootstrap. At first the first call of each function fails, then
// calls by chance for as many seconds as PEERBUS_SEARCH_SECONDS says; PEERBUS_FAIL_SEED gives
// others.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/verbs.hpp>

#include "support/process.hpp"
#include "support/put_to_all.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"
#include "support/tally.hpp"

// Macros that choose among functions, which stand here for themselves.
#undef ibv_reg_mr

namespace failing_calls_test {

namespace {

enum class call : std::uint8_t {
  get_device_list,
  open_device,
  query_device,
  query_gid_table,
  alloc_pd,
  create_comp_channel,
  reg_mr,
  create_cq,
  create_qp,
  modify_qp,
  get_cq_event,
  poll_cq,
  req_notify_cq,
  post_send,
  post_recv
};
constexpr std::array names{
    "get_device_list",     "open_device", "query_device",  "query_gid_table", "alloc_pd",
    "create_comp_channel", "reg_mr",      "create_cq",     "create_qp",       "modify_qp",
    "get_cq_event",        "poll_cq",     "req_notify_cq", "post_send",       "post_recv"};

/// The call of this process that fails next.
struct plan {
  bool is_armed = false;
  call which{};
  int reason = 0;
  std::uint64_t before = 0;  ///< such calls that succeed before it
};
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): calls take no argument.
plan next;
ibv_context_ops provider;  ///< what the device's provider does
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// Returns whether this call fails, for the reason in errno.
bool fails(call which) noexcept {
  if (!next.is_armed || next.which != which || next.before-- != 0) return false;
  next.is_armed = false;
  errno = next.reason;
  return true;
}

template <class Result, class... Arguments>
Result real(const char* name, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(::dlsym(RTLD_NEXT, name))(arguments...);
}

int poll(ibv_cq* queue, int most, ibv_wc* found) {
  return fails(call::poll_cq) ? -1 : provider.poll_cq(queue, most, found);
}
int notify(ibv_cq* queue, int only_solicited) {
  return fails(call::req_notify_cq) ? errno : provider.req_notify_cq(queue, only_solicited);
}
int send(ibv_qp* by, ibv_send_wr* requests, ibv_send_wr** bad) {
  if (!fails(call::post_send)) return provider.post_send(by, requests, bad);
  *bad = requests;
  return errno;
}
int receive(ibv_qp* by, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  if (!fails(call::post_recv)) return provider.post_recv(by, requests, bad);
  *bad = requests;
  return errno;
}

}  // namespace

// These take the place of libibverbs's functions in this program. Their names here differ, so that
// they agree with any declaration.
extern "C" {
ibv_device** failing_get_device_list(int* count) __asm__("ibv_get_device_list");
ibv_device** failing_get_device_list(int* count) {
  if (fails(call::get_device_list)) return nullptr;
  return real<ibv_device**>("ibv_get_device_list", count);
}
ibv_context* failing_open_device(ibv_device* device) __asm__("ibv_open_device");
ibv_context* failing_open_device(ibv_device* device) {
  if (fails(call::open_device)) return nullptr;
  auto* const opened = real<ibv_context*>("ibv_open_device", device);
  if (opened == nullptr) return nullptr;
  // The other calls are inline functions, which call these.
  provider = opened->ops;
  opened->ops.poll_cq = poll;
  opened->ops.req_notify_cq = notify;
  opened->ops.post_send = send;
  opened->ops.post_recv = receive;
  return opened;
}
int failing_query_device(ibv_context* device, ibv_device_attr* found) __asm__("ibv_query_device");
int failing_query_device(ibv_context* device, ibv_device_attr* found) {
  if (fails(call::query_device)) return errno;
  return real<int>("ibv_query_device", device, found);
}
ssize_t failing_query_gid_table(ibv_context* device, ibv_gid_entry* found, std::size_t most,
                                std::uint32_t flags,
                                std::size_t bytes) __asm__("_ibv_query_gid_table");
ssize_t failing_query_gid_table(ibv_context* device, ibv_gid_entry* found, std::size_t most,
                                std::uint32_t flags, std::size_t bytes) {
  if (fails(call::query_gid_table)) return -errno;
  return real<ssize_t>("_ibv_query_gid_table", device, found, most, flags, bytes);
}
ibv_pd* failing_alloc_pd(ibv_context* device) __asm__("ibv_alloc_pd");
ibv_pd* failing_alloc_pd(ibv_context* device) {
  if (fails(call::alloc_pd)) return nullptr;
  return real<ibv_pd*>("ibv_alloc_pd", device);
}
ibv_comp_channel* failing_create_comp_channel(ibv_context* device) __asm__(
    "ibv_create_comp_channel");
ibv_comp_channel* failing_create_comp_channel(ibv_context* device) {
  if (fails(call::create_comp_channel)) return nullptr;
  return real<ibv_comp_channel*>("ibv_create_comp_channel", device);
}
ibv_mr* failing_reg_mr(ibv_pd* domain, void* first, std::size_t bytes,
                       int access) __asm__("ibv_reg_mr");
ibv_mr* failing_reg_mr(ibv_pd* domain, void* first, std::size_t bytes, int access) {
  if (fails(call::reg_mr)) return nullptr;
  return real<ibv_mr*>("ibv_reg_mr", domain, first, bytes, access);
}
ibv_mr* failing_reg_mr_iova2(ibv_pd* domain, void* first, std::size_t bytes, std::uint64_t address,
                             unsigned access) __asm__("ibv_reg_mr_iova2");
ibv_mr* failing_reg_mr_iova2(ibv_pd* domain, void* first, std::size_t bytes, std::uint64_t address,
                             unsigned access) {
  if (fails(call::reg_mr)) return nullptr;
  return real<ibv_mr*>("ibv_reg_mr_iova2", domain, first, bytes, address, access);
}
ibv_cq* failing_create_cq(ibv_context* device, int entries, void* of, ibv_comp_channel* channel,
                          int vector) __asm__("ibv_create_cq");
ibv_cq* failing_create_cq(ibv_context* device, int entries, void* of, ibv_comp_channel* channel,
                          int vector) {
  if (fails(call::create_cq)) return nullptr;
  return real<ibv_cq*>("ibv_create_cq", device, entries, of, channel, vector);
}
ibv_qp* failing_create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted) __asm__("ibv_create_qp");
ibv_qp* failing_create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  if (fails(call::create_qp)) return nullptr;
  return real<ibv_qp*>("ibv_create_qp", domain, wanted);
}
int failing_modify_qp(ibv_qp* pair, ibv_qp_attr* wanted, int which) __asm__("ibv_modify_qp");
int failing_modify_qp(ibv_qp* pair, ibv_qp_attr* wanted, int which) {
  if (fails(call::modify_qp)) return errno;
  return real<int>("ibv_modify_qp", pair, wanted, which);
}
int failing_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue,
                         void** of) __asm__("ibv_get_cq_event");
int failing_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void** of) {
  if (fails(call::get_cq_event)) return -1;
  return real<int>("ibv_get_cq_event", channel, queue, of);
}
}

namespace {

using peerbus::deadline;
using peerbus::rank_id;
using peerbus::traffic_class;
using peerbus::verbs;
using std::chrono::seconds;

constexpr std::size_t ranks = 3;

using communicator = peerbus::communicator<verbs>;

void put_by_both_classes(communicator& comm) {
  test::put_to_all(comm, 100, traffic_class::latency);
  test::put_to_all(comm, 9000, traffic_class::bulk);
}

/// The plan's call fails in `victim`.
void check_failing(const plan& given, rank_id victim, const test::tally& errors) {
  const int worst_status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
    ::alarm(120);  // Ends a rank that hangs.
    const std::size_t files = test::open_files();
    if (boot.rank() == victim) next = given;
    try {
      communicator comm{verbs{boot, {.stall_timeout = seconds{3}, .setup_timeout = seconds{10}}},
                        {.timeout = seconds{3}}};
      put_by_both_classes(comm);
    } catch (const peerbus::error&) {
      errors.add();
    }
    next.is_armed = false;
    test::expect(test::open_files() <= files, "no more descriptors than before");
    communicator again{verbs{boot}, {.timeout = seconds{30}}};
    put_by_both_classes(again);
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("any call of one rank into libibverbs fails") {
  const std::uint64_t seed = test::number_from_environment("PEERBUS_FAIL_SEED", 32);
  std::mt19937_64 random{seed};
  std::uint64_t rounds = 0;
  const test::tally errors;
  const auto until = deadline::after(seconds{test::search_seconds()});
  for (; rounds < names.size() || !until.expired(); ++rounds) {
    const bool is_first = rounds < names.size();
    const plan given{.is_armed = true,
                     .which = static_cast<call>(is_first ? rounds : random() % names.size()),
                     .reason = random() % 2 == 0 ? ENOMEM : EINVAL,
                     .before = is_first ? 0 : random() % (std::uint64_t{1} << random() % 8)};
    const rank_id victim{random() % ranks};
    CAPTURE(rounds);
    const std::string name = names[static_cast<std::size_t>(given.which)];
    CAPTURE(name);
    CAPTURE(given.reason);
    CAPTURE(given.before);
    CAPTURE(victim.index());
    check_failing(given, victim, errors);
  }
  std::printf("failing_calls: %llu rounds, %zu errors, PEERBUS_FAIL_SEED=%llu\n",
              static_cast<unsigned long long>(rounds), errors.count(),
              static_cast<unsigned long long>(seed));
}

}  // namespace failing_calls_test
