// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// One value that all ranks must have alike, with the name that an error calls it by.
struct declared {
  std::string_view name;
  std::uint64_t value;
};

/// Collective: an allgather that any rank may refuse. A rank whose part failed passes its error as
/// `objection`; then every rank throws, naming that rank and its reason, and nobody is left
/// waiting. Throws: `error` with the objector's own code (lowest rank first), or as
/// `bootstrap::allgather`.
inline std::vector<bootstrap::contribution> gather_or_refuse(bootstrap& boot,
                                                             std::string_view doing,
                                                             bootstrap::contribution mine,
                                                             const std::optional<error>& objection,
                                                             deadline until) {
  // Wire form: the code as 4 bytes; then the caller's bytes if it is ok, else the text.
  const auto code = objection ? objection->code() : errc::ok;
  const std::string_view text = objection ? objection->what() : "";
  std::vector<std::byte> framed(sizeof code);
  std::memcpy(framed.data(), &code, sizeof code);
  const auto body =
      objection ? std::as_bytes(std::span{text}) : std::span<const std::byte>{mine.bytes};
  framed.insert(framed.end(), body.begin(), body.end());

  auto all = boot.allgather({std::move(framed), std::move(mine.fd)}, until, doing);
  for (std::size_t r = 0; r < all.size(); ++r) {
    auto& bytes = all[r].bytes;
    auto said = errc::system;
    std::string reason = "it sent no status";
    if (bytes.size() >= sizeof said) {
      std::memcpy(&said, bytes.data(), sizeof said);
      bytes.erase(bytes.begin(), bytes.begin() + sizeof said);
      reason.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    if (said == errc::ok) continue;
    if (rank_id{r} == boot.rank() && objection) throw *objection;
    throw error{said, detail::concat(doing, ": ", rank_id{r}, " could not: ", reason)};
  }
  return all;
}

/// Collective: returns if all ranks declared the same values under the same names.
/// Throws, on every rank: `error` mismatch that names the first differing value and who has which;
/// or the `objection` of the lowest rank that has one.
inline void agree(bootstrap& boot, std::string_view doing, std::span<const declared> values,
                  deadline until, const std::optional<error>& objection = std::nullopt) {
  bootstrap::contribution mine;
  mine.bytes.resize(values.size() * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < values.size(); ++i)
    std::memcpy(mine.bytes.data() + i * sizeof(std::uint64_t), &values[i].value,
                sizeof(std::uint64_t));
  const auto all = gather_or_refuse(boot, doing, std::move(mine), objection, until);

  const auto value_at = [&](std::size_t r, std::size_t i) {
    std::uint64_t value = 0;
    std::memcpy(&value, all[r].bytes.data() + i * sizeof value, sizeof value);
    return value;
  };
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].bytes.size() != all[0].bytes.size())
      throw error{errc::mismatch,
                  detail::concat(doing, ": ", rank_id{0}, " declared ", all[0].bytes.size() / 8,
                                 " values, ", rank_id{r}, " ", all[r].bytes.size() / 8)};
  // Rank 0 is the yardstick on every rank, so that all report the same pair.
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t r = 1; r < all.size(); ++r)
      if (value_at(r, i) != value_at(0, i))
        throw error{errc::mismatch,
                    detail::concat(doing, ": ", values[i].name, " is ", value_at(0, i), " on ",
                                   rank_id{0}, " but ", value_at(r, i), " on ", rank_id{r})};
}

}  // namespace peerbus
