// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_gather_coded.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>

#include "collective_request.hpp"

namespace peerbus::c_library {

namespace {

/// The arguments of an `all_gather_coded`.
struct coded_arguments {
  const void* tokens;
  std::uint64_t count;
  std::uint64_t hidden;
  void* output;
  void* scales;
  peerbus_dtype dtype;
};

/// Returns the elements of the tokens of all ranks. Refuses more than memory can have.
std::size_t elements_of_all(const collective_request& asked, const coded_arguments& given) {
  // No form of an element takes more, its share of the scales included.
  constexpr std::uint64_t each = 8;
  const auto rank = given.hidden == 0 ? 0 : bytes_of(given.count, given.hidden, each);
  if (!rank) asked.refuse_size();
  const auto all = bytes_of(*rank, asked.size(), 1);
  if (!all) asked.refuse_size();
  return *all / each;
}

void require_aligned(const collective_request& asked, const void* memory, std::size_t alignment,
                     std::string_view name) {
  if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0)
    asked.refuse(concat(name, " not aligned to ", alignment, " bytes"));
}

/// Gathers tokens by `Codec`. `rows` is the type of its rows.
template <token_codec Codec>
void gather_by(const collective_request& asked, const coded_arguments& given, peerbus_dtype rows) {
  using token = token_of<Codec>;
  const std::size_t hidden = given.hidden;
  const std::size_t all = elements_of_all(asked, given);
  const bool is_decoded = given.dtype == PEERBUS_DTYPE_F32 || given.dtype == PEERBUS_DTYPE_BF16;
  if (!is_decoded && given.dtype != rows)
    asked.refuse(concat("an output of ", name_of(given.dtype), ", expected f32",
                        rows == PEERBUS_DTYPE_BF16 ? " or " : ", bf16 or ", name_of(rows)));
  if (is_decoded && given.scales != nullptr)
    asked.refuse("scales beside an output that is decoded, expected NULL");
  require_aligned(asked, given.tokens, alignof(token), "tokens");
  if (is_decoded) require_aligned(asked, given.output, element_of(given.dtype).bytes, "an output");

  const std::span tokens{static_cast<const token*>(given.tokens), all / asked.size()};
  const auto gather_to = [&](auto&& output) {
    const auto& options = asked.options();
    asked.carry_out(
        [&] {
          return collective::start_all_gather_coded(asked.team(), Codec{}, hidden, tokens, output,
                                                    options);
        },
        [&] {
          collective::all_gather_coded(asked.team(), Codec{}, hidden, tokens, output, options);
        });
  };
  if (given.dtype == PEERBUS_DTYPE_F32) {
    gather_to(std::span{static_cast<float*>(given.output), all});
  } else if (given.dtype == PEERBUS_DTYPE_BF16) {
    gather_to(std::span{static_cast<bf16*>(given.output), all});
  } else if constexpr (!std::is_same_v<Codec, codec::bf16>) {
    const std::size_t scales = hidden == 0 ? 0 : all / hidden * Codec::scale_bytes(hidden);
    gather_to(collective::coded_rows{{static_cast<std::byte*>(given.output), all},
                                     {static_cast<std::byte*>(given.scales), scales}});
  }
}

}  // namespace

}  // namespace peerbus::c_library

using namespace peerbus::c_library;  // NOLINT(google-build-using-namespace): the functions are C.

peerbus_code peerbus_all_gather_coded(peerbus_team* team, int32_t codec, const void* tokens,
                                      uint64_t count, uint64_t hidden, void* output, void* scales,
                                      peerbus_dtype dtype, int64_t timeout_ns) {
  namespace codecs = peerbus::codec;
  return guarded([&] {
    const collective_request asked{team, "all_gather_coded", dtype, timeout_ns};
    const coded_arguments given{tokens, count, hidden, output, scales, dtype};
    switch (codec) {
      case PEERBUS_BF16: return gather_by<codecs::bf16>(asked, given, PEERBUS_DTYPE_BF16);
      case PEERBUS_INT8_PER_TOKEN:
        return gather_by<codecs::int8_per_token>(asked, given, PEERBUS_DTYPE_I8);
      case PEERBUS_FP8_PER_128_F32:
        return gather_by<codecs::fp8_e4m3_per_128_f32>(asked, given, PEERBUS_DTYPE_E4M3);
      case PEERBUS_FP8_PER_128_ROUNDED:
        return gather_by<codecs::fp8_e4m3_per_128_rounded_f32>(asked, given, PEERBUS_DTYPE_E4M3);
      case PEERBUS_FP8_PER_128_UE8M0:
        return gather_by<codecs::fp8_e4m3_per_128_ue8m0>(asked, given, PEERBUS_DTYPE_E4M3);
      case PEERBUS_FP8_AS_GIVEN:
        return gather_by<codecs::fp8_e4m3_as_given>(asked, given, PEERBUS_DTYPE_E4M3);
      default: asked.refuse(peerbus::concat("a codec of ", codec, ", expected 0 to 5"));
    }
  });
}
