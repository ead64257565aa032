// SPDX-License-Identifier: MIT
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/observed_group.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/kernel_file.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

namespace detail {

/// Returns the state of the process that had the number `process` at `claimed`, a time of
/// CLOCK_BOOTTIME in nanoseconds.
inline process_state state_of_process(pid_t process, activity_line::ticks claimed) {
  const std::string text = read_process_stat(process);
  if (text.empty())
    return ::kill(process, 0) == 0 || errno == EPERM ? process_state::unknown : process_state::gone;
  std::istringstream words{text};
  char state = '?';
  words >> state;
  std::string skipped;
  for (int i = 0; i < 18; ++i) words >> skipped;
  activity_line::ticks started = 0;
  std::uint64_t memory = 0;
  words >> started >> memory;
  // A process that ends gives its memory back before it closes its files, and is a zombie after
  // that.
  const bool is_ending = memory == 0;
  // A process that started later has the number of one that is gone.
  const bool is_another = started * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)) > claimed;
  if (is_another || is_ending || state == 'Z' || state == 'X') return process_state::gone;
  return state == 'T' || state == 't' ? process_state::stopped : process_state::running;
}

/// Refuses a process that has ended.
inline void refuse_ended(pid_t process) {
  constexpr auto ever = std::numeric_limits<activity_line::ticks>::max();
  if (process <= 0 || state_of_process(process, ever) == process_state::gone)
    throw error{errc::invalid_argument,
                concat("process ", process, " given, expected one that runs on this host")};
}

/// Refuses a process in a container with process numbers of its own, because the page of states has
/// the numbers of the container.
inline void refuse_other_numbers(pid_t process) {
  const std::string text = read_kernel_file(concat("/proc/", process, "/status"));
  const auto start = text.find("\nNSpid:");
  if (start == std::string::npos) return;
  std::istringstream numbers{text.substr(start + 7, text.find('\n', start + 1) - start - 7)};
  pid_t here = 0;
  pid_t inside = 0;
  if (numbers >> here >> inside)
    throw error{errc::unsupported,
                concat("process ", process, " is process ", inside,
                       " of a container, expected one that has the same number here; look from "
                       "inside the container (nsenter --target ",
                       process, " --pid --mount)")};
}

/// Returns the open files of `process` that may be pages of rank states.
inline std::vector<unique_fd> open_state_pages(pid_t process) {
  const std::string folder = concat("/proc/", process, "/fd/");
  const std::unique_ptr<DIR, int (*)(DIR*)> files{::opendir(folder.c_str()), ::closedir};
  if (!files) {
    const int reason = errno;
    refuse_ended(process);
    throw system_failure(concat("reading the open files of process ", process,
                                ", for which its user or root is expected"),
                         reason);
  }
  std::vector<unique_fd> found;
  while (const dirent* entry = ::readdir(files.get())) {
    const std::string path = folder + entry->d_name;
    std::array<char, PATH_MAX> target{};
    if (::readlink(path.c_str(), target.data(), target.size() - 1) <= 0) continue;
    // The opening of another file, such as a pipe or a device, may wait or have an effect.
    constexpr std::string_view memory_file = "/memfd:";
    std::string_view name{target.data()};
    if (!name.starts_with(memory_file)) continue;
    name.remove_prefix(memory_file.size());
    if (!name.starts_with(state_page::name_of_ranks) &&
        !name.starts_with(state_page::name_of_own_ranks))
      continue;
    auto file = unique_fd::above_standard(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (file) found.push_back(std::move(file));
  }
  return found;
}

}  // namespace detail

PEERBUS_ERROR_PATH const char* name_of(process_state state) noexcept {
  constexpr std::array names{"unknown", "running", "stopped", "gone"};
  const auto place = static_cast<std::size_t>(state);
  return place < names.size() ? names[place] : "unknown";
}

PEERBUS_INLINE observed_group::observed_group(std::shared_ptr<const detail::state_page> page,
                                              std::uint64_t inode,
                                              const detail::state_page_header& header) noexcept
    : page_{std::move(page)}, inode_{inode}, header_{header} {}

PEERBUS_INLINE std::vector<observed_group> observed_group::attach(pid_t process) {
  using header = detail::state_page_header;
  detail::refuse_ended(process);
  std::vector<observed_group> groups;
  const auto files = detail::open_state_pages(process);
  detail::refuse_other_numbers(process);
  for (const unique_fd& file : files) {
    header read;
    struct stat about{};
    if (::pread(file.get(), &read, sizeof read, 0) != static_cast<ssize_t>(sizeof read) ||
        read.magic != header::expected_magic || ::fstat(file.get(), &about) != 0)
      continue;
    if (read.layout != header::expected_layout)
      throw error{errc::mismatch,
                  detail::concat("process ", process, " has rank states of layout ", read.layout,
                                 ", expected ", header::expected_layout,
                                 ": use the program of the same build of peerbus")};
    auto page =
        std::make_shared<const detail::state_page>(detail::state_page::open(read, file, PROT_READ));
    observed_group group{std::move(page), about.st_ino, read};
    if (std::find(groups.begin(), groups.end(), group) == groups.end())
      groups.push_back(std::move(group));
  }
  if (groups.empty()) {
    detail::refuse_ended(process);  // It may have ended meanwhile.
    throw error{errc::unsupported,
                detail::concat("process ", process,
                               " is in no group of peerbus, expected a rank, or the process that "
                               "has started ranks by run_local")};
  }
  return groups;
}

PEERBUS_INLINE std::string observed_group::host_of(rank_id rank) const {
  if (rank.index() >= size())
    throw error{errc::out_of_range,
                detail::concat(rank, " was given, expected one below ", size())};
  return page_->host(rank.index());
}

PEERBUS_INLINE std::vector<observed_rank> observed_group::read() const {
  const auto lines = page_->lines();
  std::vector<observed_rank> ranks(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const detail::activity_line& line = *lines[i];
    observed_rank& seen = ranks[i];
    seen.rank = rank_id{header_.first + i};
    const auto owner = line.owner();
    seen.process = owner.process;
    // order: acquire; pairs with the release in `membership::announce`, so that what the rank did
    // before its end is read after it.
    seen.announced = static_cast<rank_state>(page_->words()[i].load(std::memory_order_acquire));
    seen.latest = line.read();
    if (seen.process == 0) continue;
    // Ranks that are threads have one process in common.
    seen.is = i != 0 && ranks[i - 1].process == seen.process
                  ? ranks[i - 1].is
                  : detail::state_of_process(seen.process, owner.since);
  }
  return ranks;
}

}  // namespace peerbus
