// SPDX-License-Identifier: MIT
#pragma once

// What ranks read from sockets while they meet and in collectives of the bootstrap. Also used by
// tests/bootstrap/tcp_fuzz_test.cpp, which makes the bytes up.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/callers.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/gathered.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/detail/tcp_failure_detector.hpp>
#include <peerbus/bootstrap/detail/tcp_tls.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/agreement_board.hpp>
#include <peerbus/communicator/posted_boards.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "fuzz/bytes.hpp"

namespace fuzz {

/// A connection whose other end sends `said` and then nothing more.
inline peerbus::detail::connection connection_saying(bytes said) {
  int pair[2] = {-1, -1};
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
  peerbus::unique_fd one{pair[0]};
  const peerbus::unique_fd other{pair[1]};
  (void)!::send(other.get(), said.data(), said.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(other.get(), SHUT_WR);
  return one;
}

/// A frame of the widest limits, and a result in it.
inline void read_frames(bytes said) {
  using peerbus::detail::frame_reader;
  auto link = connection_saying(said);
  frame_reader reader{peerbus::bootstrap::max_contribution_bytes, 0};
  for (;;) {
    const auto now = reader.step(link);
    if (now != frame_reader::status::done) {
      expect(now != frame_reader::status::more, "an end");
      // Memory comes with bytes, in steps that double, and not with what a header announces.
      const auto held = reader.take();
      expect(held.body.size() <= std::max<std::size_t>(1 << 16, 2 * said.size()), "little memory");
      return;
    }
    auto frame = reader.take();
    expect(frame.fds.empty() && frame.body.size() <= said.size(), "what was sent");
    (void)peerbus::detail::told_failure(frame);
    for (const std::size_t ranks : {0U, 1U, 2U, 65536U}) {
      peerbus::detail::frame copy;
      copy.body = frame.body;
      std::vector<peerbus::bootstrap::contribution> given;
      if (peerbus::detail::decode_gathered(std::move(copy), ranks, given)) {
        std::size_t total = 0;
        for (const auto& one : given) total += one.bytes.size();
        expect(total <= said.size(), "no more than was sent");
      }
    }
  }
}

/// Frames with descriptors, from a process of this host. The first byte limits the descriptors of a
/// frame. Each further piece has a byte for its length and one for its descriptors.
inline void read_frames_with_descriptors(bytes said) {
  using peerbus::detail::frame_reader;
  input from{said};
  const auto most = static_cast<std::uint32_t>(1 + from.below(8));
  int pair[2] = {-1, -1};
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
  peerbus::detail::connection link{peerbus::unique_fd{pair[0]}};
  peerbus::detail::connection other{peerbus::unique_fd{pair[1]}};
  const std::vector<int> passed(8, STDERR_FILENO);
  frame_reader reader{1 << 16, most};
  for (bool is_over = false; !is_over;) {
    const std::size_t length = from.below(64);
    const std::size_t count = from.below(passed.size() + 1);
    const bytes piece = from.take_bytes(length);
    const bool is_last = from.is_empty();
    (void)other.send(piece);
    // A writer without bytes sends one byte with the descriptors.
    peerbus::detail::frame_writer writer{{}, std::span{passed}.first(count)};
    (void)writer.step(other);
    if (is_last) other.hang_up();
    for (auto status = frame_reader::status::done; status == frame_reader::status::done;) {
      status = reader.step(link);
      is_over = status != frame_reader::status::done && status != frame_reader::status::more;
      if (status == frame_reader::status::done) {
        const auto frame = reader.take();
        expect(frame.fds.size() <= most, "no more descriptors than the limit");
        for (const auto& fd : frame.fds) expect(::fcntl(fd.get(), F_GETFD) >= 0, "a descriptor");
      }
    }
    expect(is_over || !is_last, "an end");
  }
}

inline peerbus::membership two_ranks(std::size_t me, peerbus::detail::connection link) {
  std::vector<peerbus::detail::connection> links(2);
  links[1 - me] = std::move(link);
  auto news = std::make_shared<peerbus::detail::tcp_failure_detector>(peerbus::rank_id{me},
                                                                      std::move(links));
  auto* states = news->states();
  return {peerbus::rank_id{me}, 2, states, std::move(news)};
}

/// An allgather of rank 0 with a rank 1, and the reverse, that says this.
inline void gather(bytes said) {
  using peerbus::detail::carries;
  // The error may be that which the other rank says it has met, a time limit among others.
  const auto soon = peerbus::deadline::after(std::chrono::seconds{20});
  const auto quietly = [&](auto&& read) {
    accept_or_refuse(read);
    expect(!soon.expired(), "an end long before the deadline");
  };
  peerbus::idle_work nothing_to_do;
  const auto members_0 = two_ranks(0, {});
  std::vector<peerbus::detail::connection> leaves(2);
  leaves[1] = connection_saying(said);
  peerbus::detail::star_root center{std::move(leaves), carries::bytes};
  quietly([&] { (void)center.allgather({}, soon, "purpose", members_0, nothing_to_do); });
  const auto members_1 = two_ranks(1, {});
  peerbus::detail::star_leaf end{connection_saying(said), carries::bytes};
  quietly([&] { (void)end.allgather({}, soon, "purpose", members_1, nothing_to_do); });
}

/// News of ranks, to rank 0 and to another.
inline void hear_news(bytes said) {
  for (const std::size_t me : {0U, 1U}) {
    const auto members = two_ranks(me, connection_saying(said));
    const peerbus::rank_id other{1 - me};
    expect(members.ends_within(other, std::chrono::seconds{20}), "an end");
    expect(members.state(other) != peerbus::rank_state::running, "no rank that runs");
    expect(!members.fate(other).empty(), "a fate");
  }
}

/// Messages of a rank of a mesh, about boards of an agreement. Returns which set of rank 1 came
/// last.
inline std::uint64_t hear_messages(bytes said) {
  using peerbus::detail::agreement_board;
  std::vector<peerbus::detail::connection> links(3);
  links[1] = connection_saying(said);
  auto detector = std::make_shared<peerbus::detail::tcp_failure_detector>(
      peerbus::rank_id{0}, std::vector<peerbus::detail::connection>(3));
  detector->become_mesh(std::move(links));
  peerbus::detail::posted_boards boards{
      detector,
      std::make_shared<peerbus::membership>(peerbus::rank_id{0}, 3, detector->states(), detector)};
  expect(detector->ends_within(peerbus::rank_id{1}, std::chrono::seconds{20}), "an end");
  const auto& own = agreement_board::at(boards.boards()[0]);
  expect(own.revised.value() == 0 && own.gathered.value() == 0, "an own board left alone");
  return agreement_board::at(boards.boards()[1]).revised.value();
}

/// A place to which callers come over TLS, or over a bare socket as the ranks of one host do.
class fuzzed_place final : public peerbus::detail::rendezvous_place {
 public:
  explicit fuzzed_place(bool has_tls) : has_tls_{has_tls} {}

  [[nodiscard]] std::string describe() const override { return "here"; }
  [[nodiscard]] std::size_t channels() const noexcept override { return 1; }
  [[nodiscard]] std::vector<peerbus::unique_fd> open() override { return {}; }
  [[nodiscard]] peerbus::detail::connection admit(peerbus::unique_fd caller) override {
    using peerbus::detail::tls_layer;
    if (!has_tls_) return caller;
    return {std::move(caller), std::make_unique<tls_layer>(group_, tls_layer::end::accepting)};
  }
  [[nodiscard]] std::string describe_caller(const peerbus::detail::connection*) const override {
    return "a caller";
  }
  [[nodiscard]] peerbus::detail::connection call(peerbus::deadline) override { return {}; }
  [[nodiscard]] std::string describe_silence(int) const override { return "silence"; }

 private:
  bool has_tls_;
  std::shared_ptr<const peerbus::detail::tls_group> group_ =
      std::make_shared<const peerbus::detail::tls_group>("what no fuzzer can know");
};

/// A caller at a port. Over TLS it cannot prove itself by chance.
class callers {
 public:
  explicit callers(bool has_tls) : has_tls_{has_tls}, place_{has_tls} {}

  void hear(bytes said) {
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    expect(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0, "a port");
    const peerbus::unique_fd call{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    expect(::connect(call.get(), reinterpret_cast<const sockaddr*>(&at), size) == 0, "a call");
    peerbus::detail::callers present{place_, 4};
    present.accept_some(listener_);
    expect(present.size() == 1, "one caller");
    (void)!::send(call.get(), said.data(), said.size(), MSG_NOSIGNAL);
    ::shutdown(call.get(), SHUT_WR);
    for (int looks = 0; present.size() != 0; ++looks) {
      expect(looks < 1000, "an end");
      std::vector<pollfd> entries;
      present.append_entries(entries);
      for (auto& entry : entries) entry.revents = POLLIN;
      for (const auto& member : present.hear_all(entries)) {
        expect(!has_tls_, "nobody who belongs here");
        expect(member.greeting.encode().size() <= said.size(), "a whole hello");
      }
    }
  }

 private:
  /// Any stream will do, and a Unix one leaves no ports behind.
  static peerbus::unique_fd make_listener() {
    peerbus::unique_fd made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    sockaddr_storage any{};
    any.ss_family = AF_UNIX;
    // Only a family: the kernel finds a name that is free.
    expect(::bind(made.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any.ss_family) == 0,
           "a name");
    expect(::listen(made.get(), 8) == 0, "callers");
    return made;
  }

  bool has_tls_;
  fuzzed_place place_;
  peerbus::unique_fd listener_ = make_listener();
};

/// A place where a process listens that is no rank 0, and says `said` to the first caller.
class false_rank_0 final : public peerbus::detail::rendezvous_place {
 public:
  false_rank_0(bytes said, bool has_tls) : said_{said}, has_tls_{has_tls} {}

  [[nodiscard]] std::string describe() const override { return "here"; }
  [[nodiscard]] std::size_t channels() const noexcept override { return 1; }
  [[nodiscard]] std::vector<peerbus::unique_fd> open() override { return {}; }
  [[nodiscard]] peerbus::detail::connection admit(peerbus::unique_fd /*caller*/) override {
    return {};
  }
  [[nodiscard]] std::string describe_caller(const peerbus::detail::connection*) const override {
    return "a caller";
  }
  [[nodiscard]] peerbus::detail::connection call(peerbus::deadline /*until*/) override {
    using peerbus::detail::tls_layer;
    errno = ECONNREFUSED;
    if (other_) return {};
    int pair[2] = {-1, -1};
    expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
    peerbus::unique_fd caller{pair[0]};
    other_ = peerbus::unique_fd{pair[1]};
    (void)!::send(other_.get(), said_.data(), said_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(other_.get(), SHUT_WR);
    if (!has_tls_) return caller;
    return {std::move(caller), std::make_unique<tls_layer>(group_, tls_layer::end::calling)};
  }
  [[nodiscard]] std::string describe_silence(int /*number*/) const override { return "silence"; }

 private:
  bytes said_;
  bool has_tls_;
  peerbus::unique_fd other_;
  std::shared_ptr<const peerbus::detail::tls_group> group_ =
      std::make_shared<const peerbus::detail::tls_group>("what no fuzzer can know");
};

/// The answer to a rank that joins: in the clear, or as the first bytes of TLS.
inline void join(bytes said, bool has_tls) {
  false_rank_0 place{said, has_tls};
  bool has_met = false;
  accept_or_refuse([&] {
    (void)peerbus::detail::rendezvous_joiner{
        place, {1, 2, peerbus::deadline::after(std::chrono::milliseconds{has_tls ? 0 : 20})}}
        .join(0);
    has_met = true;
  });
  expect(!has_met || !has_tls, "no welcome of a stranger");
}

/// The targets of this file.
inline constexpr std::array tcp_targets{
    target{"frames", read_frames},
    target{"frames_with_descriptors", read_frames_with_descriptors},
    target{"collectives", gather},
    target{"news", hear_news},
    target{"messages", [](bytes said) { static_cast<void>(hear_messages(said)); }},
    target{"hellos",
           [](bytes said) {
             static callers port{false};
             port.hear(said);
           }},
    target{"first_flights",
           [](bytes said) {
             static callers port{true};
             port.hear(said);
           }},
    target{"answers", [](bytes said) { join(said, false); }},
    target{"answering_flights", [](bytes said) { join(said, true); }},
};

}  // namespace fuzz
