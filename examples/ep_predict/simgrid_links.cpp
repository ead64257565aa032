// SPDX-License-Identifier: MIT
#include "simgrid_links.hpp"

#ifdef EP_PREDICT_SIMGRID

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <exception>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>

namespace ep_predict {

namespace {

namespace s4u = simgrid::s4u;

/// A second of SimGrid's is a microsecond here, so that its precision of 1e-9 s is a femtosecond.
using microseconds = std::chrono::duration<double, std::micro>;

/// Returns bytes per microsecond.
double rate_of(const peerbus::simulated_level& level) { return level.gb_per_s * 1000; }

class simgrid_links final : public peerbus::simulated_links {
 public:
  simgrid_links(const peerbus::simulated_platform& platform, std::size_t ranks, std::size_t streams)
      : platform_{platform}, ranks_{ranks}, streams_{streams} {
    s4u::NetZone* const zone = s4u::create_star_zone("ranks");
    for (std::size_t port = 0; port < platform.ports.size(); ++port) add_cards(*zone, port);
    for (std::size_t level = 0; level < platform.levels.size(); ++level) add_hosts(*zone, level);
    zone->seal();
  }

  void begin(std::size_t ranks) override {
    if (ranks > ranks_)
      throw peerbus::error{peerbus::errc::invalid_argument,
                           std::to_string(ranks) + " ranks, expected at most " +
                               std::to_string(ranks_) + " on this platform of SimGrid"};
    if (under_way_ != 0)
      throw peerbus::error{peerbus::errc::invalid_argument,
                           "SimGrid still carries messages of a simulation that was given up"};
  }

  void start(const message& started, time now) noexcept override {
    // While nothing is under way, SimGrid's time stands still.
    if (under_way_++ == 0) {
      begin_ = now;
      begin_in_simgrid_ = s4u::Engine::get_clock();
    }
    const std::size_t number = platform_.shared_level(started.from, started.to);
    const peerbus::simulated_level& level = platform_.levels[number];
    card& sending = card_of(level, started.from);
    const double bytes = static_cast<double>(started.bytes) +
                         static_cast<double>(started.requests) * level.message_ns * level.gb_per_s;
    sending.waiting.push_back({started.number, hosts_[number][started.from],
                               hosts_[number][started.to],
                               static_cast<std::uint64_t>(std::llround(std::max(bytes, 1.0))),
                               rate_of(level) < sending.rate ? rate_of(level) : -1});
    ++sending.under_way;
    if (sending.streams < sending.under_way && (streams_ == 0 || sending.streams < streams_)) {
      ++sending.streams;
      s4u::Actor::create("stream", hosts_[number][started.from], [this, &sending] {
        for (;;) carry_next(sending);
      })->daemonize();
    }
    sending.has_work->release();
  }

  [[nodiscard]] time advance(time until, std::vector<std::uint32_t>& arrived) noexcept override {
    while (arrived_.empty() && now() < until)
      if (has_arrivals_->acquire_timeout(microseconds{until - now()}.count())) break;
    if (arrived_.empty()) return until;
    std::swap(arrived, arrived_);
    under_way_ -= arrived.size();
    return std::min(now(), until);
  }

 private:
  struct flow {
    std::uint32_t number;
    s4u::Host* from;
    s4u::Host* to;
    std::uint64_t bytes;
    double rate;  ///< the most that it takes of a card; -1: all
  };
  struct card {
    s4u::Link* out;
    s4u::Link* in;
    double rate;
    s4u::SemaphorePtr has_work = s4u::Semaphore::create(0);
    std::deque<flow> waiting{};
    std::size_t under_way = 0;  ///< messages that it sends and those that wait
    std::size_t streams = 0;    ///< the actors that send them
  };

  [[nodiscard]] time now() const {
    return begin_ +
           std::chrono::round<time>(microseconds{s4u::Engine::get_clock() - begin_in_simgrid_});
  }
  [[nodiscard]] card& card_of(const peerbus::simulated_level& level, std::size_t rank) {
    return cards_[level.port][rank / platform_.ports[level.port].ranks];
  }

  /// Adds the cards of a port, as fast as the fastest of its levels.
  void add_cards(s4u::NetZone& zone, std::size_t port) {
    double rate = 1;
    for (const peerbus::simulated_level& level : platform_.levels)
      if (level.port == port) rate = std::max(rate, rate_of(level));
    const std::size_t each = platform_.ports[port].ranks;
    auto& cards = cards_.emplace_back();
    for (std::size_t i = 0; i < (ranks_ + each - 1) / each; ++i) {
      const std::string name = std::to_string(port) + "." + std::to_string(i);
      cards.push_back(
          {zone.create_link(name + ".out", rate), zone.create_link(name + ".in", rate), rate});
    }
  }
  /// Adds a host for each rank, from which it reaches the others of `level` through its card.
  void add_hosts(s4u::NetZone& zone, std::size_t level) {
    auto& hosts = hosts_.emplace_back();
    hosts.reserve(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const card& own = card_of(platform_.levels[level], rank);
      s4u::Host* const host =
          zone.create_host(std::to_string(rank) + "." + std::to_string(level), 1.0);
      zone.add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {s4u::LinkInRoute{own.out}},
                     false);
      zone.add_route(nullptr, host->get_netpoint(), nullptr, nullptr, {s4u::LinkInRoute{own.in}},
                     false);
      hosts.push_back(host);
    }
  }
  /// Waits for a message of a card and carries it.
  void carry_next(card& own) {
    own.has_work->acquire();
    const flow sent = own.waiting.front();
    own.waiting.pop_front();
    s4u::Comm::sendto_init()
        ->set_rate(sent.rate)
        ->set_payload_size(sent.bytes)
        ->set_source(sent.from)
        ->set_destination(sent.to)
        ->wait();
    --own.under_way;
    arrived_.push_back(sent.number);
    if (arrived_.size() == 1) has_arrivals_->release();
  }

  const peerbus::simulated_platform& platform_;
  std::size_t ranks_;
  std::size_t streams_;
  std::vector<std::deque<card>> cards_;         ///< [ports][cards]
  std::vector<std::vector<s4u::Host*>> hosts_;  ///< [levels][ranks]
  s4u::SemaphorePtr has_arrivals_ = s4u::Semaphore::create(0);
  std::vector<std::uint32_t> arrived_;  ///< since the last `advance`
  std::size_t under_way_ = 0;
  time begin_{0};  ///< when the first of the messages under way started
  double begin_in_simgrid_ = 0;
};

}  // namespace

bool has_simgrid() noexcept { return true; }

void with_simgrid(const peerbus::simulated_platform& platform, std::size_t ranks,
                  std::size_t streams, const std::function<void(peerbus::simulated_links&)>& work) {
  std::array<std::string, 2> arguments{"ep_predict", "--log=root.thres:warning"};
  std::array<char*, 3> pointers{arguments[0].data(), arguments[1].data(), nullptr};
  int count = 2;
  s4u::Engine engine{&count, pointers.data()};
  // Flows take the whole of a link, and nothing of the way back.
  for (const char* const setting :
       {"network/model:CM02", "network/optim:Lazy", "network/crosstraffic:0", "network/TCP-gamma:0",
        "network/weight-S:0", "network/latency-factor:1", "network/bandwidth-factor:1",
        "contexts/stack-size:1024"})
    s4u::Engine::set_config(setting);
  simgrid_links links{platform, ranks, streams};
  std::exception_ptr thrown;
  s4u::Actor::create("simulation", engine.get_all_hosts().front(), [&] {
    try {
      work(links);
    } catch (const std::exception&) {
      thrown = std::current_exception();
    }
  });
  engine.run();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace ep_predict

#else

#include <stdexcept>

namespace ep_predict {

bool has_simgrid() noexcept { return false; }

void with_simgrid(const peerbus::simulated_platform& /*platform*/, std::size_t /*ranks*/,
                  std::size_t /*streams*/,
                  const std::function<void(peerbus::simulated_links&)>& /*work*/) {
  throw std::runtime_error{"built without SimGrid"};
}

}  // namespace ep_predict

#endif
