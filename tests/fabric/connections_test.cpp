// SPDX-License-Identifier: MIT
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/fabric/connections.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/fabric/resources.hpp>

#include "support/process.hpp"

// Who may connect to a rank, and what each end learns. Both ends are in this process.

namespace connections_test {

namespace {
using peerbus::deadline;
using peerbus::rank_id;
using peerbus::detail::ofi::connections;
using peerbus::detail::ofi::link;
using peerbus::detail::ofi::provider_search;
using peerbus::detail::ofi::resources;

constexpr std::size_t ranks = 2;
constexpr rank_id callee{0};
constexpr rank_id caller{1};

/// One end, which says that it is rank `self`.
struct end {
  explicit end(rank_id self, std::size_t of = ranks)
      : links{std::make_unique<link[]>(of)}, connected{own, self, {links.get(), of}} {
    for (const rank_id peer : peerbus::all_ranks{of}) links[peer.index()].open(own, self, peer);
  }
  void take() {
    if (!connected.take()) return;
    connected.take_ended([this](const link& ended, int reason) {
      last = ended.peer();
      why = reason;
    });
  }

  const peerbus::fabric_options options;
  resources own{provider_search{options, true}.find(), options, ranks, nullptr};
  std::unique_ptr<link[]> links;
  connections connected;
  std::optional<rank_id> last{};  ///< the peer whose connection ended last
  int why = 0;
};

/// Returns a socket that is connected to where `to` listens, as any program may have one.
peerbus::unique_fd socket_to(const end& to) {
  const auto address = to.connected.address();
  sockaddr_in place{};
  std::memcpy(&place, address.data() + sizeof(std::uint64_t), sizeof place);
  peerbus::unique_fd made{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  REQUIRE(::connect(made.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0);
  return made;
}

/// Takes what happens at both ends until `done()`. Returns whether that came about.
template <class Done>
bool take_until(end& one, end& other, Done&& done) {
  const auto until = deadline::after(std::chrono::seconds{30});
  while (!done() && !until.expired()) {
    one.take();
    other.take();
  }
  return done();
}

/// Calls the callee, and returns whether that is answered at both ends.
bool connects(end& from, end& to) {
  from.connected.call(callee, to.connected.address());
  return take_until(from, to,
                    [&] { return from.connected.is_open(callee) && to.connected.is_open(caller); });
}
}  // namespace

TEST_CASE("a caller that does not know the key is refused, one that does is accepted") {
  end to{callee};
  end stranger{caller};
  auto address = to.connected.address();
  address.front() ^= std::byte{1};
  stranger.connected.call(callee, address);
  CHECK(take_until(stranger, to, [&] { return stranger.last.has_value(); }));
  CHECK(stranger.last == callee);
  CHECK(stranger.why == FI_ECONNREFUSED);
  CHECK_FALSE(to.connected.is_open(caller));
  CHECK_FALSE(to.last.has_value());
  end from{caller};
  CHECK(connects(from, to));
}

TEST_CASE("callers that say that they are a rank which is connected, the callee or none") {
  end to{callee};
  end first{caller};
  CHECK(connects(first, to));
  for (const std::size_t said : {1U, 0U, 2U}) {
    CAPTURE(said);
    end stranger{rank_id{said}, 4};
    stranger.connected.call(rank_id{3}, to.connected.address());
    CHECK(take_until(stranger, to, [&] { return stranger.last.has_value(); }));
    CHECK(stranger.why == FI_ECONNREFUSED);
    CHECK_FALSE(to.last.has_value());
    CHECK(first.connected.is_open(callee));
  }
}

TEST_CASE("what comes over a socket and is no call changes nothing") {
  end to{callee};
  const auto noise = socket_to(to);
  constexpr std::array<char, 100> nonsense{'n', 'o'};
  REQUIRE(::send(noise.get(), nonsense.data(), nonsense.size(), 0) == std::ssize(nonsense));
  end from{caller};
  CHECK(connects(from, to));
  CHECK_FALSE(to.last.has_value());
}

TEST_CASE("callers who close their sockets at once cost no descriptor") {
  end to{callee};
  const std::size_t files = test::open_files();
  for (int i = 0; i < 10; ++i) static_cast<void>(socket_to(to));
  const auto until = deadline::after(std::chrono::seconds{30});
  bool have_come = false;
  while ((!have_come || test::open_files() != files) && !until.expired()) {
    errno = EAGAIN;  // As after a call that found nothing.
    to.take();
    have_come = have_come || test::open_files() > files;
  }
  CHECK(have_come);
  CHECK(test::open_files() == files);
}

TEST_CASE("an address where nobody listens any more") {
  std::vector<std::byte> address;
  {
    const end gone{callee};
    address = gone.connected.address();
  }
  end from{caller};
  from.connected.call(callee, address);
  CHECK(take_until(from, from, [&] { return from.last.has_value(); }));
  CHECK(from.why == FI_ECONNREFUSED);
  CHECK_FALSE(from.connected.is_open(callee));
}

TEST_CASE("an end that closes is known at the other, and gives all back") {
  static_cast<void>(end{callee});  // Opens what the provider keeps for good.
  const std::size_t files = test::open_files();
  {
    end to{callee};
    {
      end from{caller};
      CHECK(connects(from, to));
    }
    CHECK(take_until(to, to, [&] {
      // The provider sees the end of a connection while it looks for what arrives.
      static_cast<void>(fi_cq_read(&to.own.queue(), nullptr, 0));
      return to.last.has_value();
    }));
    CHECK(to.last == caller);
    CHECK(to.why == FI_ECONNRESET);
  }
  CHECK(test::open_files() == files);
}

}  // namespace connections_test
