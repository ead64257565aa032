// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/core/caches.hpp>

namespace caches_test {

namespace {

/// A folder with caches as the kernel describes them. The destructor removes it.
class described_caches {
 public:
  described_caches()
      : folder_{std::filesystem::temp_directory_path() /
                ("peerbus_caches_test_" + std::to_string(::getpid()))} {}
  described_caches(const described_caches&) = delete;
  described_caches& operator=(const described_caches&) = delete;
  ~described_caches() { std::filesystem::remove_all(folder_); }

  void add(const std::string& size, const std::string& map) {
    const auto cache = folder_ / ("index" + std::to_string(count_++));
    std::filesystem::create_directories(cache);
    std::ofstream{cache / "size"} << size << '\n';
    if (!map.empty()) std::ofstream{cache / "shared_cpu_map"} << map << '\n';
  }
  [[nodiscard]] peerbus::shared_cache largest() const {
    return peerbus::largest_cache(folder_.string());
  }

 private:
  std::filesystem::path folder_;
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
