// SPDX-License-Identifier: MIT
#include "load.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <random>
#include <stdexcept>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/check_config.hpp>

#include "with_layout.hpp"

namespace ep_predict {

namespace {

using peerbus::moe::row_format;

/// A codec that a load may name.
struct named_codec {
  const char* name;
  row_format (*format)(std::size_t hidden);
  std::optional<peerbus::error> (*objection_to)(const load& batch);
};

template <class Codec>
row_format format(std::size_t hidden) {
  return {Codec::row_bytes(hidden), Codec::scale_bytes(hidden)};
}

template <class Codec>
std::optional<peerbus::error> objection_to(const load& batch) {
  return with_layout(batch.layout, [&](auto layout) {
    return peerbus::moe::objection_to<Codec>(config_of(batch), batch.ranks, layout);
  });
}

template <class Codec>
constexpr named_codec named(const char* name) {
  return {name, format<Codec>, objection_to<Codec>};
}

constexpr std::array<named_codec, 4> all_codecs{{
    named<peerbus::codec::bf16>("bf16"),
    named<peerbus::codec::int8_per_token>("int8"),
    named<peerbus::codec::fp8_e4m3_per_128_f32>("fp8"),
    named<peerbus::codec::fp8_e4m3_per_128_ue8m0>("fp8_ue8m0"),
}};

const named_codec& codec_of(const load& batch) {
  const auto* const found = std::ranges::find(all_codecs, batch.codec, &named_codec::name);
  if (found == all_codecs.end()) throw std::runtime_error{"unknown codec " + batch.codec};
  return *found;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> layouts() {
  return {"compact", "padded", "rank_major", "slots", "expert_slots", "automatic"};
}

std::vector<std::string> codecs() {
  std::vector<std::string> names;
  names.reserve(all_codecs.size());
  for (const named_codec& codec : all_codecs) names.emplace_back(codec.name);
  return names;
}

peerbus::moe::exchange_config config_of(const load& batch) {
  using peerbus::moe::relay;
  return {.experts = batch.experts,
          .hidden = batch.hidden,
          .top_k = batch.top_k,
          .max_tokens = batch.tokens,
          .in_flight = batch.in_flight,
          .outputs = peerbus::moe::outputs_at::home,
          .relay = batch.relay == "always"      ? relay::always
                   : batch.relay == "automatic" ? relay::automatic
                                                : relay::never};
}

std::vector<std::string> relays() { return {"never", "always", "automatic"}; }

row_format format_of(const load& batch) { return codec_of(batch).format(batch.hidden); }

std::string complaint_about(const load& batch) {
  const auto named = [](const char* name, const std::string& given,
                        const std::vector<std::string>& known) {
    const bool is_known = std::ranges::find(known, given) != known.end();
    return is_known ? ""
                    : std::string{name} + " is '" + given + "', expected one of: " + join(known);
  };
  if (auto found = named("layout", batch.layout, layouts()); !found.empty()) return found;
  if (auto found = named("codec", batch.codec, codecs()); !found.empty()) return found;
  if (auto found = named("relay", batch.relay, relays()); !found.empty()) return found;
  load checked = batch;
  checked.ranks = std::min(batch.ranks, peerbus::moe::max_ranks);  // One model needs no exchange.
  if (const auto found = codec_of(batch).objection_to(checked)) return std::string{found->text()};
  return {};
}

std::vector<std::int32_t> even_routing(const load& batch, std::size_t rank) {
  std::mt19937_64 random{batch.seed * 1'000'003 + rank};
  std::vector<std::int32_t> experts;
  experts.reserve(batch.tokens * batch.top_k);
  for (std::size_t token = 0; token < batch.tokens; ++token) {
    const auto first = static_cast<std::ptrdiff_t>(experts.size());
    while (experts.size() < (token + 1) * batch.top_k) {
      const auto drawn = static_cast<std::int32_t>(random() % batch.experts);
      if (std::find(experts.begin() + first, experts.end(), drawn) == experts.end())
        experts.push_back(drawn);
    }
  }
  return experts;
}

}  // namespace ep_predict
