// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include <doctest/doctest.h>

#include <peerbus/core/unique_fd.hpp>

namespace unique_fd_test {

using peerbus::unique_fd;

namespace {
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
int open_one() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
}  // namespace

TEST_CASE("unique_fd: closes what it owns, once") {
  int raw = -1;
  {
    const unique_fd owner{open_one()};
    raw = owner.get();
    REQUIRE(owner);
    CHECK(is_open(raw));
  }
  CHECK_FALSE(is_open(raw));
}

TEST_CASE("unique_fd: moving hands over") {
  unique_fd first{open_one()};
  const int raw = first.get();
  unique_fd second{std::move(first)};
  CHECK_FALSE(first);  // NOLINT(bugprone-use-after-move): what is left is specified
  CHECK(second.get() == raw);

  unique_fd third{open_one()};
  const int replaced = third.get();
  third = std::move(second);
  CHECK_FALSE(is_open(replaced));
  CHECK(third.get() == raw);

  unique_fd& same = third;
  third = std::move(same);
  CHECK(third.get() == raw);
  CHECK(is_open(raw));

  third.reset();
  CHECK_FALSE(is_open(raw));
  CHECK_FALSE(third);
}

TEST_CASE("unique_fd: what would get the number of a standard stream gets another") {
  const unique_fd kept{::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)};
  if (!kept) return;  // Run without a standard input.
  ::close(STDIN_FILENO);
  const int raw = open_one();
  const unique_fd moved = unique_fd::above_standard(raw);
  const bool is_free = !is_open(STDIN_FILENO);
  ::dup2(kept.get(), STDIN_FILENO);
  CHECK(raw == STDIN_FILENO);
  CHECK(is_free);
  CHECK(moved.get() > STDERR_FILENO);
  CHECK((::fcntl(moved.get(), F_GETFD) & FD_CLOEXEC) != 0);

  const int high = open_one();
  CHECK(unique_fd::above_standard(high).get() == high);
  CHECK_FALSE(unique_fd::above_standard(-1));
}

TEST_CASE("unique_fd: descriptor 0 counts, empty ones close nothing") {
  const unique_fd empty;
  CHECK_FALSE(empty);
  CHECK(empty.get() == -1);
}

}  // namespace unique_fd_test
