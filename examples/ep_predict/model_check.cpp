// SPDX-License-Identifier: MIT
#include "model_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "aggregated.hpp"

namespace ep_predict {

namespace {

double percent(double found, double expected) { return (found / expected - 1) * 100; }

}  // namespace

model_check::model_check(const work& own, const peerbus::simulated_platform& platform,
                         std::size_t samples)
    : own_{own}, platform_{platform}, samples_{samples} {
  std::printf(
      "%s; microseconds, median over ranks: fibres, aggregated model\n%6s %7s %-12s "
      "%10s %10s %9s %10s %10s %9s\n",
      platform.name.c_str(), "ranks", "tokens", "layout", "dispatch", "model", "off by", "combine",
      "model", "off by");
}

void model_check::compare(const load& batch) {
  const prediction fibres = predict(batch, own_, platform_);
  const prediction model = predict_aggregated(batch, own_, platform_, samples_);
  const double dispatch = percent(model.dispatch.median, fibres.dispatch.median);
  const double combine = percent(model.combine.median, fibres.combine.median);
  std::printf("%6zu %7zu %-12s %10.1f %10.1f %+7.2f %% %10.1f %10.1f %+7.2f %%\n", batch.ranks,
              batch.tokens, batch.layout.c_str(), fibres.dispatch.median, model.dispatch.median,
              dispatch, fibres.combine.median, model.combine.median, combine);
  std::fflush(stdout);
  const std::size_t samples = samples_ == 0 ? default_samples(batch.ranks) : samples_;
  const double tolerance = samples < batch.ranks ? tolerance_of_some : tolerance_of_all;
  agrees_ = agrees_ && std::max(std::abs(dispatch), std::abs(combine)) <= 100 * tolerance;
}

}  // namespace ep_predict
