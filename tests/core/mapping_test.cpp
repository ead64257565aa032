// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include <doctest/doctest.h>

#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support/ranks.hpp"

namespace mapping_test {

namespace {
using peerbus::mapping;
constexpr std::size_t small = 100;
constexpr std::size_t large = peerbus::huge_page_bytes + 1;
}  // namespace

TEST_CASE("files lie one after the other, each at a multiple of a page") {
  for (const std::size_t bytes : {small, large}) {
    const std::size_t page = bytes == small ? 4096 : peerbus::huge_page_bytes;
    std::array<peerbus::unique_fd, 3> files;
    std::array<int, 3> fds{};
    for (std::size_t i = 0; i < files.size(); ++i) {
      files[i] = peerbus::make_memory_file("peerbus", 2 * page);
      fds[i] = files[i].get();
    }
    const auto together = mapping::shared_files(fds, bytes);
    const std::size_t part = together.size() / fds.size();
    CHECK(part % page == 0);
    CHECK(part >= bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(together.data()) % page == 0);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const auto alone = mapping::shared_file(fds[i], bytes);
      CHECK(alone.size() == part);
      std::fill_n(alone.data(), bytes, static_cast<std::byte>(i + 1));
    }
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const std::byte* const begin = together.data() + i * part;
      CHECK(std::all_of(begin, begin + bytes,
                        [i](std::byte one) { return one == static_cast<std::byte>(i + 1); }));
    }
  }
}

TEST_CASE("in the place of no file lies memory of this process") {
  const auto file = peerbus::make_memory_file("peerbus", small);
  const std::array fds{-1, file.get()};
  const auto together = mapping::shared_files(fds, small);
  const auto again = mapping::shared_files(fds, small);
  std::fill_n(together.data(), together.size(), std::byte{1});
  const std::size_t part = again.size() / 2;
  CHECK(std::all_of(again.data(), again.data() + part,
                    [](std::byte b) { return b == std::byte{0}; }));
  CHECK(again.data()[part] == std::byte{1});
}

TEST_CASE("what cannot be mapped leaves nothing mapped") {
  const auto file = peerbus::make_memory_file("peerbus", 4096);
  const std::array fds{file.get(), std::numeric_limits<int>::max()};
  test::expect_error(peerbus::errc::out_of_memory, {"cannot map 4096 bytes", "Bad file descriptor"},
                     [&] { static_cast<void>(mapping::shared_files(fds, small)); });
  const std::array many{file.get(), file.get(), file.get(), file.get()};
  constexpr std::size_t beyond = std::numeric_limits<std::size_t>::max() / 4 + 1;
  test::expect_error(peerbus::errc::out_of_memory, {"cannot map", "max_map_count"},
                     [&] { static_cast<void>(mapping::shared_files(many, beyond)); });
  test::expect_error(peerbus::errc::out_of_memory, {"cannot map", "`ulimit -v`"},
                     [] { static_cast<void>(mapping::anonymous(std::size_t{1} << 60)); });
}

TEST_CASE("a mapping that was moved from is empty") {
  auto from = mapping::anonymous(small);
  std::byte* const start = from.data();
  const mapping to{std::move(from)};
  CHECK(to.data() == start);
  CHECK(to.size() == 4096);
  CHECK(from.data() == nullptr);  // NOLINT(bugprone-use-after-move): that is what it says.
  CHECK(from.size() == 0);
}

}  // namespace mapping_test
