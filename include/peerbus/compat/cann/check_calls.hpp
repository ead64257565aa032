// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/compat/cann/arguments.hpp>
#include <peerbus/compat/cann/check_attributes.hpp>
#include <peerbus/compat/cann/slots.hpp>
#include <peerbus/core/error.hpp>

/// The checks of a call's arguments, made before the call has any effect.
namespace peerbus::cann::detail {

/// The result of a call's checks: the first error that they find.
class objections {
 public:
  /// Requires that `given` is empty, because it cannot be honoured. `why` ends the error.
  template <class T>
  void none(std::string_view name, std::span<T> given, std::string_view why) {
    if (!found_ && !given.empty())
      found_ =
          wrong(errc::unsupported, name, " has ", given.size(), " values, expected none: ", why);
  }
  /// Requires that `given` is `expected`, the only value that can be honoured. `why` ends the
  /// error.
  void only(std::string_view name, std::int64_t given, std::int64_t expected,
            std::string_view why) {
    if (!found_ && given != expected)
      found_ = wrong(errc::unsupported, name, " is ", given, ", expected ", expected, ": ", why);
  }
  /// Requires that `given` has `expected` values and, unless `expected` is 0, is not null.
  /// `shape` explains `expected` in the error.
  template <class T>
  void size(std::string_view name, std::span<T> given, std::size_t expected,
            std::string_view shape) {
    if (found_) return;
    if (given.size() != expected)
      found_ = wrong(errc::invalid_argument, name, " has ", given.size(), " values, expected ",
                     shape, ", ", expected);
    else if (given.data() == nullptr && expected != 0)
      found_ = wrong(errc::invalid_argument, name, " is null but ", expected, " values long");
  }
  /// Requires that `given` is empty, or as `size` requires.
  template <class T>
  void size_if_given(std::string_view name, std::span<T> given, std::size_t expected,
                     std::string_view shape) {
    if (!given.empty()) size(name, given, expected, shape);
  }
  /// Requires that `given` is an array of [tokens, hidden] values with at most `most` tokens.
  /// Returns the number of tokens, or 0 if a check has failed.
  template <class T>
  std::size_t tokens(std::string_view name, std::span<T> given, const attributes& attributes,
                     std::size_t most) {
    if (found_) return 0;
    const std::size_t count = given.size() / attributes.hidden;
    size(name, given, count * attributes.hidden, "a multiple of H");
    if (!found_ && count > most)
      found_ = wrong(errc::invalid_argument, name, " has ", count,
                     " tokens, expected at most max_tokens, ", most);
    return found_ ? 0 : count;
  }
  void add(std::optional<error> objection) {
    if (!found_) found_ = std::move(objection);
  }
  template <class... Parts>
  void add_if(bool bad, const Parts&... parts) {
    if (!found_ && bad) found_ = wrong(errc::invalid_argument, parts...);
  }
  [[nodiscard]] bool none_yet() const noexcept { return !found_; }
  [[nodiscard]] const std::optional<error>& first() const noexcept { return found_; }

 private:
  std::optional<error> found_;
};

/// Checks all arguments of a dispatch except the values of the expert ids. Returns the objections.
inline objections objections_to(const dispatch_arguments& given, const attributes& attributes,
                                std::size_t max_tokens) {
  objections found;
  found.none("scales", given.scales, "rows are quantised without smoothing factors");
  found.none("expert_scales", given.expert_scales, "combine takes them");
  found.none("elastic_info", given.elastic_info, "the group of ranks does not shrink");
  found.size_if_given("performance_info", given.performance_info,
                      static_cast<std::size_t>(attributes.ep_world_size), "none or one per rank");
  const std::int64_t type = given.expert_token_nums_type;
  found.add_if(type != 0 && type != 1, "expert_token_nums_type is ", type,
               ", expected 0 for prefix sums or 1 for counts");
  const std::size_t tokens = found.tokens("x", given.x, attributes, max_tokens);
  found.size("expert_ids", given.expert_ids, tokens * attributes.top_k, "Bs x K");
  if (found.none_yet())
    found.add(active_mask::objection(given.x_active_mask, tokens, attributes.top_k));
  return found;
}

/// Checks the arguments of a combine of the dispatch whose slots are `slots`. Returns the
/// objections.
template <operator_codec Codec>
objections objections_to(const combine_arguments<Codec>& given, const attributes& attributes,
                         const slot_table& slots) {
  objections found;
  found.none("tp_send_counts", given.tp_send_counts, "there is no tensor-parallel group");
  found.none("activation_scale", given.activation_scale, "the operators reserve it");
  found.none("weight_scale", given.weight_scale, "the operators reserve it");
  found.none("group_list", given.group_list, "the operators reserve it");
  found.none("expand_scales", given.expand_scales, "expert_scales weigh at the token's home");
  found.none("elastic_info", given.elastic_info, "the group of ranks does not shrink");
  found.size_if_given("performance_info", given.performance_info,
                      static_cast<std::size_t>(attributes.ep_world_size), "none or one per rank");
  found.only("out_dtype", given.out_dtype, 0, "the result is bf16");
  found.only("comm_quant_mode", given.comm_quant_mode, 0, "outputs travel as bf16");
  found.only("group_list_type", given.group_list_type, 0, "the operators reserve it");

  const std::size_t tokens = slots.tokens();
  const std::size_t values = tokens * attributes.hidden;
  found.size("out", given.out, values, "Bs x H of the dispatch");
  found.size_if_given("expand_x", given.expand_x, given.dispatched.expert_out.size(),
                      "A x H of the dispatch");
  found.size("expert_scales", given.expert_scales, tokens * attributes.top_k,
             "Bs x K of the dispatch");
  found.size_if_given("shared_expert_x", given.shared_expert_x, values, "Bs x H of the dispatch");
  found.add_if(!given.shared_expert_x.empty() && attributes.shared_expert_rank_num != 0,
               "shared_expert_x is given but shared_expert_rank_num is ",
               attributes.shared_expert_rank_num,
               ", expected 0: tokens go to the shared experts by dispatch already");
  const auto constants = static_cast<std::size_t>(attributes.const_expert_num);
  const bool needed = tokens != 0 && (attributes.copy_expert_num != 0 || constants != 0);
  found.add_if(needed && given.ori_x.empty(), "ori_x is empty, expected Bs x H values, ", values,
               ", for copy and constant experts");
  found.size_if_given("ori_x", given.ori_x, values, "Bs x H of the dispatch");
  found.size("const_expert_alpha_1", given.const_expert_alpha_1, constants, "const_expert_num");
  found.size("const_expert_alpha_2", given.const_expert_alpha_2, constants, "const_expert_num");
  found.size("const_expert_v", given.const_expert_v, constants * attributes.hidden,
             "const_expert_num x H");

  found.size_if_given("combine's expert_ids", given.expert_ids, tokens * attributes.top_k,
                      "none or Bs x K of the dispatch");
  if (found.none_yet()) found.add(slots.differs(given.expert_ids));
  if (found.none_yet() && !given.x_active_mask.empty()) {
    found.add(active_mask::objection(given.x_active_mask, tokens, attributes.top_k));
    if (found.none_yet())
      found.add(slots.differs(active_mask{given.x_active_mask, tokens, attributes.top_k}));
  }
  return found;
}

}  // namespace peerbus::cann::detail
