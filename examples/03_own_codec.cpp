// SPDX-License-Identifier: MIT
// A token codec of one's own: a byte of sign per channel, and the mean magnitude as the scale.
#include <cmath>
#include <cstring>

#include <peerbus/peerbus.hpp>
using bytes = std::span<const std::byte>;
struct sign_and_mean {
  using element = std::uint8_t;
  static constexpr std::string_view name = "sign_and_mean";
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return hidden; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return sizeof(float); }
  void encode(std::span<const peerbus::bf16> token, std::span<std::byte> row,
              std::span<std::byte> scale) const noexcept {
    float mean = 0;  // A NaN or an infinity reaches it, and through it every channel.
    for (auto x : token) mean += std::abs(float(x)) / float(token.size());
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = std::byte(token[i].bits >> 15U);
    std::memcpy(scale.data(), &mean, sizeof mean);
  }
  void decode(bytes row, bytes scale, std::span<float> out) const noexcept {
    float mean = 0;
    std::memcpy(&mean, scale.data(), sizeof mean);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = row[i] == std::byte{0} ? mean : -mean;
  }
};
static_assert(peerbus::token_codec<sign_and_mean>);

int main() {
  return peerbus::run<peerbus::unified_bus>(4, [](auto& comm) {
    peerbus::moe::exchange moe{comm, {4, 64, 1, 1}, sign_and_mean{}};
    std::vector<peerbus::bf16> token(64, peerbus::bf16{-2.0F}), out(64);
    std::vector<std::int32_t> id{static_cast<std::int32_t>(comm.rank().index() + 1) % 4};
    std::vector<float> weight{0.5F}, row(64);
    auto received = moe.dispatch(token, {id, weight});  // One token, to the next rank's expert.
    received.experts()[0].decode(0, row);
    for (unsigned i = 0; i < 64; ++i) received.experts()[0].output(0)[i] = peerbus::bf16{row[i]};
    moe.combine(received, out);
    return out == std::vector(64, peerbus::bf16{-1.0F}) ? 0 : 1;
  });
}
