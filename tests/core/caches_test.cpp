// SPDX-License-Identifier: MIT
#include <cstddef>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/core/caches.hpp>

#include "support/made_up_root.hpp"

namespace caches_test {

namespace {

/// Caches as the kernel describes them.
class described_caches {
 public:
  void add(const std::string& size, const std::string& map) {
    const std::string cache = "/index" + std::to_string(count_++);
    root_.write(cache + "/size", size + '\n');
    if (!map.empty()) root_.write(cache + "/shared_cpu_map", map + '\n');
  }
  [[nodiscard]] peerbus::shared_cache largest() const {
    return peerbus::largest_cache(root_.path());
  }

 private:
  test::made_up_root root_;
  int count_ = 0;
};

}  // namespace

TEST_CASE("largest_cache finds the largest and how many cores share it") {
  described_caches caches;
  CHECK(caches.largest().bytes == 0);
  CHECK(caches.largest().cores == 1);
  caches.add("48K", "00000000,00000001");
  caches.add("32K", "00000000,00000001");
  CHECK(caches.largest().bytes == 48 * 1024);
  CHECK(caches.largest().cores == 1);
  caches.add("32768K", "00000000,0000ff00,00000000,000000ff");
  CHECK(caches.largest().bytes == std::size_t{32} << 20U);
  CHECK(caches.largest().cores == 16);
  caches.add("64M", "");
  CHECK(caches.largest().bytes == std::size_t{64} << 20U);
  CHECK(caches.largest().cores == 1);
}

TEST_CASE("largest_cache of this machine is shared by at least this core") {
  CHECK(peerbus::largest_cache().cores >= 1);
}

}  // namespace caches_test
