// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/detail/told_code.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_ERROR_PATH error detail::objection_in_flight(std::string_view what) {
  try {
    throw;
  } catch (const error& problem) {
    return problem;
  } catch (const std::bad_alloc&) {
    return {errc::out_of_memory, concat("no memory for ", what)};
  } catch (const std::exception& problem) {
    return {errc::system, problem.what()};
  }
}

PEERBUS_INLINE void detail::append_bytes(std::vector<std::byte>& out, const void* source,
                                         std::size_t count) {
  const auto* const first = static_cast<const std::byte*>(source);
  out.insert(out.end(), first, first + count);
}

PEERBUS_INLINE declared::declared(std::string_view value_name, std::uint64_t number)
    : name{value_name}, value{std::to_string(number)} {}

PEERBUS_INLINE declared::declared(std::string_view value_name, std::string_view text)
    : name{value_name}, value{text} {}

PEERBUS_INLINE std::vector<bootstrap::contribution> gather_or_refuse(
    bootstrap& boot, std::string_view doing, bootstrap::contribution own_part,
    const std::optional<error>& objection, deadline until) {
  // Wire form: the caller's bytes, or the text of the objection; then the code, 4 bytes.
  const auto code = objection ? objection->code() : errc::ok;
  if (objection) {
    own_part.bytes.clear();
    detail::append_bytes(own_part.bytes, objection->text().data(), objection->text().size());
  }
  detail::append_bytes(own_part.bytes, &code, sizeof code);

  auto all = boot.allgather(std::move(own_part), until, doing);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (boot.members()->is_excluded(rank_id{r})) continue;
    auto& bytes = all[r].bytes;
    auto given_code = static_cast<std::uint32_t>(errc::system);
    if (bytes.size() >= sizeof given_code) {
      std::memcpy(&given_code, bytes.data() + bytes.size() - sizeof given_code, sizeof given_code);
      bytes.resize(bytes.size() - sizeof given_code);
    }
    if (given_code == static_cast<std::uint32_t>(errc::ok)) continue;
    if (rank_id{r} == boot.rank() && objection) throw agreed_error{*objection};
    throw agreed_error{detail::told_code(given_code),
                       detail::concat(doing, ": ", rank_id{r}, " could not: ",
                                      std::string_view{reinterpret_cast<const char*>(bytes.data()),
                                                       bytes.size()})};
  }
  return all;
}

PEERBUS_INLINE void agree(bootstrap& boot, std::string_view doing, std::span<const declared> values,
                          deadline until, const std::optional<error>& objection) {
  // Wire form: name, value, name, value, …, each ended by a zero byte.
  bootstrap::contribution own_values;
  for (const declared& entry : values)
    for (const std::string_view part : {entry.name, std::string_view{entry.value}}) {
      detail::append_bytes(own_values.bytes, part.data(), part.size());
      own_values.bytes.push_back(std::byte{0});
    }
  const auto all = gather_or_refuse(boot, doing, std::move(own_values), objection, until);

  const auto parts_of = [&all](std::size_t r) {
    std::vector<std::string_view> parts;
    std::string_view rest{reinterpret_cast<const char*>(all[r].bytes.data()), all[r].bytes.size()};
    for (auto end = rest.find('\0'); end != std::string_view::npos; end = rest.find('\0')) {
      parts.push_back(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
    return parts;
  };
  // Every rank compares with the first that is not gone, so that all ranks report the same pair.
  std::size_t lowest = 0;
  while (boot.members()->is_excluded(rank_id{lowest})) ++lowest;
  const auto first = parts_of(lowest);
  for (std::size_t r = lowest + 1; r < all.size(); ++r) {
    if (boot.members()->is_excluded(rank_id{r})) continue;
    if (all[r].bytes == all[lowest].bytes) continue;
    const auto others = parts_of(r);
    // The values are compared before their number, because another version of the library may
    // declare further values after its own.
    for (std::size_t i = 0; i + 1 < std::min(first.size(), others.size()); i += 2) {
      if (others[i] == first[i] && others[i + 1] == first[i + 1]) continue;
      throw agreed_error{
          errc::mismatch,
          detail::concat(doing, ": ", first[i], " is ", first[i + 1], " on ", rank_id{lowest},
                         " but ", others[i] == first[i] ? "" : detail::concat(others[i], " is "),
                         others[i + 1], " on ", rank_id{r})};
    }
    if (others.size() != first.size())
      throw agreed_error{errc::mismatch, detail::concat(doing, ": ", rank_id{lowest}, " declared ",
                                                        first.size() / 2, " values but ",
                                                        rank_id{r}, " ", others.size() / 2)};
  }
}

}  // namespace peerbus
