// SPDX-License-Identifier: MIT
#include "arrival.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace ep_predict {

namespace {

/// Returns a number from 0 to 1, without either. Distributions of the standard library differ among
/// compilers.
double uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

double late_by(const arrival_spread& spread, std::mt19937_64& random) {
  const double drawn = uniform(random);
  const double radius = -std::log(drawn);
  if (spread.skew_shape == "exponential") return spread.skew_us * radius;
  // The mean of the absolute value of a normal distribution is sqrt(2 / pi) of its deviation.
  const double deviation = spread.skew_us * std::sqrt(std::numbers::pi / 2);
  const double angle = 2 * std::numbers::pi * uniform(random);
  return deviation * std::abs(std::sqrt(2 * radius) * std::cos(angle));
}

}  // namespace

std::vector<std::string> skew_shapes() { return {"exponential", "normal"}; }

std::string complaint_about(const arrival_spread& spread) {
  const auto outside = [](const char* name, double given, double least, double most) {
    return given >= least && given <= most
               ? std::string{}
               : std::string{name} + " is " + std::to_string(given) + ", expected " +
                     std::to_string(least) + " to " + std::to_string(most);
  };
  if (auto found = outside("skew_us", spread.skew_us, 0, 1e6); !found.empty()) return found;
  if (auto found = outside("straggler_share", spread.straggler_share, 0, 1); !found.empty())
    return found;
  if (auto found = outside("straggler_factor", spread.straggler_factor, 1, 1e4); !found.empty())
    return found;
  const auto shapes = skew_shapes();
  if (std::ranges::find(shapes, spread.skew_shape) == shapes.end())
    return "skew_shape is '" + spread.skew_shape + "', expected exponential or normal";
  if (spread.straggler_share > 0 && spread.straggler_factor == 1)
    return "straggler_share is " + std::to_string(spread.straggler_share) +
           " and straggler_factor is 1, expected a factor above 1";
  if (spread.straggler_share == 0 && spread.straggler_factor > 1)
    return "straggler_factor is " + std::to_string(spread.straggler_factor) +
           " and straggler_share is 0, expected a share above 0";
  return {};
}

arrival draw(const arrival_spread& spread, std::uint64_t seed, std::size_t operation,
             std::size_t rank) {
  std::seed_seq words{seed, static_cast<std::uint64_t>(operation),
                      static_cast<std::uint64_t>(rank)};
  std::mt19937_64 random{words};
  arrival drawn;
  drawn.late_us = late_by(spread, random);
  drawn.straggles = uniform(random) < spread.straggler_share;
  return drawn;
}

}  // namespace ep_predict
