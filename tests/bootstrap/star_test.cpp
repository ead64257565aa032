// SPDX-License-Identifier: MIT
//
// The star between rank 0 and the others, with ends that do not play by the rules.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/gathered.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support.hpp"

namespace star_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::membership;
using peerbus::rank_id;
using peerbus::unique_fd;
using peerbus::detail::connection;
using peerbus::detail::describe_ranks;
using peerbus::detail::describe_span;
using peerbus::detail::encode_frame;
using peerbus::detail::frame;
using peerbus::detail::frame_header;
using peerbus::detail::frame_kind;
using peerbus::detail::frame_reader;
using peerbus::detail::frame_writer;
using peerbus::detail::star_leaf;
using peerbus::detail::star_root;

namespace {

peerbus::idle_work nothing_to_do;

struct socket_pair {
  unique_fd one;
  unique_fd other;
  socket_pair() {
    int pair[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
    one.reset(pair[0]);
    other.reset(pair[1]);
  }
};

/// As much as the socket takes; the other end may have hung up.
void send_raw(const unique_fd& to, const void* bytes, std::size_t count) {
  (void)!::send(to.get(), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
}
void send_raw(const unique_fd& to, const std::vector<std::byte>& bytes) {
  send_raw(to, bytes.data(), bytes.size());
}

membership two_ranks(std::size_t me) {
  auto states = std::make_shared<std::array<membership::state_word, 2>>();
  auto* words = states->data();
  return {rank_id{me}, 2, words, std::move(states), {}};
}

/// What rank 0 of two throws when `stranger` plays rank 1.
template <class F>
peerbus::error root_error(const F& stranger, deadline until = patience()) {
  socket_pair between;
  std::vector<connection> leaves(2);
  leaves[1] = std::move(between.one);
  star_root center{std::move(leaves)};
  const membership members = two_ranks(0);
  stranger(between.other);
  return error_of([&] { (void)center.allgather({}, until, "purpose", members, nothing_to_do); });
}

/// What rank 1 of two throws when `stranger` plays rank 0.
template <class F>
peerbus::error leaf_error(const F& stranger, deadline until = patience()) {
  socket_pair between;
  star_leaf end{std::move(between.one)};
  const membership members = two_ranks(1);
  stranger(between.other);
  return error_of([&] { (void)end.allgather({}, until, "purpose", members, nothing_to_do); });
}

frame_header header_of(frame_kind kind, std::uint64_t sequence = 1) {
  frame_header header;
  header.kind = static_cast<std::uint32_t>(kind);
  header.sequence = sequence;
  return header;
}

}  // namespace

TEST_CASE("star: sizes that nobody may have are refused before anything is allocated") {
  const time_limit limit;
  auto huge_body = header_of(frame_kind::give);
  huge_body.body_bytes = ~std::uint64_t{0};
  auto big_body = header_of(frame_kind::give);
  big_body.body_bytes = bootstrap::max_contribution_bytes + 1;
  auto huge_text = header_of(frame_kind::give);
  huge_text.text_bytes = std::uint64_t{1} << 40;
  auto many_fds = header_of(frame_kind::give);
  many_fds.fds = 1'000'000;
  auto no_kind = header_of(static_cast<frame_kind>(77));
  auto no_magic = header_of(frame_kind::give);
  no_magic.magic = 0x2047'4554;
  for (const auto& header : {huge_body, big_body, huge_text, many_fds, no_kind, no_magic}) {
    const auto send = [&](const unique_fd& to) { send_raw(to, &header, sizeof header); };
    std::vector<peerbus::error> all{root_error(send)};
    // A result may be longer than a contribution.
    if (header.body_bytes != big_body.body_bytes) all.push_back(leaf_error(send));
    for (const auto& caught : all) {
      CHECK(caught.code() == errc::system);
      CHECK(contains(caught.what(), "malformed"));
    }
  }
}

TEST_CASE("star: memory grows with the bytes that come, not with those announced") {
  const time_limit limit;
  auto header = header_of(frame_kind::give);
  header.body_bytes = bootstrap::max_contribution_bytes;
  socket_pair between;
  send_raw(between.other, &header, sizeof header);
  frame_reader reader{bootstrap::max_contribution_bytes, 1};
  connection one{std::move(between.one)};
  CHECK(reader.step(one) == frame_reader::status::more);
  CHECK(reader.amid());
  CHECK(reader.take().body.size() <= 65536);
}

TEST_CASE("star: what does not belong here is refused") {
  const time_limit limit;
  const auto sent = [](const std::vector<std::byte>& bytes) {
    return [bytes](const unique_fd& to) { send_raw(to, bytes); };
  };
  // To rank 0: a result, an older contribution, and the same contribution twice are malformed.
  for (const auto& bytes : {encode_frame(header_of(frame_kind::result), "", {}),
                            encode_frame(header_of(frame_kind::give, 7), "purpose", {}),
                            encode_frame(header_of(frame_kind::welcome), "", {})})
    CHECK(contains(root_error(sent(bytes)).what(), "rank 1 sent a malformed message"));
  // To the others: results that do not add up.
  const std::array<std::byte, 32> table{};
  std::array<std::byte, 32> too_long{};
  too_long[0] = std::byte{1};
  std::array<std::byte, 32> no_fd{};
  no_fd[8] = std::byte{1};
  const std::array<std::byte, 31> too_short{};
  const std::array<std::byte, 33> left_over{};
  CHECK(contains(leaf_error(sent(encode_frame(header_of(frame_kind::result, 2), "", table))).what(),
                 "malformed"));
  for (const std::span<const std::byte> body :
       {std::span<const std::byte>{too_long}, std::span<const std::byte>{no_fd},
        std::span<const std::byte>{too_short}, std::span<const std::byte>{left_over}})
    CHECK(contains(leaf_error(sent(encode_frame(header_of(frame_kind::result), "", body))).what(),
                   "malformed"));
  CHECK(contains(leaf_error(sent(encode_frame(header_of(frame_kind::give), "", {}))).what(),
                 "malformed"));
}

TEST_CASE("star: a refusal carries code and words; an unknown code is a system error") {
  const time_limit limit;
  auto header = header_of(frame_kind::refuse);
  for (std::uint32_t code : {0U, 3U, 13U, 0xffff'ffffU}) {
    header.code = code;
    const auto bytes = encode_frame(header, "because", {});
    for (const auto& caught : {leaf_error([&](const unique_fd& to) { send_raw(to, bytes); }),
                               root_error([&](const unique_fd& to) { send_raw(to, bytes); })}) {
      CHECK(caught.code() == (code == 3 ? errc::mismatch : errc::system));
      CHECK(contains(caught.what(), "because"));
    }
  }
}

TEST_CASE("star: half a message ends at the deadline, or with the connection") {
  const time_limit limit;
  const auto whole = encode_frame(header_of(frame_kind::give), "purpose", {});
  for (std::size_t count = 0; count < whole.size(); count += 9) {
    const auto half = [&](const unique_fd& to) { send_raw(to, whole.data(), count); };
    const auto late = root_error(half, deadline::after(5ms));
    CHECK(late.code() == errc::timed_out);
    CHECK(contains(late.what(), "rank 1 of 2 did not come within "));
    const auto cut = root_error([&](const unique_fd& to) {
      half(to);
      ::shutdown(to.get(), SHUT_RDWR);
    });
    CHECK(cut.code() == errc::peer_dead);
    CHECK(contains(cut.what(), "rank 1"));
  }
}

TEST_CASE("star: descriptors that nobody announced are closed, not kept") {
  const time_limit limit;
  const belongings before;
  const unique_fd file{::memfd_create("unasked", MFD_CLOEXEC)};
  const std::vector<int> many(200, file.get());
  const auto whole = encode_frame(header_of(frame_kind::give), "purpose", {});
  const auto caught = root_error([&](const unique_fd& to) {
    frame_writer writer{{}, many};  // One byte with 200 descriptors, where a header should be.
    connection link{unique_fd{::dup(to.get())}};
    (void)writer.step(link);
    send_raw(to, whole);
  });
  CHECK(contains(caught.what(), "malformed"));
  CHECK(belongings{}.descriptors == before.descriptors + 1);
}

TEST_CASE("star: any bytes end in an error, at either end") {
  const time_limit limit;
  const belongings before;
  std::mt19937_64 random{20250731};
  const auto valid =
      encode_frame(header_of(frame_kind::give), "purpose", std::vector<std::byte>(100));
  for (int attempt = 0; attempt < 3000; ++attempt) {
    CAPTURE(attempt);
    std::vector<std::byte> bytes = valid;
    if (attempt % 2 == 0) {
      // A valid frame with some bytes of its header changed: the magic stays, or all would end
      // there.
      for (std::uint64_t i = 0; i <= random() % 3; ++i)
        bytes[4 + random() % 36] = static_cast<std::byte>(random());
    } else {
      bytes.resize(random() % 200);
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    }
    const auto play = [&](const unique_fd& to) {
      send_raw(to, bytes);
      ::shutdown(to.get(), SHUT_WR);
    };
    // Unless nothing was changed, or only what nobody reads: then the end comes after the frame.
    socket_pair between;
    std::vector<connection> leaves(2);
    leaves[1] = std::move(between.one);
    star_root center{std::move(leaves)};
    const membership members = two_ranks(0);
    play(between.other);
    try {
      (void)center.allgather({}, patience(), "purpose", members, nothing_to_do);
    } catch (const peerbus::error& caught) {
      CHECK(caught.code() != errc::timed_out);
    }
    CHECK(leaf_error(play, patience()).code() != errc::timed_out);
  }
  CHECK(belongings{} == before);
}

TEST_CASE("star: descriptors go in batches, in order") {
  const time_limit limit;
  constexpr std::size_t count = 600;  // more than two messages may carry
  socket_pair between;
  connection one{std::move(between.one)};
  connection other{std::move(between.other)};
  std::vector<unique_fd> files;
  std::vector<int> fds;
  fds.reserve(count);
  for (std::size_t i = 0; i < 3; ++i) {
    files.emplace_back(::memfd_create("batch", MFD_CLOEXEC));
    REQUIRE(::ftruncate(files[i].get(), static_cast<off_t>(i + 1)) == 0);
  }
  for (std::size_t i = 0; i < count; ++i) fds.push_back(files[i % 3].get());
  auto header = header_of(frame_kind::result);
  header.fds = count;
  const auto bytes = encode_frame(header, "text", bytes_of("body"));
  frame_writer writer{bytes, fds};
  frame_reader reader{100, count};
  bool written = false;
  auto read = frame_reader::status::more;
  while (read == frame_reader::status::more) {
    if (!written) written = writer.step(one) == frame_writer::status::done;
    read = reader.step(other);
  }
  REQUIRE(read == frame_reader::status::done);
  const frame got = reader.take();
  CHECK(got.text == "text");
  CHECK(text_of(got.body) == "body");
  REQUIRE(got.fds.size() == count);
  for (std::size_t i = 0; i < count; ++i)
    CHECK(::lseek(got.fds[i].get(), 0, SEEK_END) == static_cast<off_t>(i % 3 + 1));
}

TEST_CASE("names of ranks and spans, for messages") {
  const auto ranks = [](const std::vector<std::size_t>& of) {
    std::vector<rank_id> ids;
    ids.reserve(of.size());
    for (const auto index : of) ids.emplace_back(index);
    return describe_ranks(ids);
  };
  CHECK(ranks({3}) == "rank 3");
  CHECK(ranks({3, 5}) == "ranks 3, 5");
  CHECK(ranks({3, 4}) == "ranks 3, 4");
  CHECK(ranks({1, 3, 4, 5, 9}) == "ranks 1, 3-5, 9");
  CHECK(describe_span(20ms) == "20 ms");
  CHECK(describe_span(29999900us) == "30 s");
  CHECK(describe_span(1500ms) == "1.5 s");
  CHECK(describe_span(deadline::never().remaining()) == "an unlimited time");
}

}  // namespace star_test
