// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

#include <doctest/doctest.h>

namespace test {

/// Counts the ranks that came to some place, in memory that they share with their parent: the exit
/// status of a group is the worst one's.
class tally {
 public:
  void add() const noexcept { count_->fetch_add(1); }
  [[nodiscard]] std::size_t count() const noexcept { return count_->load(); }

  tally() {
    void* const page =
        ::mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    count_ = ::new (page) std::atomic<std::size_t>{0};
  }
  tally(const tally&) = delete;
  tally& operator=(const tally&) = delete;
  ~tally() { ::munmap(count_, sizeof *count_); }

 private:
  std::atomic<std::size_t>* count_ = nullptr;
};

}  // namespace test
