// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>

namespace peerbus::moe::detail {

/// The properties of a codec in numbers, for tokens of one `hidden`.
struct codec_facts {
  std::string_view name;
  std::size_t hidden_multiple;
  std::size_t element_bytes;
  row_format format;

  template <token_codec Codec>
  [[nodiscard]] static constexpr codec_facts of(std::size_t hidden) noexcept {
    return {Codec::name,
            hidden_multiple_of<Codec>(),
            sizeof(typename Codec::element),
            {Codec::row_bytes(hidden), Codec::scale_bytes(hidden)}};
  }
};

/// The kinds of layouts, which differ in the number of rows that they have room for.
enum class block_shape : std::uint8_t { compact, padded, by_rank };

/// The protocol of the dispatches of a layout, or `automatic` if it can have either.
template <row_layout Layout>
inline constexpr dispatch_protocol only_protocol_of =
    automatic_layout<Layout> ? dispatch_protocol::automatic
    : slot_layout<Layout>    ? dispatch_protocol::one_phase
                             : dispatch_protocol::counts_first;

/// The properties of a layout in numbers, without its type.
struct layout_facts {
  std::string_view name;
  block_shape shape;
  std::size_t alignment;
  dispatch_protocol only;  ///< the protocol that the layout has; `automatic` if it can have either

  /// Returns the facts of a layout whose dispatches use `chosen`.
  template <row_layout Layout>
  [[nodiscard]] static constexpr layout_facts of(const Layout& layout,
                                                 dispatch_protocol chosen) noexcept {
    if constexpr (std::same_as<Layout, compact>)
      return {Layout::name, block_shape::compact, layout.alignment,
              dispatch_protocol::counts_first};
    else if constexpr (layout_by_rank<Layout>)
      return {Layout::name, block_shape::by_rank, 1, only_protocol_of<Layout>};
    else if constexpr (automatic_layout<Layout>)
      return {
          Layout::name,
          chosen == dispatch_protocol::counts_first ? block_shape::compact : block_shape::padded, 1,
          only_protocol_of<Layout>};
    else
      return {Layout::name, block_shape::padded, 1, only_protocol_of<Layout>};
  }
};

/// Returns the error of a configuration that is impossible for `ranks` ranks, if any.
std::optional<error> objection_to(const exchange_config& config, std::size_t ranks,
                                  const codec_facts& codec, const layout_facts& layout);
/// Returns the error of `objection_to` for a level of an exchange, which may have fewer experts
/// than a token has slots, or none.
std::optional<error> objection_to_level(const exchange_config& config, std::size_t ranks,
                                        const codec_facts& codec, const layout_facts& layout);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/objection.ipp>  // IWYU pragma: keep
#endif
