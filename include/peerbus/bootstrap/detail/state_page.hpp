// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The memory in which the ranks announce their states, one word each, and write what they do, one
/// line each. It is zeroed at first, has no name in the file system, and ends with the last process
/// that maps it.
class state_page {
 public:
  /// Makes a page that child processes inherit.
  /// Throws: `error` system.
  explicit state_page(std::size_t rank_count) : state_page{rank_count, -1} {}

  /// Makes a file that other processes can `open`.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] static unique_fd make_file(std::size_t ranks) {
    return make_memory_file("peerbus-states", bytes_for(ranks));
  }

  /// Maps a file of `make_file`.
  /// Throws: `error` system.
  [[nodiscard]] static state_page open(std::size_t ranks, const unique_fd& file) {
    struct stat found{};
    if (::fstat(file.get(), &found) != 0 ||
        static_cast<std::size_t>(found.st_size) < bytes_for(ranks))
      throw error{errc::system, concat("the page of rank states has ", found.st_size,
                                       " bytes, expected ", bytes_for(ranks))};
    return state_page{ranks, file.get()};
  }

  /// Makes a page by which the processes that this one starts know it for a rank, as
  /// `find_launch_ancestor` does. If the system refuses memory files, makes a page without a name.
  /// Throws: `error` system.
  [[nodiscard]] static state_page make_named(std::size_t ranks) {
    try {
      return open(ranks, make_file(ranks));
    } catch (const error&) {
      return state_page{ranks};
    }
  }

  [[nodiscard]] membership::state_word* words() const noexcept {
    return static_cast<membership::state_word*>(memory_.get());
  }
  /// Returns the line of each rank: [ranks].
  [[nodiscard]] std::vector<activity_line*> lines() const {
    std::vector<activity_line*> found(ranks_);
    std::byte* const first = static_cast<std::byte*>(memory_.get()) + lines_at(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      found[rank] = placed<activity_line>(first + rank * sizeof(activity_line));
    return found;
  }
  [[nodiscard]] const std::shared_ptr<void>& memory() const noexcept { return memory_; }

 private:
  state_page(std::size_t rank_count, int file) : ranks_{rank_count} {
    const std::size_t bytes = bytes_for(rank_count);
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (address == MAP_FAILED) throw system_failure("mapping the page of rank states", errno);
    memory_ = std::shared_ptr<void>{address, [bytes](void* mapped) { ::munmap(mapped, bytes); }};
  }

  static constexpr std::size_t bytes_for(std::size_t ranks) noexcept {
    return lines_at(ranks) + ranks * sizeof(activity_line);
  }
  static constexpr std::size_t lines_at(std::size_t ranks) noexcept {
    return align_up(ranks * sizeof(membership::state_word), cache_line_bytes);
  }

  std::size_t ranks_;
  std::shared_ptr<void> memory_;
};

}  // namespace peerbus::detail
