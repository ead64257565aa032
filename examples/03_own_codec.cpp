// SPDX-License-Identifier: MIT
// A token codec of your own: a sign bit per channel, and the mean magnitude as the scale.
#include <cmath>
#include <cstring>

#include <peerbus/peerbus.hpp>

using peerbus::bf16;

class one_bit {
 public:
  using element = std::uint8_t;  // A row is an array of elements.
  static constexpr std::string_view name = "one_bit";
  static constexpr std::size_t hidden_multiple = 128;  // Makes a row a multiple of 16 bytes.
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return hidden / 8; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return sizeof(float); }

  void encode(std::span<const bf16> token, std::span<std::byte> row,
              std::span<std::byte> scale) const noexcept {
    float mean = 0;  // A NaN or an infinity makes the mean, and so every channel, NaN or infinite.
    for (const bf16 x : token) mean += std::abs(float{x}) / static_cast<float>(token.size());
    std::memcpy(scale.data(), &mean, sizeof(mean));
    for (std::size_t i = 0; i < row.size(); ++i) {
      unsigned signs = 0;
      for (std::size_t bit = 0; bit < 8; ++bit)
        if (token[8 * i + bit].bits >= 0x8000) signs |= 1U << bit;
      row[i] = static_cast<std::byte>(signs);
    }
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte> scale,
              std::span<float> out) const noexcept {
    float mean = 0;
    std::memcpy(&mean, scale.data(), sizeof(mean));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool is_negative = (row[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
      out[i] = is_negative ? -mean : mean;
    }
  }
};
static_assert(peerbus::token_codec<one_bit>);

int main() {
  return peerbus::run<peerbus::unified_bus>(4, [](auto& comm) {
    constexpr std::size_t hidden = 128;
    peerbus::moe::exchange moe{
        comm, {.experts = 4, .hidden = hidden, .top_k = 1, .max_tokens = 1}, one_bit{}};
    const std::vector<bf16> token(hidden, bf16{-2.0F});
    const std::vector<std::int32_t> next{static_cast<std::int32_t>(comm.rank().index() + 1) % 4};
    const std::vector<float> weight{0.5F};

    auto received = moe.dispatch(token, {next, weight});  // Sends one row to the next expert.
    auto& expert = received.experts()[0];
    std::vector<float> row(hidden);
    expert.decode(0, row);
    for (std::size_t i = 0; i < hidden; ++i) expert.output(0)[i] = bf16{row[i]};

    std::vector<bf16> out(hidden);
    moe.combine(received, out);
    return out == std::vector<bf16>(hidden, bf16{-1.0F}) ? 0 : 1;
  });
}
