// SPDX-License-Identifier: MIT
#include "other.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/peerbus.hpp>

namespace {

// All sizes are known here except the token's, so a compiler that optimises checks each write of a
// codec against them.
template <class Codec>
float first_value_through(std::span<const peerbus::bf16> token) {
  const Codec codec{};
  std::array<std::byte, Codec::row_bytes(hidden)> row{};
  std::array<std::byte, Codec::scale_bytes(hidden)> scales{};
  std::array<float, hidden> values{};
  codec.encode(token, row, scales);
  codec.decode(row, scales, values);
  return values.front();
}

}  // namespace

float first_values_through_codecs(std::span<const peerbus::bf16> token) {
  return first_value_through<peerbus::codec::bf16>(token) +
         first_value_through<peerbus::codec::int8_per_token>(token) +
         first_value_through<peerbus::codec::fp8_e4m3_per_128_f32>(token) +
         first_value_through<peerbus::codec::fp8_e4m3_per_128_rounded_f32>(token) +
         first_value_through<peerbus::codec::fp8_e4m3_per_128_ue8m0>(token);
}

bool window_of_another_unit(peerbus::communicator<peerbus::loopback>& comm) {
  auto window = comm.make_window(64, 1);
  const std::array<std::uint64_t, 1> sent{42};
  const auto me = comm.rank();
  peerbus::check(window.put_signal(me, 0, sent, peerbus::signal_id{0}, 1), "putting");
  peerbus::check(window.wait(peerbus::signal_id{0}, 1, comm.default_deadline(), me), "waiting");
  comm.barrier();
  return window.local<std::uint64_t>()[0] == 42;
}
