// SPDX-License-Identifier: MIT
#include "model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/core/bf16.hpp>

namespace moe_text {

namespace {

constexpr std::uint64_t seed = 20240607;

/// Returns number `index` of stream `stream`: uniform, with mean 0 and variance 1.
float random_at(std::uint64_t stream, std::uint64_t index) {
  // splitmix64 passes a counter through a mixing function, so that any number can be computed
  // without the others.
  std::uint64_t z = stream + (index + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  z ^= z >> 31U;
  constexpr float square_root_of_3 = 1.7320508F;
  return (static_cast<float>(z >> 40U) * 0x1p-23F - 1.0F) * square_root_of_3;
}

std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = seed;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash * 0x9e3779b97f4a7c15U;
}

std::vector<float> table(std::string_view name, std::size_t size, std::size_t fan_in) {
  std::vector<float> values(size);
  const std::uint64_t stream = stream_of(name);
  const float scale = 1.0F / std::sqrt(static_cast<float>(fan_in));
  for (std::size_t i = 0; i < size; ++i) values[i] = scale * random_at(stream, i);
  return values;
}

}  // namespace

// Capital letters keep these streams apart from those of words.
model::model(std::size_t experts_, std::size_t hidden_)
    : experts{experts_},
      hidden{hidden_},
      gate{table("GATE", experts * hidden, hidden)},
      up{table("UP", experts * hidden * inner, hidden)},
      down{table("DOWN", experts * hidden * inner, inner)} {}

void model::embed(std::string_view word, std::size_t position,
                  std::span<peerbus::bf16> token) const {
  const std::uint64_t of_word = stream_of(word);
  const std::uint64_t of_position = stream_of("POSITION") + position * token.size();
  for (std::size_t i = 0; i < token.size(); ++i)
    token[i] = peerbus::bf16{random_at(of_word, i) + 0.25F * random_at(of_position, i)};
}

void model::route(std::span<const peerbus::bf16> token, std::span<std::int32_t> ids,
                  std::span<float> weights) const {
  std::vector<float> logits(experts);
  for (std::size_t e = 0; e < experts; ++e)
    for (std::size_t i = 0; i < hidden; ++i)
      logits[e] += gate[e * hidden + i] * static_cast<float>(token[i]);
  std::vector<std::int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t e) { return logits[static_cast<std::size_t>(e)]; };
  const auto better = [&](std::int32_t a, std::int32_t b) {
    return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
  };
  const auto end_of_best = order.begin() + static_cast<std::ptrdiff_t>(ids.size());
  std::partial_sort(order.begin(), end_of_best, order.end(), better);
  std::copy(order.begin(), end_of_best, ids.begin());
  float sum = 0;
  for (std::size_t k = 0; k < ids.size(); ++k)
    sum += weights[k] = std::exp(logit(ids[k]) - logit(ids[0]));
  for (float& weight : weights) weight /= sum;
}

void apply_expert(const model& m, std::size_t expert, std::span<const float> row,
                  std::span<peerbus::bf16> output) {
  std::array<float, model::inner> between{};
  const auto up = m.up_of(expert);
  for (std::size_t i = 0; i < row.size(); ++i)
    for (std::size_t j = 0; j < model::inner; ++j) between[j] += up[i * model::inner + j] * row[i];
  for (float& value : between) value = value / (1.0F + std::exp(-value));
  const auto down = m.down_of(expert);
  for (std::size_t i = 0; i < output.size(); ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < model::inner; ++j) sum += down[j * output.size() + i] * between[j];
    output[i] = peerbus::bf16{sum};
  }
}

}  // namespace moe_text
