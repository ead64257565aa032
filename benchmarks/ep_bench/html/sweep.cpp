// SPDX-License-Identifier: MIT
#include "ep_bench/html/sweep.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include <peerbus/core/mapping.hpp>
#include <peerbus/core/memory_file.hpp>

#include "common/clock.hpp"
#include "ep_bench/html/memory.hpp"
#include "ep_bench/launch.hpp"

namespace ep_bench {
namespace {

template <std::size_t Size>
void copy_text(char (&to)[Size], const std::string& from) {
  std::memset(to, 0, Size);
  std::memcpy(to, from.data(), std::min(from.size(), Size - 1));
}

/// What rank 0 hands to the process that started it.
struct handed {
  bool there;
  figures found;
  std::size_t cores;
  std::size_t iterations;
  std::size_t dispatch_bytes;
  std::size_t combine_bytes;
  bool crowded;
  char placement[64];
  char wrong[512];
};
static_assert(std::is_trivially_copyable_v<handed>);

class hand_over {
 public:
  hand_over()
      : memory_{peerbus::mapping::shared_file(
            peerbus::make_memory_file("ep_bench", sizeof(handed)).get(), sizeof(handed))} {
    new (memory_.data()) handed{};
  }
  [[nodiscard]] handed& box() const noexcept {
    return *std::launder(reinterpret_cast<handed*>(memory_.data()));
  }

 private:
  peerbus::mapping memory_;
};

std::string in_gibibytes(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB",
                static_cast<double>(bytes) / static_cast<double>(std::size_t{1} << 30U));
  return text;
}

sweep_point measure_point(const options& chosen) {
  sweep_point point;
  point.ranks = chosen.ranks;
  point.tokens = chosen.tokens;
  const std::size_t need = estimated_bytes(chosen);
  // Not all, as the machine needs some for itself and the estimate is rough.
  const std::size_t have = available_bytes() / 10 * 7;
  if (need > have) {
    point.left_out = "needs about " + in_gibibytes(need) + " of memory, of which " +
                     in_gibibytes(have) + " may be taken";
    return point;
  }
  const hand_over result;
  const int status =
      start_group(chosen, [&](const options&, const group& who, const outcome& measured) {
        handed& to = result.box();
        if (const auto found = figures::of_run(measured)) to.found = *found;
        to.cores = measured.cores;
        to.iterations = measured.iterations();
        to.dispatch_bytes = measured.dispatch_bytes;
        to.combine_bytes = measured.combine_bytes;
        to.crowded = measured.crowded;
        copy_text(to.placement, who.placement);
        copy_text(to.wrong, measured.wrong);
        to.there = true;
      });
  const handed& from = result.box();
  point.failed = status != 0 || !from.there;
  if (point.failed)
    point.left_out = from.there && from.wrong[0] != '\0'
                         ? std::string{"check failed: "} + from.wrong
                         : "the group ended with status " + std::to_string(status);
  point.found = from.found;
  point.placement = from.placement;
  point.cores = from.cores;
  point.iterations = from.iterations;
  point.dispatch_bytes = from.dispatch_bytes;
  point.combine_bytes = from.combine_bytes;
  point.crowded = from.crowded;
  return point;
}

void show_progress(std::size_t done, std::size_t all, const options& next) {
  if (::isatty(STDERR_FILENO) != 1) return;
  if (done == all)
    std::fputs("\r\033[K", stderr);
  else
    std::fprintf(stderr, "\r\033[Kmeasuring %zu of %zu: %zu ranks, %zu tokens", done + 1, all,
                 next.ranks, next.tokens);
}

}  // namespace

std::vector<sweep_point> sweep(const options& chosen) {
  std::vector<options> wanted;
  const auto want = [&](std::size_t ranks, std::size_t tokens) {
    options one = chosen;
    one.ranks = ranks;
    one.tokens = tokens;
    const auto same = [&](const options& other) {
      return other.ranks == ranks && other.tokens == tokens;
    };
    if (std::none_of(wanted.begin(), wanted.end(), same)) wanted.push_back(one);
  };
  for (const std::size_t tokens : chosen.report_tokens) want(chosen.ranks, tokens);
  for (const std::size_t ranks : chosen.report_ranks) want(ranks, chosen.tokens);

  std::vector<sweep_point> points;
  const auto start = bench::clock::now();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    show_progress(i, wanted.size(), wanted[i]);
    // What small configurations do not use up is there for the large ones. Half is for checking.
    const double spent = bench::microseconds(bench::clock::now() - start) / 1e6;
    const double share =
        (chosen.report_seconds - spent) / static_cast<double>(wanted.size() - i) / 2;
    wanted[i].seconds = std::max(share, 0.2);
    points.push_back(measure_point(wanted[i]));
  }
  show_progress(wanted.size(), wanted.size(), chosen);
  return points;
}

}  // namespace ep_bench
