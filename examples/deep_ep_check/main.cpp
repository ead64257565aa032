// SPDX-License-Identifier: MIT
// Reports which platforms with DeepEP's API accept a configuration, and what it needs there. The
// user does not need such a platform for that.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "options.hpp"
#include "report.hpp"
#include "verdict.hpp"

namespace deep_ep_check {
namespace {

int run(int argc, char** argv) {
  const options chosen = parse(argc, argv);
  std::vector<verdict> verdicts;
  verdicts.reserve(chosen.profiles.size());
  for (const auto platform : chosen.profiles) verdicts.push_back(judge(chosen, platform));
  const auto needed = memory_of(chosen);
  const std::string text = chosen.wants_json ? report_json(chosen, verdicts, needed)
                                             : report_text(chosen, verdicts, needed);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    std::fputs("deep_ep_check: cannot write the report\n", stderr);
    return 2;
  }
  const bool all_fit = std::ranges::all_of(verdicts, [](const verdict& v) { return v.fits; });
  return chosen.has_named_profiles && !all_fit ? 1 : 0;
}

}  // namespace
}  // namespace deep_ep_check

int main(int argc, char** argv) {
  try {
    return deep_ep_check::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "deep_ep_check: %s\n", failure.what());
    return 2;
  }
}
