// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_file.hpp>
#include <peerbus/trace/chrome_trace.hpp>
#include <peerbus/trace/job_trace.hpp>

namespace peerbus {

namespace detail {

PEERBUS_INLINE void write_text_file(const std::string& path, std::string_view text) {
  unique_file file{std::fopen(path.c_str(), "w")};
  const bool is_written = file &&
                          std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() &&
                          std::fclose(file.release()) == 0;
  if (!is_written) throw system_failure(concat("writing the trace ", path), errno);
}

}  // namespace detail

PEERBUS_INLINE job_trace::job_trace(bootstrap& boot, deadline until,
                                    const recorder_options& options)
    : boot_{&boot},
      recorder_{on_all_ranks(boot, "the events of a trace", until,
                             [&] { return std::make_unique<recorder>(options); })},
      begin_{measure_clock(boot, until)} {
  boot.members()->listeners().add(*recorder_);
}

PEERBUS_INLINE job_trace::~job_trace() { boot_->members()->listeners().remove(*recorder_); }

PEERBUS_INLINE std::string job_trace::text(const clock_offset& end, std::size_t most_bytes) const {
  std::array<char, 64> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  return chrome_events({.rank = boot_->rank(),
                        .name = detail::concat(host.data(), ", pid ", ::getpid()),
                        .threads = recorder_->read(),
                        .lost = recorder_->lost(),
                        .begin = begin_,
                        .end = end},
                       most_bytes);
}

PEERBUS_INLINE void job_trace::write(const std::string& path, deadline until, bool quiet) {
  gathered of_all;
  try {
    of_all = gather(until);
  } catch (const std::exception&) {
    try {
      write_own(detail::concat(path, ".rank", boot_->rank().index()));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the first says more
    }
    throw;
  }
  if (of_all.texts.empty()) return;
  detail::write_text_file(path, chrome_file(of_all.texts));
  if (!quiet)
    std::fprintf(stderr,
                 "peerbus: trace of %zu ranks in %s: clocks agree to %.1f us, %llu events lost\n",
                 of_all.texts.size(), path.c_str(), static_cast<double>(of_all.error) / 1e3,
                 static_cast<unsigned long long>(of_all.lost));
}

PEERBUS_INLINE job_trace::gathered job_trace::gather(deadline until) {
  struct summary {
    std::int64_t error;
    std::uint64_t lost;
  };
  constexpr std::size_t most = std::size_t{48} << 20;
  const clock_offset end = measure_clock(*boot_, until);
  bootstrap::contribution given;
  const auto objection = objection_of("the text of a trace", [&] {
    const std::string own = text(end, std::min(most, (std::size_t{1} << 30) / boot_->size() - 64));
    const summary of_own{std::max(begin_.error, end.error), recorder_->lost()};
    detail::append_bytes(given.bytes, &of_own, sizeof of_own);
    detail::append_bytes(given.bytes, own.data(), own.size());
  });
  const auto all =
      gather_or_refuse(*boot_, "trace of the ranks", std::move(given), objection, until);
  const auto first =
      std::find_if(all.begin(), all.end(), [](const auto& part) { return !part.bytes.empty(); });
  if (all[boot_->rank().index()].bytes.data() != first->bytes.data()) return {};
  gathered found_all;
  found_all.texts.reserve(all.size());
  for (const bootstrap::contribution& part : all) {
    summary found{};
    if (part.bytes.empty()) continue;  // The rank is gone.
    std::memcpy(&found, part.bytes.data(), sizeof found);
    found_all.error = std::max(found_all.error, found.error);
    found_all.lost += found.lost;
    found_all.texts.emplace_back(reinterpret_cast<const char*>(part.bytes.data()) + sizeof found,
                                 part.bytes.size() - sizeof found);
  }
  return found_all;
}

PEERBUS_INLINE void job_trace::write_own(const std::string& path) const {
  const std::string own = text(begin_, ~std::size_t{0});
  detail::write_text_file(path, chrome_file({&own, 1}));
}

}  // namespace peerbus
