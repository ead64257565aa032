// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/state_page_header.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The memory in which ranks announce their states, one word each, and record their waits, one line
/// each. If the ranks are on several hosts, it also has the names of the hosts. It is zeroed at
/// first, has no name in the file system, and ends with the last process that maps it. Each process
/// that maps a file to write keeps it open, because an `observed_group` finds the page among the
/// open files of a rank.
class state_page {
 public:
  ///@{
  /// The name of the page of ranks that a launcher started. `find_launch_ancestor` takes a process
  /// that maps such a page for a rank.
  static constexpr const char* name_of_ranks = "peerbus-states";
  /// The name of the page of ranks that a process starts by itself. That process also maps the
  /// page.
  static constexpr const char* name_of_own_ranks = "states-of-peerbus";
  ///@}

  /// Makes a page that only child processes inherit and no other process sees.
  /// Throws: `error` system.
  explicit state_page(std::size_t rank_count)
      : state_page{header_of(rank_count), -1, PROT_READ | PROT_WRITE} {}

  /// Makes a file that other processes can `open`.
  /// Throws: `error` out_of_memory, system.
  [[nodiscard]] static unique_fd make_file(std::size_t ranks) {
    return make_file(name_of_ranks, header_of(ranks));
  }

  ///@{
  /// Maps a file of `make_file`. An observer maps it with PROT_READ and with the header that it has
  /// read from the file.
  /// Throws: `error` system.
  [[nodiscard]] static state_page open(const state_page_header& header, const unique_fd& file,
                                       int protection = PROT_READ | PROT_WRITE) {
    struct stat found{};
    if (::fstat(file.get(), &found) != 0 ||
        static_cast<std::size_t>(found.st_size) < bytes_for(header))
      throw error{errc::system, concat("the page of rank states has ", found.st_size,
                                       " bytes, expected ", bytes_for(header))};
    return state_page{header, file.get(), protection};
  }
  [[nodiscard]] static state_page open(std::size_t ranks, const unique_fd& file) {
    return open(header_of(ranks), file);
  }
  ///@}

  /// Makes a page with the name `name` and a header. If the system refuses memory files, makes a
  /// page without a name, which no `observed_group` finds.
  /// Throws: `error` system.
  [[nodiscard]] static state_page make_named(const char* name, const state_page_header& header) {
    try {
      return open(header, make_file(name, header));
    } catch (const error&) {
      return state_page{header, -1, PROT_READ | PROT_WRITE};
    }
  }
  /// Makes a page of all ranks of a group. The contract is otherwise that of the function for a
  /// header.
  [[nodiscard]] static state_page make_named(const char* name, std::size_t ranks) {
    return make_named(name, header_of(ranks));
  }

  [[nodiscard]] membership::state_word* words() const noexcept {
    return placed<membership::state_word>(static_cast<std::byte*>(memory_.get()) + words_at);
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

  /// Sets the number of the group to which the page belongs. For ranks that do not share one page.
  void set_group(std::uint64_t group) const noexcept {
    placed<state_page_header>(static_cast<std::byte*>(memory_.get()))->group = group;
  }

  /// Writes the name of the host of a rank, if the page has hosts. A name that is too long is cut
  /// off.
  void set_host(std::size_t rank, std::string_view name) const noexcept {
    if (rank < hosts_)
      std::memcpy(host_at(rank), name.data(), std::min(name.size(), host_bytes - 1));
  }
  /// Returns the name of the host of a rank; empty if the page has no hosts. While the ranks meet,
  /// the name may be empty or cut off.
  [[nodiscard]] std::string host(std::size_t rank) const {
    if (rank >= hosts_) return {};
    const char* const name = host_at(rank);
    return {name, ::strnlen(name, host_bytes)};
  }

 private:
  /// Maps `file`, or memory without a file if `file` is -1.
  state_page(const state_page_header& header, int file, int protection)
      : ranks_{header.ranks}, hosts_{header.hosts} {
    const std::size_t bytes = bytes_for(header);
    void* address = ::mmap(nullptr, bytes, protection,
                           file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (address == MAP_FAILED) throw system_failure("mapping the page of rank states", errno);
    // An observer is not to be found as a rank. The page works without a descriptor of it, so that
    // a lack of them is no error.
    const bool is_found = file >= 0 && (protection & PROT_WRITE) != 0;
    const int kept = is_found ? ::fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    memory_ = std::shared_ptr<void>{address, [bytes, kept](void* mapped) {
                                      ::munmap(mapped, bytes);
                                      if (kept >= 0) ::close(kept);
                                    }};
  }

  [[nodiscard]] static constexpr state_page_header header_of(std::size_t ranks) noexcept {
    return {.group_size = static_cast<std::uint32_t>(ranks),
            .ranks = static_cast<std::uint32_t>(ranks)};
  }

  [[nodiscard]] static unique_fd make_file(const char* name, const state_page_header& header) {
    unique_fd file = make_memory_file(name, bytes_for(header));
    if (::pwrite(file.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header))
      throw system_failure("writing the page of rank states", errno);
    return file;
  }

  static constexpr std::size_t bytes_for(const state_page_header& header) noexcept {
    return hosts_at(header.ranks) + header.hosts * host_bytes;
  }
  static constexpr std::size_t hosts_at(std::size_t ranks) noexcept {
    return lines_at(ranks) + ranks * sizeof(activity_line);
  }
  [[nodiscard]] char* host_at(std::size_t rank) const noexcept {
    return static_cast<char*>(memory_.get()) + hosts_at(ranks_) + rank * host_bytes;
  }
  static constexpr std::size_t host_bytes = 64;
  static constexpr std::size_t words_at = cache_line_bytes;
  static_assert(sizeof(state_page_header) <= words_at);
  static constexpr std::size_t lines_at(std::size_t ranks) noexcept {
    return words_at + align_up(ranks * sizeof(membership::state_word), cache_line_bytes);
  }

  std::size_t ranks_;
  std::size_t hosts_;
  std::shared_ptr<void> memory_;
};

}  // namespace peerbus::detail
