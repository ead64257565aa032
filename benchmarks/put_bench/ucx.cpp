// SPDX-License-Identifier: MIT
#include "put_bench/ucx.hpp"

#if PEERBUS_BENCH_UCX

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/align.hpp>

#include "put_bench/ucx_endpoint.hpp"
#include "support/clock.hpp"
#include "support/numbered_message.hpp"

namespace put_bench {
namespace {

/// How the receiver learns that a payload is there.
enum class arrival {
  by_flag,    ///< a second put, ordered behind the payload by a fence: what UCX promises
  by_payload  ///< the payload's own words change: no second put, but order within a put is luck
};

/// The memory of both ranks and the number of the last message that went through it, which are
/// those of all contenders.
struct shared_endpoint {
  shared_endpoint(peerbus::bootstrap& boot, const std::string& transports, std::size_t bytes)
      : here{boot, transports, bytes}, first{boot.rank().index() == 0} {}

  ucx::endpoint here;
  bool first;
  std::uint64_t number = 0;
};

class ucx_put final : public contender {
 public:
  ucx_put(std::string name, std::shared_ptr<shared_endpoint> shared, arrival how)
      : contender{std::move(name)}, shared_{std::move(shared)}, how_{how} {}

  [[nodiscard]] bool sends(std::size_t bytes) const noexcept override {
    return bytes % sizeof(std::uint64_t) == 0;
  }

  [[nodiscard]] std::vector<double> ping_pong(std::size_t bytes, std::size_t rounds) override {
    message_ = &messages_.try_emplace(bytes, bytes).first->second;
    place_ = (place_ + 1) % places;
    const auto start = bench::clock::now();
    for (std::size_t i = 0; i < rounds; ++i) {
      ++shared_->number;
      if (shared_->first) send();
      await();
      if (!shared_->first) send();
    }
    const double spent = bench::microseconds(bench::clock::now() - start);
    right_ = right_ && message_->is_all_of(arrived(), shared_->number);
    return {spent / static_cast<double>(2 * rounds)};
  }
  [[nodiscard]] double stream(const bench::stream_shape&) override { return 0; }
  [[nodiscard]] bool right() const override { return right_; }

  /// Returns the bytes of memory that payloads of at most `payload` bytes need.
  [[nodiscard]] static constexpr std::size_t memory_bytes(std::size_t payload) noexcept {
    return places * place_bytes(payload);
  }

 private:
  /// How far a line travels depends on its address: see memory_side.
  static constexpr std::size_t places = 16;
  /// Apart from the flag: neighbouring lines are prefetched together.
  static constexpr std::size_t payload_at = 4 * peerbus::cache_line_bytes;

  static constexpr std::size_t place_bytes(std::size_t payload) noexcept {
    return payload_at + peerbus::align_up(payload, 4 * peerbus::cache_line_bytes);
  }
  [[nodiscard]] std::size_t place() const noexcept {
    return place_ * place_bytes(message_->bytes());
  }
  [[nodiscard]] const std::byte* arrived() const noexcept {
    return shared_->here.local() + place() + payload_at;
  }

  void send() {
    ucx::endpoint& here = shared_->here;
    here.put(std::as_bytes(message_->numbered(shared_->number)), place() + payload_at);
    if (how_ == arrival::by_payload) return;
    here.fence();
    here.put(std::as_bytes(std::span{&shared_->number, 1}), place());
  }

  void await() {
    const std::size_t last = message_->bytes() - sizeof(std::uint64_t);
    const std::byte* const polled =
        how_ == arrival::by_flag ? shared_->here.local() + place() : arrived() + last;
    for (std::size_t polls = 1; word(polled) != shared_->number; ++polls)
      // Only setting up a connection needs it, over shared memory.
      if (polls % 1024 == 0) shared_->here.progress();
    if (how_ == arrival::by_payload) {
      while (word(arrived()) != shared_->number) {
      }
    }
    right_ = right_ && message_->is(arrived(), shared_->number);
  }

  static std::uint64_t word(const std::byte* at) noexcept {
    auto& word = *reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(at));
    // order: acquire; pairs with the fence of the sender's UCX.
    return std::atomic_ref{word}.load(std::memory_order_acquire);
  }

  std::shared_ptr<shared_endpoint> shared_;
  arrival how_;
  std::map<std::size_t, bench::numbered_message> messages_;
  bench::numbered_message* message_ = nullptr;
  bool right_ = true;
  std::size_t place_ = 0;
};

}  // namespace

void add_ucx(contenders& all, peerbus::bootstrap& boot, const std::string& transports,
             std::size_t bytes) {
  const auto shared =
      std::make_shared<shared_endpoint>(boot, transports, ucx_put::memory_bytes(bytes));
  all.push_back(
      std::make_unique<ucx_put>("UCX: put, fence, put of a flag", shared, arrival::by_flag));
  all.push_back(
      std::make_unique<ucx_put>("UCX: put, its own words polled", shared, arrival::by_payload));
}

std::string ucx_version() { return ::ucp_get_version_string(); }

}  // namespace put_bench

#endif
