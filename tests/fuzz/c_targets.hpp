// SPDX-License-Identifier: MIT
#pragma once

// What libpeerbus reads through pointers of C: structures of other versions, tensors, and the
// arguments of a dispatch. Pointers themselves are trusted, as those of any C interface.

#include <peerbus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/check_input.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

#include "exchange_input.hpp"
#include "failure.hpp"
#include "fuzz/bytes.hpp"
#include "tensors.hpp"

namespace fuzz {

/// A structure of C that takes no more memory than its `struct_bytes` says, so that a sanitizer
/// sees who reads beyond.
template <class Struct>
class c_struct {
 public:
  explicit c_struct(bytes given) : words_(std::max<std::size_t>((given.size() + 7) / 8, 1)) {
    if (!given.empty()) std::memcpy(words_.data(), given.data(), given.size());
    auto& said = *reinterpret_cast<std::uint32_t*>(words_.data());
    said = static_cast<std::uint32_t>(std::min<std::size_t>(said, 8 * words_.size()));
  }
  [[nodiscard]] const Struct* get() const noexcept {
    return reinterpret_cast<const Struct*>(words_.data());
  }

 private:
  std::vector<std::uint64_t> words_;
};

inline void expect_known(peerbus_code code) {
  expect(code >= PEERBUS_OK && std::string_view{peerbus_code_text(code)} != "unknown error code",
         "a known code");
  expect(code != PEERBUS_INTERNAL, "no internal error");
}

/// Structures of any size and version. The first byte says which.
inline void read_structs(bytes given) {
  namespace c = peerbus::c_library;
  input from{given};
  const auto which = from.below(8);
  const auto number = static_cast<std::int32_t>(from.take<std::int8_t>());
  const auto read = [&]<class Struct>(const c_struct<Struct>& held) {
    accept_or_refuse([&] { (void)c::read_struct(held.get(), "struct", 16); });
  };
  switch (which) {
    case 0:
    case 1:
    case 2: {
      const c_struct<peerbus_call> call{from.rest()};
      std::array<peerbus_finding, 4> found{};
      std::uint64_t count = 0;
      const peerbus_code code =
          peerbus_findings(number, call.get(), found.data(), found.size(), &count);
      expect_known(code);
      for (std::size_t i = 0; code == PEERBUS_OK && i < std::min<std::size_t>(count, 4); ++i)
        expect(found[i].what != nullptr && found[i].advice != nullptr, "texts");
      expect_known(peerbus_require(number, call.get()));
      break;
    }
    case 3: {
      const auto hidden = from.take<std::uint64_t>();
      const c_struct<peerbus_deep_ep_config> config{from.rest()};
      std::uint64_t size = 0;
      expect_known(peerbus_nvl_buffer_size_hint(config.get(), hidden,
                                                static_cast<std::uint64_t>(number), &size));
      break;
    }
    case 4: read(c_struct<peerbus_comm_options>{from.rest()}); break;
    case 5: read(c_struct<peerbus_place>{from.rest()}); break;
    case 6: read(c_struct<peerbus_exchange_config>{from.rest()}); break;
    default: read(c_struct<peerbus_combine_args>{from.rest()}); break;
  }
}

/// A tensor, with any numbers and an address or none.
inline void read_tensor(bytes given) {
  input from{given};
  static std::array<std::uint64_t, 64> memory;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> strides{};
  const std::size_t options = from.below(8);
  peerbus_tensor made{};
  made.data = (options & 1U) != 0 ? memory.data() : nullptr;
  made.shape = (options & 2U) != 0 ? shape.data() : nullptr;
  made.strides = (options & 4U) != 0 ? strides.data() : nullptr;
  made.device_type = from.take<std::int8_t>();
  made.ndim = from.take<std::int8_t>();
  made.dtype_code = from.take<std::uint8_t>();
  made.dtype_bits = from.take<std::uint8_t>();
  made.dtype_lanes = from.take<std::uint8_t>();
  made.byte_offset = from.take<std::uint64_t>();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    shape[d] = from.take<std::int64_t>();
    strides[d] = from.take<std::int64_t>();
  }
  accept_or_refuse([&] {
    const auto view = peerbus::c_library::read_tensor(&made, "x");
    expect(view.dims() == static_cast<std::size_t>(made.ndim), "as many dimensions");
    for (std::size_t d = 0; d < view.dims(); ++d)
      expect(view.size(d) == static_cast<std::size_t>(shape[d]), "the same sizes");
    (void)peerbus::c_library::array_of(view);
  });
}

/// The arguments of a dispatch: a count, widths of ids, addresses that may be missing or odd.
inline void read_arguments(bytes given) {
  namespace moe = peerbus::moe;
  input from{given};
  moe::exchange_config config{.experts = 7, .hidden = 8, .top_k = 2, .max_tokens = 4};
  config.attachments[0] = 4;
  config.note_bytes = 8;
  const std::size_t addresses = from.below(256);
  const std::size_t odd = from.below(4);
  peerbus_dispatch_args args{};
  args.expert_id_bits = from.take<std::uint8_t>();
  args.count = from.take<std::uint64_t>();
  args.timeout_ns = from.take<std::int64_t>();
  // Room for as many tokens as the exchange takes, whatever `count` is.
  std::vector<std::uint64_t> tokens(config.max_tokens * config.hidden / 4);
  std::vector<std::uint64_t> experts(config.max_tokens * config.top_k + 1);
  std::vector<std::uint64_t> weights(config.max_tokens * config.top_k / 2 + 1);
  for (auto& id : experts) id = from.take<std::uint64_t>();
  const auto place = [&](std::size_t bit, void* memory, std::size_t shift) -> void* {
    return (addresses >> bit & 1U) != 0 ? static_cast<std::byte*>(memory) + shift : nullptr;
  };
  args.tokens = place(0, tokens.data(), odd == 1 ? 1 : 0);
  args.experts = place(1, experts.data(), odd == 2 ? 1 : 0);
  args.weights = static_cast<const float*>(place(2, weights.data(), odd == 3 ? 2 : 0));
  args.attachments[0] = place(3, tokens.data(), 0);
  args.note = place(4, weights.data(), 0);
  const auto read = peerbus::c_library::read_input(args, config, 2, 3);
  if (read.problem) {
    expect(read.options.refuse, "a refusal on all ranks");
    return;
  }
  const moe::detail::token_values values{
      std::span{static_cast<const peerbus::bf16*>(read.tokens), read.values}};
  moe::send_plan plan{config, moe::compact{}.geometry(config, 3),
                      std::make_shared<const moe::expert_router>(config, peerbus::rank_id{0}, 3),
                      peerbus::rank_id{0}, 3};
  const auto found = plan.count(values, read.route);
  expect(found || args.count <= config.max_tokens, "no more tokens than there is room for");
  if (!found) (void)moe::detail::check_attachments(config, args.count, read.options.attachments);
}

/// The targets of this file.
inline constexpr std::array c_targets{
    target{"c_structs", read_structs},
    target{"c_tensors", read_tensor},
    target{"c_arguments", read_arguments},
};

}  // namespace fuzz
