// SPDX-License-Identifier: MIT
// ctest: search timeout=86400
//
// Any bytes, to everything of the bootstrap over TCP that reads bytes from elsewhere. Ten seconds
// in all, or as many as PEERBUS_SEARCH_SECONDS says; PEERBUS_FUZZ_SEED gives other bytes.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/news_stream.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/tcp_rendezvous.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "fuzz/tcp_targets.hpp"
#include "support/sanitized.hpp"
#include "support/search.hpp"
#include "tcp_support.hpp"

namespace tcp_fuzz_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::detail::encode_failure;
using peerbus::detail::encode_frame;
using peerbus::detail::frame_header;
using peerbus::detail::frame_kind;

namespace {

/// A part of the time that the whole file has.
deadline share(unsigned tenths) {
  return deadline::after(std::chrono::milliseconds{100} * tenths * search_seconds());
}

/// Bytes, other ones with each seed, the same ones with the same.
class source {
 public:
  explicit source(std::uint64_t which)
      : seed_{number_from_environment("PEERBUS_FUZZ_SEED", 20'261'121)},
        random_{seed_ * 16 + which} {}

  /// What to say to have the same again.
  void report(const char* what, std::uint64_t rounds) const {
    std::printf("tcp_fuzz: %s: %llu rounds, PEERBUS_FUZZ_SEED=%llu\n", what,
                static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed_));
  }

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  std::vector<std::byte> noise(std::size_t most) {
    std::vector<std::byte> bytes(below(most + 1));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }

  /// `valid` with some bits turned, bytes of the sort that break things put in, a piece doubled,
  /// cut out or appended. Seldom unchanged.
  std::vector<std::byte> mutate(std::span<const std::byte> valid) {
    std::vector<std::byte> bytes(valid.begin(), valid.end());
    for (auto changes = 1 + below(4); changes != 0 && !bytes.empty(); --changes) {
      const auto at = below(bytes.size());
      const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      const auto some = below(std::min<std::uint64_t>(bytes.size() - at, 40) + 1);
      switch (below(6)) {
        case 0: *here ^= static_cast<std::byte>(1U << below(8)); break;
        case 1: *here = static_cast<std::byte>(random_()); break;
        case 2: {
          constexpr std::array<std::byte, 4> extremes{std::byte{0}, std::byte{0xff},
                                                      std::byte{0x7f}, std::byte{0x80}};
          std::fill_n(here, some, extremes[below(4)]);
          break;
        }
        case 3: bytes.erase(here, here + static_cast<std::ptrdiff_t>(some)); break;
        case 4: {
          const std::vector<std::byte> piece(here, here + static_cast<std::ptrdiff_t>(some));
          bytes.insert(here, piece.begin(), piece.end());
          break;
        }
        default: {
          const auto more = noise(64);
          bytes.insert(bytes.end(), more.begin(), more.end());
        }
      }
    }
    return bytes;
  }

 private:
  std::uint64_t seed_;
  std::mt19937_64 random_;
};

/// The most memory that this process has ever had, in MiB.
std::size_t peak_mib() {
  std::ifstream status{"/proc/self/status"};
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10) / 1024;
  return 0;
}

/// The most memory that hostile bytes may cost. AddressSanitizer keeps freed memory for a while.
constexpr std::size_t most_mib = has_address_sanitizer ? 700 : 48;

/// A call at `port` from an address of its own, as each leaves its port in use for a minute.
/// Returns: an empty one if nobody takes it.
unique_fd strange_call(std::uint16_t port, source& from) {
  unique_fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr =
      htonl(0x7f00'0000U | static_cast<std::uint32_t>(2 + from.below(0xff'fffeU - 2)));
  (void)::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    socket.reset();
  return socket;
}

frame_header header_of(frame_kind kind) {
  frame_header header;
  header.kind = static_cast<std::uint32_t>(kind);
  header.sequence = 1;
  return header;
}

/// A frame of any kind, as it should be.
std::vector<std::byte> some_frame(source& from) {
  const std::string text = from.below(2) == 0 ? "purpose" : std::string(from.below(300), 't');
  switch (from.below(4)) {
    case 0: return encode_frame(header_of(frame_kind::give), text, from.noise(300));
    case 1: {
      std::vector<bootstrap::contribution> given(2);
      for (auto& one : given) one.bytes = from.noise(100);
      return encode_frame(header_of(frame_kind::result), {},
                          peerbus::detail::encode_gathered(given));
    }
    case 2: return encode_failure({errc::mismatch, text});
    default: return encode_frame(header_of(frame_kind::welcome), {}, {});
  }
}

/// Calls `target` with frames, mutated frames and noise for a part of the time.
template <class F>
void fuzz_for(const char* name, unsigned tenths, std::uint64_t which, F target) {
  source from{which};
  const std::size_t before = peak_mib();
  std::uint64_t rounds = 0;
  for (const auto until = share(tenths); !until.expired(); ++rounds) {
    auto bytes = from.below(8) == 0 ? from.noise(400) : from.mutate(some_frame(from));
    if (from.below(4) == 0) {
      const auto more = some_frame(from);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    CAPTURE(rounds);
    target(bytes, from);
  }
  from.report(name, rounds);
  CHECK(rounds != 0);
  CHECK(peak_mib() - before < most_mib);
}

}  // namespace

TEST_CASE("fuzz: strangers at rank 0's port, and the ranks meet all the same") {
  const time_limit limit{search_seconds() + 120};
  const belongings before;
  const auto port = free_tcp_port();
  const auto rank_main = [=](std::size_t rank) {
    return in_child([=] {
      const std::size_t at_first = peak_mib();
      const auto until = deadline::after(std::chrono::seconds{search_seconds() + 60});
      tcp_bootstrap boot{tcp_seat(rank, 2, port), until};
      (void)boot.allgather({bytes_of("here"), {}}, until, "together");
      require(peak_mib() - at_first < most_mib, "little memory for strangers");
      return 0;
    });
  };
  const pid_t rank_0 = rank_main(0);
  (void)call_at(port);
  source from{1};
  const std::array flights{first_flight(), first_flight(""), first_flight("a secret made up")};
  std::vector<unique_fd> kept;
  std::uint64_t calls = 0;
  for (const auto until = share(3); !until.expired(); ++calls) {
    unique_fd call = strange_call(port, from);
    if (!call) continue;  // Its queue of callers is full.
    // Most know how a rank speaks, some have recorded one, and none knows the secret.
    const auto& valid = flights[from.below(flights.size())];
    std::vector<std::byte> said;
    switch (from.below(6)) {
      case 0: said = from.noise(300); break;
      case 1: said = valid; break;
      case 2: said = some_frame(from); break;
      default: said = from.mutate(valid);
    }
    if (from.below(8) == 0) said.resize(said.size() + 100'000);
    for (std::size_t sent = 0; sent < said.size();) {
      const auto some = from.below(4) == 0 ? 1 + from.below(said.size()) : said.size();
      const auto part =
          std::span<const std::byte>{said}.subspan(sent, std::min(some, said.size() - sent));
      if (::send(call.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT) <= 0) break;
      sent += part.size();
    }
    switch (from.below(4)) {
      case 0: {
        const linger at_once{1, 0};  // A reset instead of an end.
        (void)::setsockopt(call.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        break;
      }
      case 1: ::shutdown(call.get(), SHUT_WR); [[fallthrough]];
      case 2:
        kept.push_back(std::move(call));
        if (kept.size() > 200) kept.erase(kept.begin(), kept.begin() + 100);
        break;
      default: break;
    }
  }
  from.report("callers at the port", calls);
  CHECK(calls > 0);
  CHECK(status_of(rank_main(1)) == 0);
  CHECK(status_of(rank_0) == 0);
  kept.clear();
  CHECK(belongings{} == before);
}

TEST_CASE("fuzz: a rank whose rank 0 is not one") {
  const time_limit limit{search_seconds() + 120};
  const belongings before;
  const auto port = free_tcp_port();
  const auto listening = squat(port);
  const std::size_t at_first = peak_mib();
  const auto until = share(2);
  const pid_t stranger = in_child([&] {
    source from{2};
    for (;;) {
      const unique_fd call{::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      if (from.below(3) == 0) {
        send_bytes(call, from.noise(300));
        continue;
      }
      // It knows the secret, or bytes behind the handshake would never be read.
      connection end = secured(unique_fd{::dup(call.get())}, tls_layer::end::accepting);
      auto how = handshake::more;
      for (const auto soon = deadline::after(50ms); how == handshake::more && !soon.expired();) {
        pollfd entry{call.get(), POLLIN, 0};
        (void)::poll(&entry, 1, 10);
        how = end.shake_hands();
      }
      if (how != handshake::done) continue;
      if (from.below(4) == 0) send_bytes(call, from.noise(300));
      send_bytes(end, from.mutate(some_frame(from)));
    }
    return 0;
  });
  std::uint64_t joins = 0;
  std::uint64_t met = 0;
  for (; !until.expired(); ++joins) {
    const auto settings = tcp_seat(1, 2, port);
    peerbus::detail::tcp_rendezvous_place place{settings, patience()};
    try {
      // A welcome by chance is possible, as this stranger knows the secret.
      (void)peerbus::detail::rendezvous_joiner{place, {1, 2, deadline::after(20ms)}}.join(0);
      ++met;
    } catch (const peerbus::error& caught) {
      CHECK(caught.code() != errc::ok);
    }
  }
  ::kill(stranger, SIGKILL);
  CHECK(status_of(stranger) == 137);
  source{2}.report("joins with a false rank 0", joins);
  CHECK(joins > 0);
  CHECK(met < joins);
  CHECK(peak_mib() - at_first < most_mib);
  CHECK(belongings{}.descriptors == before.descriptors + 1);
}

TEST_CASE("fuzz: frames") {
  const time_limit limit{search_seconds() + 120};
  fuzz_for("frames", 1, 3, [](const auto& bytes, source&) { fuzz::read_frames(bytes); });
}

TEST_CASE("fuzz: collectives") {
  const time_limit limit{search_seconds() + 120};
  fuzz_for("collectives", 1, 4, [](const auto& bytes, source&) { fuzz::gather(bytes); });
}

TEST_CASE("fuzz: news of ranks") {
  const time_limit limit{search_seconds() + 120};
  fuzz_for("news", 1, 5, [](const auto& bytes, source& from) {
    constexpr std::array<std::byte, 8> died{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{1},
                                            std::byte{0}, std::byte{0}, std::byte{0}, std::byte{3}};
    fuzz::hear_news(from.below(4) == 0 ? bytes : from.mutate(died));
  });
}

TEST_CASE("fuzz: messages of a mesh") {
  const time_limit limit{search_seconds() + 120};
  // A set of rank 1, then a last contribution of rank 2, and that this was the last.
  std::vector<std::byte> valid;
  for (const std::uint64_t kind : {1U, 3U, 4U}) {
    const std::uint64_t post[] = {kind, 1, 7, 2, 4, 0};
    const auto head = peerbus::detail::news::encode_head(
        0, peerbus::detail::news::is_message | static_cast<std::uint32_t>(sizeof post));
    valid.insert(valid.end(), head.begin(), head.end());
    const auto rest = std::as_bytes(std::span{post});
    valid.insert(valid.end(), rest.begin(), rest.end());
  }
  CHECK(fuzz::hear_messages(valid) == 1);
  fuzz_for("messages", 1, 8, [&](const auto& bytes, source& from) {
    static_cast<void>(fuzz::hear_messages(from.below(4) == 0 ? bytes : from.mutate(valid)));
  });
}

TEST_CASE("fuzz: hellos") {
  const time_limit limit{search_seconds() + 120};
  fuzz::callers port{false};
  fuzz_for("hellos", 1, 6, [&](const auto& bytes, source& from) {
    const auto valid = hello_of(1, 2).encode();
    port.hear(from.below(4) == 0 ? bytes : from.mutate(valid));
  });
}

TEST_CASE("fuzz: first flights") {
  const time_limit limit{search_seconds() + 120};
  fuzz::callers port{true};
  const auto valid = first_flight("what no fuzzer can know");
  fuzz_for("first flights", 1, 7, [&](const auto& bytes, source& from) {
    port.hear(from.below(4) == 0 ? bytes : from.mutate(valid));
  });
}

}  // namespace tcp_fuzz_test
